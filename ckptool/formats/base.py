"""What a format is: a record of functions, and the draft of a file that it makes before a byte is written."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import ClassVar, Literal

from ..checkpoint import Checkpoint
from ..disk.composing import Piece
from ..disk.files import File
from ..disk.inside import Folder
from ..records import record
from .trainers.plan import Plan

#: `torch.load` as it is called since 2.6, `torch.load` that runs what the pickle says, the safetensors library, or
#: another function of torch's.
Loader = Literal["weights_only", "pickle", "safetensors", "other"]


@record(frozen=True, slots=True)
class Draft:
    """A file, or a directory of files, as a format would write it.

    Attributes:
        pieces: the bytes of the file, in order. Empty for a directory.
        folder: the files of a directory, name -> pieces, in the order of writing. Empty for a file.
        form: what changes in form, though no content is lost ("2 tied keys are stored twice").
        content: what would be lost ("optimizer (482 tensors)").
        how: how the bytes come about, for the receipt ("patched in place of the old pickle").
        checksums: those of whole records of the source are written along, so nobody has to compare them on the way.
    """

    pieces: list[Piece]
    form: tuple[str, ...] = ()
    content: tuple[str, ...] = ()
    how: str = ""
    folder: Mapping[str, Sequence[Piece]] = field(default_factory=dict)
    checksums: bool = False

    @property
    def nbytes(self) -> int:
        """Exact size of the file, or of all files of the directory."""
        return sum(piece.length for pieces in (self.pieces, *self.folder.values()) for piece in pieces)


@record(frozen=True, slots=True)
class Format:
    """A container for checkpoints.

    Attributes:
        name: as in `--to` and in reports.
        aliases: other names that people type.
        suffixes: endings of file names that ask for it.
        summary: one line for `ckptool formats`.
        carries: what it can hold, for `ckptool formats`.
        pickles: it holds a pickle, which whoever loads it will run.
        sniff: whether a file that starts with these bytes is one. The file itself is for formats that share a
            container, such as zip.
        open: read headers and pickles of one.
        draft: lay out a checkpoint as one; None for a format that is only read.
        loader: what loads it: `torch.load` with or without `weights_only`, or safetensors.
        mapped: torch can map it into memory (`mmap=True`).
        checksums: it has one for each record.
        archive: its pickles are in zip archives, as torch writes them since 1.6.
        kept_as: name of the format that it is written as, if nothing else is asked for; torch-zip without one.
        keeps_members: further files in it are kept, if it came as one.
        flat: it holds one set of tensors and nothing around them, not even a key.
    """

    name: str
    aliases: tuple[str, ...]
    suffixes: tuple[str, ...]
    summary: str
    carries: str
    pickles: bool
    sniff: Callable[[bytes, File], bool]
    open: Callable[[File], Checkpoint]
    draft: Callable[[Checkpoint], Draft] | None = None
    loader: Loader = "weights_only"
    mapped: bool = True
    checksums: bool = False
    archive: bool = False
    kept_as: str | None = None
    keeps_members: bool = False
    flat: bool = False


#: Bytes of tensors in a file of a directory, unless somebody wants another size. That of huggingface_hub.
SHARD_SIZE = 5 * 10**9


@record(frozen=True, slots=True)
class Split:
    """How a checkpoint is to be divided among the files of a directory.

    Attributes:
        most: bytes of tensors in a file, or None: as the checkpoint is divided already, else `SHARD_SIZE`.
        variant: a word in the names of the files (`fp16`), or None.
    """

    most: int | None = None
    variant: str | None = None


@record(frozen=True, slots=True)
class Wanted:
    """What is asked for of a folder in which each rank of a run wrote files of its own.

    Attributes:
        with_optimizer: all that was saved, beside the weights.
        parts: how parts go together where no file says so (see `ckptool.formats.trainers.plan`).
    """

    with_optimizer: bool = False
    parts: Plan = field(default_factory=Plan)


@record(frozen=True, slots=True)
class FolderFormat:
    """A directory of files that are one checkpoint.

    Attributes:
        name, aliases, summary, carries, pickles: as those of a `Format`.
        within: the file formats whose name, given with a directory as the target, asks for this one.
        fits: whether a directory is one.
        open: read headers and pickles of one.
        draft: lay out a checkpoint as one; None for a format that is only read.
        join: open one of a trainer, as asked for; None where there is nothing to ask for.
        of_ranks: each rank of a run wrote files of its own.
        loader, mapped, checksums, archive, kept_as: as those of a `Format`.
        variants: names of its files can hold a word (`fp16`).
        flat: as that of a `Format`.
    """

    name: str
    aliases: tuple[str, ...]
    summary: str
    carries: str
    pickles: bool
    within: tuple[str, ...]
    fits: Callable[[Folder], bool]
    open: Callable[[Folder], Checkpoint]
    draft: Callable[[Checkpoint, Split], Draft] | None
    loader: Loader = "weights_only"
    mapped: bool = True
    checksums: bool = False
    archive: bool = False
    kept_as: str | None = None
    variants: bool = False
    flat: bool = False
    join: Callable[[Folder, Wanted], Checkpoint] | None = None
    of_ranks: bool = False

    keeps_members: ClassVar[bool] = False
    suffixes: ClassVar[tuple[str, ...]] = ()


AnyFormat = Format | FolderFormat
