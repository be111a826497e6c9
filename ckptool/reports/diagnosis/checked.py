"""What a diagnosis looked at without finding anything: each claim stands only where the check was made."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from ...checkpoint import Checkpoint, StateDict
from ...errors import counted
from ...formats.base import AnyFormat
from ..scanning.scan import Scan
from ..verify import Verification

#: About the weights: a claim, and the findings that contradict it.
_WEIGHTS = (
    (
        "every key has its plain name, without the prefix of a wrapper such as DataParallel or torch.compile",
        {"wrapped", "partly-wrapped", "prefix"},
    ),
    ("the weights are at the top of the file, not under a key", {"envelope", "several", "pickled-model", "strangers"}),
    (
        "the weights are plain tensors: not packed or quantised, no adapter, no empty placeholders",
        {"packed", "adapter", "zero-3", "no-parameters", "framework", "strangers"},
    ),
    ("it is whole, not one part of several", {"part", "part-of-a-run", "one-file-a-rank", "adapter"}),
)


def checked(
    ckpt: Checkpoint,
    kind: AnyFormat,
    weights: StateDict | None,
    names: Collection[str],
    read: Verification | None,
    scanned: Scan | None,
) -> list[str]:
    """What was looked at in a file that opens, and is as it should be, a sentence each.

    Args:
        ckpt, kind: the file, and its format.
        weights: its weights, or None if there are none or several.
        names: those of all findings.
        read: what reading every byte showed, or None if that was not possible.
        scanned: what its pickles name, or None if that was not looked at.
    """
    return list(_claims(ckpt, kind, weights, set(names), read, scanned))


def _claims(
    ckpt: Checkpoint,
    kind: AnyFormat,
    weights: StateDict | None,
    names: set[str],
    read: Verification | None,
    scanned: Scan | None,
) -> Iterator[str]:
    if read is not None and not read.damage and "patch" not in names:
        matched, _ = read.checksums
        sums = counted(matched, "checksum") + (" agrees" if matched == 1 else " agree")
        no_sums = "it has no checksums, so a changed byte in a tensor would not show"
        yield f"every byte of its records was read; {sums if matched else no_sums}"
        if not read.doubts:
            yield "no value is NaN or infinite"
    if scanned is not None and scanned.verdict == "safe":
        yield "nothing in its pickles runs code" if scanned.pickles else "it holds no pickle, so it can run no code"
    if kind.loader == "weights_only" and not names & {"weights-only", "sealed", "misnamed", "no-version"}:
        yield "torch.load(weights_only=True) accepts every class that it names"
    if "device" not in names:
        yield "no tensor needs a GPU"
    if weights is not None and len(weights):
        if weights.path:
            names = names | {"envelope"}  # it is no finding where another loader reads the file
        yield from (claim for claim, contradicted in _WEIGHTS if not names & contradicted)
