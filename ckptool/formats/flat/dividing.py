"""Writing shards: which tensors go into which file, and the index that says so. `sharded` describes the format."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from ...checkpoint import Checkpoint, around
from ...disk.composing import Piece, nested
from ...disk.files import Buffer, File
from ...errors import RuleError, counted, printable
from ...tensor import LazyTensor
from ...tree import ABSENT, Dict, Object
from .. import torch_zip
from ..base import SHARD_SIZE, Draft, Split
from ..beside_weights import FolderOrigin, carried_along
from . import safetensors

#: The note in a shard on the places of its keys.
PLACES = "ckptool.places"


def _total_size(root: Dict) -> int:
    """Bytes of all storages, as huggingface_hub counts them: each once, and whole."""
    return sum({_shared(t): t.storage.nbytes for _, t in root.entries if isinstance(t, LazyTensor)}.values())


def _shared(tensor: LazyTensor) -> Any:
    """The same for tensors that stay together. As in huggingface_hub, all that have no bytes are one to it."""
    return tensor.storage.identity if tensor.storage.nbytes else tensor.location


_UNITS = {"KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse_size(text: int | str) -> int:
    """Bytes, from a number or from "5GB": KB, MB, GB and TB are decimal, as in huggingface_hub.

    Raises:
        RuleError: it is no size.
    """
    found = re.fullmatch(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([kmgt]b)?\s*", str(text), re.IGNORECASE | re.ASCII)
    size = (
        int(float(found[1]) * _UNITS[found[2].upper()])
        if found and found[2]
        else int(found[1])
        if found and found[1].isdigit()
        else 0
    )
    if size <= 0:
        raise RuleError(
            f"{printable(str(text), 40)!r} is not a size", where="--max-shard-size", hint="--max-shard-size 5GB"
        )
    return size


def check_variant(word: str | None) -> str | None:
    """WORD, if it can be part of a file name.

    Raises:
        RuleError: it cannot.
    """
    if word is not None and not re.fullmatch(r"[\w-]+", word, re.ASCII):
        raise RuleError(
            f"{printable(word, 40)!r} is not a word for a file name", where="--variant", hint="--variant fp16"
        )
    return word


def draft_sharded(ckpt: Checkpoint, split: Split, kind: str) -> Draft:
    """Lay out the weights of a checkpoint as shards with their index; what else is in it is listed as lost."""
    inner = safetensors.draft_safetensors if kind == "safetensors" else torch_zip.draft_zip
    weights = ckpt.state_dict()
    content = around(ckpt, weights)
    entries = [(key, value) for key, value in weights.node.entries if isinstance(key, str)]
    odd = len(weights.node.entries) - len(entries)
    content += [counted(odd, "entry") + " whose key is not text"] if odd else []
    form: list[str] = []
    if kind == "safetensors":
        whole = safetensors.draft_safetensors(replace(ckpt, root=weights.node, at="", metadata={}))
        form += whole.form
        content += whole.content
        entries = safetensors.those_that_fit(entries)
    node = weights.node if isinstance(weights.node, Dict) else Dict([])
    if isinstance(weights.node, Object):
        form.append(f"that the weights are an object of class {printable(weights.node.class_name, 80)} is not recorded")
    stem = _stem(ckpt, kind)
    kept = None if split.most else _as_they_were(ckpt, entries, kind, split)
    place = {key: number for number, (key, _) in enumerate(entries)}
    shards = kept or _split(entries, split.most or SHARD_SIZE, stem, kind, split.variant)
    shards = {name: sorted(held, key=lambda pair: place[pair[0]]) for name, held in shards.items()}
    folder: dict[str, Sequence[Piece]] = {}
    dropped: set[str] = set()
    for number, (name, held) in enumerate(shards.items()):
        attributes = node.attributes if number == 0 else ABSENT
        metadata = dict(ckpt.metadata) if len(shards) == 1 else {}
        if ckpt.order_preserved and len(shards) > 1:
            metadata[PLACES] = json.dumps([place[key] for key, _ in held], separators=(",", ":"))
        root = Dict(held, node.ordered, attributes)
        part = Checkpoint(root, metadata=metadata, path=ckpt.path, at="", order_preserved=ckpt.order_preserved)
        if kind == "safetensors":
            part = replace(part, ties=ckpt.ties, tied_names=ckpt.tied_names)
            dropped |= set(safetensors.dropped_ties(part, dict(held)))
        folder[name] = inner(part).pieces
    if len(shards) > 1:
        weight_map = {key: name for name, held in shards.items() for key, _ in held if key not in dropped}
        total = _total_size(Dict(entries))
        index = {"metadata": {"total_size": total, **ckpt.metadata}, "weight_map": weight_map}
        folder[_index_name(stem, kind, split.variant)] = [Buffer(json.dumps(index, indent=2).encode())]
    beside, lines = carried_along(ckpt, folder)
    how = f"{counted(len(shards), 'shard')}{', divided as before' if kept else ''}, tensors copied as they are"
    return Draft([], (*form, *lines), tuple(content), how, {**beside, **folder}, checksums=kind == "bin")


def _split(
    entries: Sequence[tuple[str, Any]], most: int, stem: str, kind: str, variant: str | None
) -> dict[str, list[tuple[str, Any]]]:
    """Divide entries among files as huggingface_hub does."""
    shards: list[list[tuple[str, Any]]] = []
    current: list[tuple[str, Any]] = []
    filled = 0
    home: dict[Any, list[tuple[str, Any]]] = {}
    later: dict[Any, list[tuple[str, Any]]] = defaultdict(list)
    for key, value in entries:
        size = 0
        if isinstance(value, LazyTensor):
            shared = _shared(value)
            if shared in home:
                later[shared].append((key, value))
                continue
            size = value.storage.nbytes
            if size > most:
                shards.append([(key, value)])
                home[shared] = shards[-1]
                continue
            if filled + size > most:
                shards.append(current)
                current, filled = [], 0
            home[shared] = current
        current.append((key, value))
        filled += size
    if current or not shards:
        shards.append(current)
    for shared, shard in home.items():
        shard += later[shared]
    total = len(shards)
    return {_shard_name(stem, kind, variant, n, total): shard for n, shard in enumerate(shards, 1)}


def _as_they_were(
    ckpt: Checkpoint, entries: Sequence[tuple[str, Any]], kind: str, split: Split
) -> dict[str, list[tuple[str, Any]]] | None:
    """The division that the checkpoint came in, if it did, and no tensor comes from several shards."""
    if not isinstance(ckpt.origin, FolderOrigin) or not ckpt.format.startswith("sharded"):
        return None
    number = {str(ckpt.origin.folder.path / name): n for n, name in enumerate(ckpt.origin.parts)}
    shards: dict[int, list[tuple[str, Any]]] = defaultdict(list)
    last, found = 0, False
    for key, value in entries:
        if isinstance(value, LazyTensor):
            # what an adapter or another file adds to a tensor does not move it, and what is wholly new stays beside
            # the tensor before it
            files = {str(file.path) for file in nested(value.storage.source) if isinstance(file, File)}
            homes = {number[file] for file in files if file in number}
            if len(homes) > 1:
                return None
            found = found or bool(homes)
            last = homes.pop() if homes else last
        shards[last].append((key, value))
    if not found:
        return None
    total = len(shards)
    stem = _stem(ckpt, kind)
    return {_shard_name(stem, kind, split.variant, n, total): shards[old] for n, old in enumerate(sorted(shards), 1)}


#: Names that loaders look for whatever the format is: those of diffusers and of peft.
_LASTING = ("diffusion_pytorch_model", "adapter_model")


def _stem(ckpt: Checkpoint, kind: str) -> str:
    """What the names of the files begin with: the library's own word, if the checkpoint came under one that lasts."""
    parts = ckpt.origin.parts if isinstance(ckpt.origin, FolderOrigin) else ()
    lasting = next((stem for stem in _LASTING if parts and all(name.startswith(stem) for name in parts)), None)
    return lasting or ("model" if kind == "safetensors" else "pytorch_model")


def _shard_name(stem: str, kind: str, variant: str | None, number: int, total: int) -> str:
    stem += f".{variant}" if variant else ""
    return f"{stem}-{number:05d}-of-{total:05d}.{kind}" if total > 1 else f"{stem}.{kind}"


def _index_name(stem: str, kind: str, variant: str | None) -> str:
    return f"{stem}.{kind}.index.{variant}.json" if variant else f"{stem}.{kind}.index.json"
