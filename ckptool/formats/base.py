"""What a format is: a record of functions, and the draft of a file that it makes before a byte is written."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..checkpoint import Checkpoint
from ..files import File, Piece


@dataclass(frozen=True, slots=True)
class Draft:
    """A file as a format would write it.

    Attributes:
        pieces: its bytes, in order.
        form: what changes in form, though no content is lost ("2 tied keys are stored twice").
        content: what would be lost ("optimizer (482 tensors)").
        how: how the bytes come about, for the receipt ("patched in place of the old pickle").
    """

    pieces: list[Piece]
    form: tuple[str, ...] = ()
    content: tuple[str, ...] = ()
    how: str = ""

    @property
    def nbytes(self) -> int:
        """Exact size of the file."""
        return sum(piece.length for piece in self.pieces)


@dataclass(frozen=True, slots=True)
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
