"""The way from a checkpoint to a file or folder: a plan with exact sizes and losses, then its writing."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..checkpoint import Checkpoint, settle_ties
from ..disk.addresses import Url, as_path, is_remote
from ..disk.checksums import Damaged
from ..disk.composing import Piece, Tally, files_in, is_computed, patched_input, room_for, tallies_in, uncopied
from ..disk.files import File, FileRange, StrPath, beside, is_folder, shell_path
from ..disk.journals import Journaled, has_journal
from ..disk.targets import check_target, leftover_notes, replacing, require_room
from ..disk.writing import write_pieces
from ..drawing.sizes import size_text
from ..errors import CannotCarry, CheckpointError, Malformed, OutputExists, RuleError, counted
from ..inert.allowed import beyond_plain_data
from ..lazy import later
from . import torch_zip
from ._checks import Checks
from ._choice import split_of, target_format
from ._refusals import live_objects, loss_of_content, require_proportion, require_readable
from .base import Draft, Format
from .beside_weights import is_part, left_beside, may_go
from .given import in_memory, is_generated, spooled

if TYPE_CHECKING:
    from ..disk import folders, patching, together
    from ..ranks import Group
else:  # one process that writes one file needs neither
    folders, together = later("..disk.folders", __package__), later("..disk.together", __package__)
    patching = later("..disk.patching", __package__)


@dataclass(frozen=True, slots=True, repr=False)
class Plan:
    """What will be written, before a byte is. Also the receipt, once it is.

    Attributes:
        path: the target, a file or a directory.
        format: name of its format.
        nbytes: its exact size; of a directory, that of all its files.
        steps: what the passes did, a line each.
        form: what changes in form, without loss of content.
        content: content that is lost, as was allowed.
        objects: classes beyond plain data that are carried, as was asked for, with their numbers.
        how: how the bytes come about.
        checks: the checksums of the source that are compared while it is written.
        replaced: whether a file in an old directory at `path` may go, though no new one takes its place.
    """

    path: Path
    format: str
    nbytes: int
    steps: tuple[str, ...]
    form: tuple[str, ...]
    content: tuple[str, ...]
    objects: dict[str, int]
    how: str
    draft: Draft
    checks: Checks
    replaced: Callable[[str], bool] = is_part

    def __repr__(self) -> str:
        return f"<Plan {str(self.path)!r}: {self.format}, {size_text(self.nbytes)}, {self.how}>"

    @property
    def damaged(self) -> list[str]:
        """Tensors that were written, as was allowed, though their checksums are wrong. Known once they are written."""
        return self.checks.lines()

    def as_json(self) -> dict[str, Any]:
        """The receipt as plain data."""
        return {
            "path": str(self.path),
            "format": self.format,
            "bytes": self.nbytes,
            "steps": list(self.steps),
            "form": list(self.form),
            "lost": list(self.content),
            "damaged": self.damaged,
            "objects": self.objects,
            "how": self.how,
        }


def plan(
    ckpt: Any,
    path: StrPath,
    *,
    format: str | None = None,
    allow_loss: bool = False,
    keep_objects: bool = False,
    for_torch: str | None = None,
    max_shard_size: int | str | None = None,
    variant: str | None = None,
) -> Plan:
    """Work out what writing CKPT to PATH would give, without writing.

    Args:
        ckpt: a Checkpoint; a dict of tensors (of torch, arrays of numpy, or `LazyTensor`s out of files); or a generator
            of pairs (key, tensor), which wait in the folder of PATH, so that memory holds one at a time.
        path: the target; its suffix chooses the format if FORMAT does not.
        format: name of the format.
        allow_loss: accept that the format cannot hold all content, and that checksums of the source are wrong.
        keep_objects: write objects of any class back to a pickle as they came.
        for_torch: "torch==1.6" refuses what that version cannot load.
        max_shard_size: bytes of tensors in each file of a directory, as a number or as "5GB", "500MB". Without it, what
            is sharded stays as it is divided, and what is not is divided by 5 GB.
        variant: a word in the file names of sharded weights: "fp16".

    Raises:
        CannotCarry: content would be lost, an object would be written that may run code when it is loaded, FOR_TORCH
            cannot load it, or it would be out of all proportion to its source.
    """
    if not isinstance(ckpt, Checkpoint):
        ckpt = spooled(ckpt, path) if is_generated(ckpt) else in_memory(ckpt)
    split = split_of(max_shard_size, variant)
    chosen = target_format(ckpt, path, format, split)
    if chosen.draft is None:
        raise RuleError(f"ckptool reads {chosen.name} and does not write it", where="--to", hint="ckptool formats")
    if ckpt.sealed and chosen.pickles:
        out = beside(ckpt.where, "weights", ".safetensors")
        raise CannotCarry(
            ckpt.sealed,
            where=ckpt.where,
            hint=f"ckptool extract-weights {shell_path(ckpt.where)} {out}   # takes the weights out of it",
        )
    if for_torch is not None:
        require_readable(ckpt, chosen, for_torch)
    ckpt = settle_ties(ckpt)
    try:
        draft = chosen.draft(ckpt) if isinstance(chosen, Format) else chosen.draft(ckpt, split)
    except CheckpointError as error:
        error.where = error.where or ckpt.where
        raise
    require_proportion(ckpt, chosen, draft)
    content = (
        *draft.content,
        *ckpt.lost_content,
        *(() if chosen.keeps_members else torch_zip.extra_members(ckpt)),
    )
    if content and not allow_loss:
        raise loss_of_content(ckpt, chosen, content)
    objects = beyond_plain_data(ckpt.root) if chosen.pickles else {}
    if objects and not keep_objects:
        raise live_objects(ckpt, dict(objects))
    form = (*draft.form, *ckpt.lost_form, *(left_beside(ckpt) if not draft.folder else ()))
    if not ckpt.order_preserved:
        form = (*form, "the keys stand in the order of the old header; how they were saved is not known")
    place = as_path(path)
    replaced = may_go(ckpt, place) if draft.folder else is_part
    how, checks = _how(draft), Checks(ckpt, allow_loss=allow_loss)
    draft = replace(
        draft,
        pieces=checks.among(draft.pieces, carried=draft.checksums),
        folder={name: checks.among(pieces, carried=draft.checksums) for name, pieces in draft.folder.items()},
    )
    return Plan(
        as_path(path),
        chosen.name,
        draft.nbytes,
        ckpt.history,
        form,
        content,
        dict(objects),
        how,
        draft,
        checks,
        replaced,
    )


def _how(draft: Draft) -> str:
    """How the bytes come about. What is computed is not copied as it is."""
    computed = any(map(is_computed, uncopied(chain(draft.pieces, *draft.folder.values()))))
    return draft.how.replace("copied as they are", "computed or copied") if computed else draft.how


def save(
    ckpt: Any,
    path: StrPath,
    *,
    format: str | None = None,
    overwrite: bool = False,
    backup: str | None = None,
    allow_loss: bool = False,
    keep_objects: bool = False,
    for_torch: str | None = None,
    max_shard_size: int | str | None = None,
    variant: str | None = None,
    patch: bool = False,
    progress: Callable[[int], None] | None = None,
) -> Plan:
    """Write a checkpoint (or a dict of torch tensors) to PATH, whole or not at all.

    The file that the checkpoint came from may be the target: it is replaced when the new one is complete and on disk.

    Args:
        ckpt: a Checkpoint, a dict of torch tensors, a generator of pairs (key, tensor), or a torch.nn.Module. A
            generator is asked for the next tensor when the last one is on disk. Of tensors that the ranks of a run
            share (`DTensor`), every rank calls this alike and writes its part of what one process would write.
        path: where to write, as for `plan`.
        format: the format to write, as for `plan`.
        allow_loss: write even if content is lost, as for `plan`.
        keep_objects: keep objects that may run code when they are loaded, as for `plan`.
        for_torch: refuse what this version cannot load, as for `plan`.
        max_shard_size: the size of a shard, as for `plan`.
        variant: the variant of a folder of shards, as for `plan`.
        overwrite: allow PATH to exist.
        backup: suffix under which an old PATH is kept.
        patch: change the bytes that differ where they stand, in the file that CKPT came from. Until it is done, other
            programs may see a part of the change; a run that is cut off leaves a journal that takes it back.
        progress: called with the number of bytes, each time some were written.

    Returns:
        What was written, with what changed in form and what was lost.

    Raises:
        CannotCarry: as `plan`.
        OutputExists, Unwritable: the target may not be, or cannot be, written.
        RuleError: PATCH is asked for, and what changes does not fit into its place.
        Malformed: a checksum of the source is wrong, and ALLOW_LOSS is false.
        RankFailed: another rank failed, and says why; there is no target then, or the old one.
    """
    planned = partial(
        plan,
        path=path,
        format=format,
        allow_loss=allow_loss,
        keep_objects=keep_objects,
        for_torch=for_torch,
        max_shard_size=max_shard_size,
        variant=variant,
    )
    written = partial(write, overwrite=overwrite, backup=backup, patch=patch, progress=progress)
    if is_generated(ckpt) and not (is_remote(path) or is_folder(path)):
        check_target(path, overwrite=overwrite, backup=backup)  # before it is asked for its tensors
    if not isinstance(ckpt, Checkpoint) and "torch" in sys.modules:  # else nothing in it is of torch
        from ..sharding.placing import has_sharded
        from .saving_shared import save_shared

        ckpt = ckpt.state_dict() if hasattr(ckpt, "state_dict") else ckpt
        if has_sharded(ckpt):
            return save_shared(ckpt, planned, written)
    receipt = planned(ckpt)
    written(receipt)
    return receipt


def check(planned: Plan, *, overwrite: bool = False, backup: str | None = None, patch: bool = False) -> None:
    """Refuse a target that cannot or must not be written or patched, or whose backup cannot be kept."""
    if patch:
        _check_patch(planned, backup)
        return
    if isinstance(planned.path, Url):
        from ..disk.uploads import check_upload, check_upload_folder

        check_store = check_upload_folder if planned.draft.folder else check_upload
        check_store(planned.path, overwrite=overwrite, backup=backup)
        return
    if not planned.draft.folder:
        check_target(planned.path, overwrite=overwrite, backup=backup)
        return
    names, replaced = list(planned.draft.folder), planned.replaced
    folders.check_folder(planned.path, overwrite=overwrite, names=names, replaced=replaced, backup=backup)


def write(
    planned: Plan,
    *,
    overwrite: bool = False,
    backup: str | None = None,
    patch: bool = False,
    progress: Callable[[int], None] | None = None,
    ranks: Group | None = None,
) -> list[str]:
    """Carry out a plan. Returns what a person should know: whether a run that was cut off was taken up, how many values
    casts changed beyond rounding, and how fast each of several ranks was.

    Args:
        planned: what to write.
        overwrite, backup, patch, progress: see `save`.
        ranks: this process and others that carry out the same plan together; each writes a part of it.

    Raises:
        RankFailed: another rank failed.
        OutputExists, Unwritable: the target may not be, or cannot be, written.
        Malformed: a checksum of the source is wrong, and the plan does not allow for that.
    """
    tallies = tallies_in(chain(planned.draft.pieces, *planned.draft.folder.values()))
    for tally in tallies:
        tally.clear()
    planned.checks.clear()
    try:
        if patch:
            if ranks is not None:
                raise RuleError("several ranks write a new file, and patch none", where="--patch", hint=patching.PLAIN)
            notes = _patch(planned, backup, progress)
        elif ranks is None:
            notes = _write(planned, overwrite, backup, progress)
        else:
            notes = _write_together(planned, overwrite, backup, progress, ranks, tallies)
    except Damaged as error:
        raise planned.checks.refusal(error) from None
    return notes + leftover_notes(planned.path) + [line for tally in tallies for line in tally.lines()]


def _write(planned: Plan, overwrite: bool, backup: str | None, progress: Callable[[int], None] | None) -> list[str]:
    pieces, folder = planned.draft.pieces, planned.draft.folder
    inputs = files_in(chain(pieces, *folder.values()))
    if isinstance(planned.path, Url):
        _upload(planned, inputs, overwrite, backup, progress)
        return []
    replaced = _among(inputs, planned.path)
    as_before = [file for file in replaced if isinstance(file, Journaled) and file.is_unchanged()]
    done, notes = _settle(planned.path) if overwrite else (False, [])
    for journaled in as_before if done else ():
        journaled.note_settled()
    unchanged = partial(_require_unchanged, inputs, replaced)
    if folder:
        notes += folders.replacing_folder(
            planned.path,
            folder,
            overwrite=overwrite,
            backup=backup,
            replaced=planned.replaced,
            progress=progress,
            check=unchanged,
        )
        planned.checks.finish(chain(*folder.values()))
    else:
        mode = _mode_of(pieces)
        size, base = room_for(pieces), patched_input(pieces)
        known = None if base is not None else size  # where blocks are shared, next to nothing is needed
        with replacing(planned.path, size=known, overwrite=overwrite, backup=backup, mode=mode) as out:
            write_pieces(out, pieces, progress, unshared=lambda: require_room(out.fileno(), size, planned.path))
            unchanged()
    for file in replaced:
        file.note_replaced()
    return notes


def settled(path: StrPath) -> list[str]:
    """End a patch of the file at PATH that was cut off, before that is read and written. Returns what was done.

    A journal that is not of this file is named, and left alone.
    """
    return _settle(path)[1]


def _settle(path: StrPath) -> tuple[bool, list[str]]:
    """End a patch as `settled`. Returns whether there was one to end, and what was done or is strange."""
    if is_remote(path) or not has_journal(path):
        return False, []
    try:
        done = patching.settle(path)
    except RuleError as strange:
        return False, [strange.what]
    return bool(done), [f"a patch was cut off before: {done}"] if done else []


def _check_patch(planned: Plan, backup: str | None) -> None:
    """Refuse a patch that cannot be."""
    what = None
    if backup is not None:
        what = "with a backup the file is written anew, and not patched"
    elif isinstance(planned.path, Url) or planned.draft.folder:
        what = "a file on a disk can be patched, and not a folder or what is in a store"
    if what is not None:
        raise RuleError(what, where="--patch", hint=patching.PLAIN)
    patching.check_patch(planned.path, planned.draft.pieces, files_in(planned.draft.pieces))


def _patch(planned: Plan, backup: str | None, progress: Callable[[int], None] | None) -> list[str]:
    _check_patch(planned, backup)
    pieces = planned.draft.pieces
    inputs = files_in(pieces)
    unchanged = partial(_require_unchanged, inputs, _among(inputs, planned.path))
    changed = patching.patch(planned.path, pieces, inputs, progress=progress, check=unchanged)
    return [f"{changed:,} of {planned.nbytes:,} bytes changed in place"]


def _upload(
    planned: Plan, inputs: Sequence[File], overwrite: bool, backup: str | None, progress: Callable[[int], None] | None
) -> None:
    """Write to an object store."""
    from ..disk.uploads import upload, upload_folder

    path, draft = planned.path, planned.draft
    assert isinstance(path, Url)
    unchanged = partial(_require_unchanged, inputs, [])
    options: dict[str, Any] = {"overwrite": overwrite, "backup": backup, "progress": progress, "check": unchanged}
    if draft.folder:
        upload_folder(path, draft.folder, replaced=planned.replaced, **options)
        planned.checks.finish(chain(*draft.folder.values()))
    else:
        upload(path, draft.pieces, **options)


def _write_together(
    planned: Plan,
    overwrite: bool,
    backup: str | None,
    progress: Callable[[int], None] | None,
    ranks: Group,
    tallies: Sequence[Tally],
) -> list[str]:
    draft = planned.draft
    if isinstance(planned.path, Url):
        what = "several ranks write to a disk that they share, and not to a store"
        raise RuleError(what, where=planned.path, hint="name a folder on it, or start one process")
    inputs = files_in(chain(draft.pieces, *draft.folder.values()))
    replaced = _among(inputs, planned.path)
    notes, shares = together.write_together(
        planned.path,
        draft.folder or {None: draft.pieces},
        ranks,
        inputs=inputs,
        overwrite=overwrite,
        backup=backup,
        replaced=planned.replaced,
        mode=_mode_of(draft.pieces),
        progress=progress,
        check=partial(_require_unchanged, inputs, replaced),
        heard=lambda: [tally.counts() for tally in tallies],
    )
    if ranks.leads:  # what an earlier run had finished
        planned.checks.finish(chain(draft.pieces, *draft.folder.values()))
    for share in shares:
        if share.rank != ranks.rank:
            for tally, counts in zip(tallies, share.heard, strict=True):
                tally.add(*counts)
    for file in replaced:
        file.note_replaced()
    return [*notes, rates(shares)]


def rates(shares: Sequence[together.Share]) -> str:
    """How fast each of several ranks was, in a line."""
    from ..ranks import balance

    each = [f"{size_text(round(one.bytes / one.seconds)) if one.bytes else '0 bytes'}/s" for one in shares]
    shown = each if len(each) <= _MOST_RATES else [*each[:_MOST_RATES], "…"]
    heaviest = balance([one.bytes for one in shares])
    return f"{counted(len(shares), 'rank')}: {', '.join(shown)}; the heaviest had {heaviest:.2f} x the mean"


_MOST_RATES = 16


def _mode_of(pieces: Sequence[Piece]) -> int:
    """Permissions for a new file: as cp, those of what it is copied from."""
    return next((piece.file.mode & 0o777 for piece in pieces if isinstance(piece, FileRange)), 0o666)


def _among(inputs: Sequence[File], path: Path) -> list[File]:
    """Those of INPUTS that a new file or folder at PATH replaces."""
    real = Path(os.path.realpath(path))
    return [file for file in inputs if real in (own := Path(os.path.realpath(file.path)), own.parent)]


def _require_unchanged(inputs: Sequence[File], replaced: Sequence[File]) -> None:
    """Refuse to give the target its name if an input changed while it was copied, or another run has replaced it.

    Without this, of two runs of `--in-place` on one file the second would undo what the first has done.
    """
    for file in inputs:
        if not file.is_unchanged():
            hint = "run the command again, when nothing writes to it"
            raise Malformed("changed while it was being copied", where=file.path, hint=hint)
    for file in replaced:
        if not file.is_at_its_path():
            raise OutputExists(
                "was replaced by another program meanwhile", where=file.path, hint="run the command again"
            )
