"""Sharded weights as Hugging Face's libraries write them: files that are each a checkpoint, and an index.

    model-00001-of-00002.safetensors      or pytorch_model-00001-of-00002.bin, each with a part of the tensors
    model-00002-of-00002.safetensors
    model.safetensors.index.json          {"metadata": {"total_size": bytes, …}, "weight_map": {key: file, …}}

Weights that fit into one file are `model.safetensors` without an index. A variant (`fp16`) goes before the last ending:
`model.fp16-00001-of-00002.safetensors`, `model.safetensors.index.fp16.json`.

Split as huggingface_hub 1.x does it (serialization/_base.py): keys in their order, a new file when the next tensor does
not fit; one that is larger than a file has one of its own, put before the file that is being filled; tensors of one
storage stay together, in the file of the first, and count once, with the whole storage. Since that changes the order,
each file notes the places of its keys (`ckptool.places` in its text metadata), and reading restores them.

Each shard is opened and laid out by the format of its own; nothing here knows what is in one. An index is believed only
as far as its shards bear it out.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...checkpoint import Checkpoint
from ...disk.documents import read_json
from ...disk.files import File, is_there, shell_path
from ...disk.inside import Folder
from ...disk.remote import FIRST
from ...errors import Ambiguous, CheckpointError, Malformed, UnknownFormat, counted, printable
from ...records import record
from ...tensor import TensorColumn
from ...tree import ABSENT, Dict, Pairs, key_column, value_column
from ..base import FolderFormat
from ..beside_weights import origin_in
from ..trainers.overwritten import opened_each
from ..trainers.pickled import open_part
from ..trainers.zero_files import save_beside
from . import safetensors
from .dividing import PLACES, draft_sharded

_LARGEST_INDEX = 100 << 20
#: Bytes of a header of safetensors: for all of it, and for each tensor besides its key.
_HEAD, _OF_A_TENSOR = 1 << 10, 100
_INDEX = re.compile(r"(?P<stem>.+)\.(?P<kind>safetensors|bin)\.index(?:\.(?P<variant>[\w-]+))?\.json\Z", re.ASCII)
_SHARD = re.compile(
    r"(?P<stem>.+)-(?P<number>\d{5,6})-of-(?P<total>\d{5,6})(?P<rest>(?:\.[\w-]+)?\.(?:safetensors|bin))\Z"
)
#: Names that weights in one file have, without ending and variant. Any other `.bin` may be anything.
_STEMS = (
    "model",
    "pytorch_model",
    "diffusion_pytorch_model",
    "adapter_model",
    "open_clip_model",
    "open_clip_pytorch_model",
)
_SINGLE = re.compile(rf"(?P<stem>{'|'.join(_STEMS)})(?:\.(?P<variant>[\w-]+))?\.(?P<kind>safetensors|bin)\Z", re.ASCII)


@record(frozen=True, slots=True)
class _Weights:
    """One set of weights in a directory: an index, numbered shards without one, or a single file."""

    name: str  # the file to name when this set is meant
    kind: str
    variant: str | None
    files: tuple[str, ...]  # () if the index says
    missing: tuple[str, ...] = ()

    @property
    def is_index(self) -> bool:
        return not self.files


def is_index(name: str) -> bool:
    """Whether a file name is that of an index."""
    return _INDEX.match(name) is not None


def shard_of(name: str) -> str:
    """What a file of this name is a part of, in words; "" if nothing says that it is one."""
    match = _SHARD.match(name)
    if match is None or int(match["total"]) < 2:
        return ""
    return f"shard {int(match['number']):,} of {int(match['total']):,} of a checkpoint in several files"


def missing_beside(path: Path) -> list[str]:
    """The names of the other shards of the checkpoint that the shard at PATH is one of, that are not beside it."""
    match = _SHARD.match(path.name)
    if match is None:
        return []
    stem, total, rest = match["stem"], match["total"], match["rest"]
    names = (f"{stem}-{n:0{len(match['number'])}}-of-{total}{rest}" for n in range(1, min(int(total), 100_000) + 1))
    return [name for name in names if not is_there(path.with_name(name))]


def _weights_in(folder: Folder) -> list[_Weights]:
    """The sets of weights in a directory, those that a loader would take first at the front."""
    found = [
        _Weights(name, match["kind"], match["variant"], ()) for name in folder.names if (match := _INDEX.match(name))
    ]
    indexed = {one.kind for one in found}
    numbered: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    singles = []
    for name in folder.names:
        shard, single = _SHARD.match(name), _SINGLE.match(name)
        if shard and shard["rest"].rpartition(".")[2] not in indexed:
            numbered[shard["stem"], shard["total"], shard["rest"]].append(name)
        elif single and not shard:
            singles.append(_Weights(name, single["kind"], single["variant"], (name,)))
    for (stem, total, rest), names in numbered.items():
        wanted = [f"{stem}-{n:0{len(total)}}-of-{total}{rest}" for n in range(1, min(int(total), 100_000) + 1)]
        missing = tuple(name for name in wanted if name not in names)
        variant, _, kind = rest.lstrip(".").rpartition(".")
        found.append(_Weights(names[0], kind, variant or None, tuple(names), missing))
    found += singles
    if not found:  # any one safetensors file can only be the weights
        lone = [name for name in folder.names if name.endswith(".safetensors")]
        found += [_Weights(lone[0], "safetensors", None, (lone[0],))] if len(lone) == 1 else []
    return sorted(found, key=lambda one: (one.kind != "safetensors", one.variant is not None))


def fits(folder: Folder, kind: str) -> bool:
    """Whether the weights in a directory that a loader would take are of a kind: "safetensors" or "bin"."""
    found = _weights_in(folder)
    return bool(found) and found[0].kind == kind


def open_sharded(folder: Folder, kind: str, index: str | None = None) -> Checkpoint:
    """Open sharded weights: the headers and pickles of all shards are read, no tensor is.

    Args:
        folder: the directory.
        kind: "safetensors" or "bin".
        index: the index to follow, where the directory has several.
    """
    sets = [one for one in _weights_in(folder) if one.kind == kind and index in (None, one.name)]
    plain = [one for one in sets if one.variant is None] or sets
    if not plain:
        raise UnknownFormat(f"holds no sharded weights in {kind} files", where=folder.path)
    if len(plain) > 1:
        raise Ambiguous(
            "holds several sets of weights; say which one:",
            where=folder.path,
            evidence=[printable(one.name, 100) for one in plain[:8]],
            hint=f"name the file instead of the folder: {shell_path(folder.path / plain[0].name)}",
        )
    chosen = plain[0]
    others = [printable(one.name, 60) for one in _weights_in(folder) if one.name != chosen.name]
    warnings = [f"the folder also holds other weights, which are not read: {', '.join(others[:4])}"] if others else []
    warnings += save_beside(folder)
    weight_map: dict[str, str] | None = None
    metadata: dict[str, Any] = {}
    text: dict[str, str] = {}
    if chosen.is_index:
        weight_map, metadata = _read_index(folder, chosen)
        text = {key: value for key, value in metadata.items() if isinstance(value, str)}
        names: Sequence[str] = list(dict.fromkeys(weight_map.values()))
    else:
        if chosen.missing:
            raise Malformed(
                f"lacks {len(chosen.missing):,} of {counted(len(chosen.files) + len(chosen.missing), 'shard')}:",
                where=folder.path,
                evidence=[printable(name, 100) for name in chosen.missing[:5]],
                hint="the download or copy did not finish; fetch the missing files",
            )
        names = chosen.files
        if len(names) > 1:
            warnings.append("its shards have no index; all of them were read")
    names = sorted(names)
    folder.expect(_heads(names, weight_map))
    files = {name: folder.file(name, chosen.name) for name in names}
    parts = opened_each(files, lambda file: _open_part(file, kind), metadata.get("total_size"))
    tied = _tied(parts)
    _check(folder, chosen, weight_map, parts, tied)
    root, places_known = _joined(parts)
    for part in parts.values():
        text.update({key: value for key, value in part.metadata.items() if key != PLACES})
        warnings += [line for line in part.warnings if "order of its keys" not in line]
    if not places_known:
        warnings.append("the order of its keys is that of its shards; how they were saved is not known")
    origin = origin_in(folder, parts, frozenset([*names, chosen.name]))
    return Checkpoint(
        root,
        SAFETENSORS.name if kind == "safetensors" else BIN.name,
        folder.path,
        sum(part.nbytes for part in parts.values()),
        metadata=text,
        origin=origin,
        order_preserved=places_known,
        warnings=(*warnings, *origin.lines()),
        lost_content=tuple(f"{name}: {line}" for name, part in parts.items() for line in part.lost_content),
        lost_form=tuple(f"{name}: {line}" for name, part in parts.items() for line in part.lost_form),
        tied_names=tied,
        folder=folder,
    )


def open_index(folder: Folder, name: str) -> Checkpoint:
    """Open the sharded weights that one index names, where a directory has several."""
    match = _INDEX.match(name)
    assert match is not None
    return open_sharded(folder, match["kind"], name)


def _read_index(folder: Folder, chosen: _Weights) -> tuple[dict[str, str], dict[str, Any]]:
    file = folder.file(chosen.name, chosen.name)
    if file.size > _LARGEST_INDEX:
        raise Malformed(f"has {file.size:,} bytes; an index has at most {_LARGEST_INDEX:,}", where=file.path)
    index = read_json(file.read(0, file.size), file.path)
    weight_map = index.get("weight_map") if isinstance(index, dict) else None
    metadata = index.get("metadata") if isinstance(index, dict) else None
    if not isinstance(weight_map, dict) or not all(isinstance(name, str) for name in weight_map.values()):
        raise Malformed("has no weight_map of keys to file names", where=file.path)
    if not weight_map:
        raise Malformed("has an empty weight_map", where=file.path)
    endings = (".safetensors",) if chosen.kind == "safetensors" else (".bin", ".pt", ".pth")
    for name in dict.fromkeys(weight_map.values()):
        if not name.endswith(endings):
            raise Malformed(f"names {printable(repr(name), 120)}, which is not a {endings[0]} file", where=file.path)
    return weight_map, metadata if isinstance(metadata, dict) else {}


def _open_part(file: File, kind: str) -> Checkpoint:
    """The checkpoint in one shard: a flat dict."""
    try:
        part = safetensors.FORMAT.open(file) if kind == "safetensors" else open_part(file)
    except CheckpointError as error:
        error.where = error.where or str(file.path)
        raise
    if not isinstance(part.root, Dict) or not all(isinstance(key, str) for key in key_column(part.root.entries)):
        raise Malformed("is not a shard: it holds more than a flat dict of tensors", where=file.path)
    return part


def _tied(parts: dict[str, Checkpoint]) -> tuple[str, ...]:
    """The keys that are in no shard, and by a note in one are another key's tensor. A note on a key that another shard
    holds counts for nothing."""
    if not any(part.tied_names for part in parts.values()):
        return ()
    stored = {key for part in parts.values() for key, _ in part.root.entries if key not in part.tied_names}
    for part in parts.values():
        if any(key in stored for key in part.tied_names):
            part.root.entries = [
                pair for pair in part.root.entries if pair[0] not in part.tied_names or pair[0] not in stored
            ]
    return tuple(key for part in parts.values() for key in part.tied_names if key not in stored)


def _heads(names: Sequence[str], weight_map: dict[str, str] | None) -> dict[str, int]:
    """How many bytes the header of each shard may have, going by the keys that the index says are in it."""
    heads = dict.fromkeys(names, _HEAD if weight_map else FIRST)
    for key, name in (weight_map or {}).items():
        heads[name] += len(key) + _OF_A_TENSOR
    return heads


def _check(
    folder: Folder,
    chosen: _Weights,
    weight_map: dict[str, str] | None,
    parts: dict[str, Checkpoint],
    tied: Sequence[str],
) -> None:
    """Refuse keys in two shards, and an index that does not say what its shards hold."""
    holder: dict[str, str] = {}
    for name, part in parts.items():
        keys = key_column(part.root.entries)
        here = dict.fromkeys(map(str, keys), name)
        if len(here) < len(keys) or not holder.keys().isdisjoint(here):
            again = next(key for key, count in Counter([*holder, *keys]).items() if count > 1)
            raise Malformed(
                f"the key {printable(repr(str(again)), 120)} is in two shards:",
                where=folder.path,
                evidence=[printable(holder.get(again, name), 100), printable(name, 100)],
            )
        holder |= here
    if weight_map is None or weight_map == holder:
        return
    evidence = [
        f"{printable(key, 80)}: {printable(name, 60)} by the index, "
        + (f"really in {printable(holder[key], 60)}" if key in holder else "but not there")
        for key, name in weight_map.items()
        if holder.get(key) != name
    ]
    evidence += [
        f"{printable(key, 80)}: in {printable(name, 60)}, but not in the index"
        for key, name in holder.items()
        if key not in weight_map and key not in tied
    ]
    if evidence:
        raise Malformed(
            f"the index disagrees with its shards about {counted(len(evidence), 'key')}:",
            where=folder.path / chosen.name,
            evidence=evidence[:6] + ([f"… and {len(evidence) - 6:,} more"] if len(evidence) > 6 else []),
            hint="if the shards are right, move the index away: numbered shards are read without one",
        )


def _joined(parts: dict[str, Checkpoint]) -> tuple[Dict, bool]:
    """One state dict of all shards, in the order that they note, and whether that is known."""
    keys = [key for part in parts.values() for key in key_column(part.root.entries)]
    values = TensorColumn.joining([value_column(part.root.entries) for part in parts.values()])
    attributes = next((p.root.attributes for p in parts.values() if p.root.attributes is not ABSENT), ABSENT)
    ordered = any(part.root.ordered for part in parts.values())
    places: list[int] = []
    for part in parts.values():
        try:
            noted = read_json(part.metadata.get(PLACES, "null"))
        except Malformed:
            noted = None
        if part.order_preserved and isinstance(noted, list) and all(type(n) is int for n in noted):
            places += noted
    if sorted(places) == list(range(len(keys))):
        order = sorted(range(len(keys)), key=places.__getitem__)
        return Dict(Pairs([keys[at] for at in order], [values[at] for at in order]), ordered, attributes), True
    lone = next(iter(parts.values())) if len(parts) == 1 else None
    return Dict(Pairs(keys, values), ordered, attributes), lone is not None and lone.order_preserved


SAFETENSORS = FolderFormat(
    name="sharded-safetensors",
    aliases=("shards", "sharded", "hf"),
    summary="a directory of safetensors files and an index, as Hugging Face's libraries write it",
    carries="what safetensors can hold",
    pickles=False,
    within=("safetensors",),
    fits=lambda folder: fits(folder, "safetensors"),
    open=lambda folder: open_sharded(folder, "safetensors"),
    draft=lambda ckpt, split: draft_sharded(ckpt, split, "safetensors"),
    loader="safetensors",
    kept_as="safetensors",
    variants=True,
    flat=True,
)

BIN = FolderFormat(
    name="sharded-bin",
    aliases=("bin",),
    summary="a directory of torch zip archives (.bin) and an index, as Hugging Face's libraries wrote it before",
    carries="one flat set of tensors with what torch-zip can hold of them",
    pickles=True,
    within=("torch-zip", "torch-legacy"),
    fits=lambda folder: fits(folder, "bin"),
    open=lambda folder: open_sharded(folder, "bin"),
    draft=lambda ckpt, split: draft_sharded(ckpt, split, "bin"),
    archive=True,
    variants=True,
    flat=True,
)
