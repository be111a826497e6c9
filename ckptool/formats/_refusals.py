"""What is said when a checkpoint cannot be written as it is: what would be lost, or what would run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..checkpoint import Checkpoint
from ..disk.composing import nested
from ..disk.files import File
from ..disk.paths import beside, shell_path, shell_quote
from ..errors import CannotCarry, printable
from ..tensor import LazyTensor
from .base import AnyFormat, Draft
from .torch_versions import FIRST_ZIP, impossible, parse_target
from .zip.archive import Inflated

#: Kind of tensor -> the option that makes dense ones of it.
_DECODED = {"sparse": "--to-dense", "quantized": "--dequantize"}
#: An output may be so many times as large as what it is made from, or so large in any case.
MOST_TIMES = 256
MOST_ALWAYS = 1 << 30


def loss_of_content(ckpt: Checkpoint, chosen: AnyFormat, content: tuple[str, ...]) -> CannotCarry:
    """A format that cannot hold all of CKPT, with the ways on."""
    found = ckpt.state_dicts()
    kinds = {other.kind.split("_")[0] for _, other in ckpt.other_tensors()} if not chosen.pickles else set()
    ways = [f"{option}   # makes dense tensors of {kind} ones" for kind, option in _DECODED.items() if kind in kinds]
    if not chosen.pickles and any(one.dtype.name == "complex128" for one in _tensors(ckpt)):
        ways.append("--cast complex64   # keeps complex numbers, with half of the digits")
    hint = "; ".join([*ways, "--allow-loss writes the rest"]) if ways else "--allow-loss   # writes the rest"
    if not chosen.pickles and len(found) == 1 and (found[0].path or found[0].model is not None):
        place = f" at {printable(found[0].path, 60)}" if found[0].path else ""
        hint = f"--extract   # keeps the weights{place} only"
        hint += "" if ckpt.sealed or found[0].model is not None else "; a .pth file keeps everything"
    return CannotCarry(
        f"{chosen.name} cannot hold all of it; these would be lost:",
        where=ckpt.where,
        evidence=[*content[:12], *([f"… and {len(content) - 12:,} more"] if len(content) > 12 else [])],
        hint=hint,
    )


def _tensors(ckpt: Checkpoint) -> Iterator[LazyTensor]:
    return (tensor for weights in ckpt.state_dicts() for tensor in weights.tensors.values())


def live_objects(ckpt: Checkpoint, objects: dict[str, int]) -> CannotCarry:
    """Objects that may run code when a pickle with them is loaded, with the ways on."""
    named = sorted(objects.items(), key=lambda item: -item[1])
    weights = ckpt.state_dicts()
    where = shell_path(ckpt.where) if ckpt.path else "IN"
    ways = ["--keep-objects keeps them (loading the new file may then run code)"]
    if weights and (weights[0].path or weights[0].model is not None):
        at = f" --at {shell_quote(weights[0].path, 200)}" if len(weights) > 1 else ""
        out = beside(ckpt.where, "weights")
        ways.insert(0, f"ckptool convert {where} {out} --extract{at}   # keeps the weights only")
    else:
        ways.insert(0, f"ckptool clean {where} {beside(ckpt.where, 'clean')}   # makes plain data of them")
    return CannotCarry(
        "holds objects that may run code when the file is loaded:",
        where=ckpt.where,
        evidence=[f"{printable(name, 100)} ({count:,})" for name, count in named[:12]]
        + ([f"… and {len(named) - 12:,} more classes"] if len(named) > 12 else []),
        hint="; ".join(ways),
    )


def require_proportion(ckpt: Checkpoint, chosen: AnyFormat, draft: Draft) -> None:
    """Refuse an output that is out of all proportion to its source: how a small file fills a disk.

    Tensors can share, repeat and overlap bytes, be compressed or sparse. Each on its own may be small.

    Raises:
        CannotCarry: the output is more than `MOST_TIMES` as large as the source, and more than `MOST_ALWAYS`.
    """
    if draft.nbytes <= max(MOST_ALWAYS, MOST_TIMES * ckpt.nbytes):
        return
    parts = {id(part): part for storage in ckpt.storages() for part in nested(storage.source)}
    source = max(sum(map(_own_bytes, parts.values())), ckpt.nbytes, 1)
    if draft.nbytes <= MOST_TIMES * source:
        return
    fits = not chosen.pickles and sum(storage.nbytes for storage in ckpt.storages()) <= MOST_TIMES * source
    shared = "-t torch-zip writes what tensors share once" if fits else None
    raise CannotCarry(
        f"would become {draft.nbytes:,} bytes, {draft.nbytes // source:,} times the {source:,} that it is made from",
        where=ckpt.where,
        evidence=[f"the limit is {MOST_TIMES} times the input, or {MOST_ALWAYS:,} bytes if that is more"],
        hint=shared,
    )


def _own_bytes(part: Any) -> int:
    """Bytes that come from here: those of a file, and of a source that is made of nothing else, packed if they are."""
    if isinstance(part, File):
        return part.size
    if isinstance(part, Inflated):
        return part.packed.length
    within = (inner for inner in nested(part) if inner is not part)
    made = not hasattr(part, "chunks") or any(isinstance(inner, File) or hasattr(inner, "chunks") for inner in within)
    return 0 if made else int(part.length)


def require_readable(ckpt: Checkpoint, chosen: AnyFormat, for_torch: str) -> None:
    """Refuse what a version of torch cannot load. Other programs read safetensors files, whatever the torch.

    Raises:
        CannotCarry: something is younger than that version.
        RuleError: FOR_TORCH is no version.
    """
    version = parse_target(for_torch)
    lines = impossible(ckpt.root, version, zipped=chosen.archive) if chosen.pickles else []
    if lines:
        ways = [
            f"{option}   # makes dense tensors of {kind} ones"
            for kind, option in _DECODED.items()
            if any(f"{kind} tensors" in line for line in lines)
        ]
        if chosen.archive and version < FIRST_ZIP:
            ways.insert(0, "-t legacy writes what every torch since 0.4 reads")
        if any("numpy" in line for line in lines):
            ways.append("ckptool clean makes tensors of numpy arrays")
        raise CannotCarry(
            f"torch {version[0]}.{version[1]} cannot load all of it:",
            where=ckpt.where,
            evidence=lines,
            hint="; ".join(ways) or None,
        )
