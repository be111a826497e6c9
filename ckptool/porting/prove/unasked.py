"""Compare the outputs of both codes where both are at hand and small, though no proof was asked for."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import replace
from typing import Any

import torch

from ...errors import CheckpointError
from ..mapping import Mapping
from .calling import first_line
from .trial import Tell

#: Values of the file, and of the model, up to which both codes are run. By `benchmarks.proving`, a ResNet-50 takes
#: 2.4 s and 1 GB, a ViT-S 6 s and 3 GB; a VGG19, which has more values, would take 13 s and 5 GB.
MOST_VALUES = 50_000_000

#: Seconds that the search for other weights may take.
_PATIENCE = 10.0

#: Seconds after which no further step of the proof begins. A run that has begun ends.
_LONGEST = 20.0


def prove_unasked(
    mapping: Mapping,
    source: Any,
    source_model: Any,
    target_model: Any,
    *,
    inputs: Any = None,
    source_inputs: Any = None,
    progress: Tell | None = None,
) -> Mapping:
    """Return MAPPING with its doubts settled by a proof, if that succeeds (see `prove`; the search for other weights
    takes at most 10 seconds). Else return MAPPING with a note.

    If outputs differ, the note says where: the codes may differ in more than names, so this is no doubt about a key. If
    nothing was compared, it says why: the file or the model has more than 50 million values, the proof had taken 20
    seconds when it began another step, it ended in an error, or the two codes have no outputs in common. No error is
    raised: what nobody asked for stops no port. Modules of the caller are copied, and do not run. The arguments are as
    in `prove`.
    """
    from . import prove

    sizes = mapping.source_shapes.values(), (e.shape for e in mapping.entries)
    if any(sum(map(math.prod, shapes)) > MOST_VALUES for shapes in sizes):
        return _not_compared(mapping, f"a side has more than {MOST_VALUES:,} values")
    until = time.monotonic() + _LONGEST

    def told(text: str) -> None:
        if time.monotonic() > until:
            raise TimeoutError
        if progress is not None:
            progress(text)

    try:
        own, theirs = (copy.deepcopy(m) if isinstance(m, torch.nn.Module) else m for m in (target_model, source_model))
        found = prove(
            mapping,
            source,
            theirs,
            own,
            inputs=inputs,
            source_inputs=source_inputs,
            patience=_PATIENCE,
            longer="--prove",
            progress=told,
        )
    except TimeoutError:
        return _not_compared(mapping, f"this takes more than {_LONGEST:g} seconds")
    except Exception as error:
        return _not_compared(mapping, error.what if isinstance(error, CheckpointError) else first_line(error))
    proof = found.proof or {}
    if proof.get("equal"):
        return found
    note = f"the source's code and the model were run on the same inputs: {proof['text']}"
    return replace(mapping, notes=(*mapping.notes, note))


def _not_compared(mapping: Mapping, why: str) -> Mapping:
    """Return MAPPING with a note that outputs were not compared, and WHY."""
    note = f"the outputs of the source's code and of the model were not compared: {why} (--prove asks for it)"
    return replace(mapping, notes=(*mapping.notes, note))


__all__ = ["prove_unasked"]
