"""Compare two models layer by layer: the output of each use of weights with that of the source's code."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from dataclasses import replace
from typing import Any

import torch

from ..mapping import Entry
from .flow import Flow, Use
from .other_settings import layer_of
from .verdict import NOTHING, Verdict, behind_new_keys

#: Layers that are told of, around the first that differs.
_MOST = 2000


def layers(expected: Flow, seen: Flow, entries: MappingOf[str, Entry], verdict: Verdict) -> list[dict[str, Any]]:
    """Return a row for each layer of the model, in the order of execution, that compares its output with the output of
    the layer of the source's code that reads most of its sources (`_counterpart`). Only the first 2,000 uses of weights
    count. Successive uses with the same two modules share a row, with the larger difference. [] if there are none.

    EXPECTED is the flow of the source's code, SEEN that of the model with ENTRIES (key -> entry).

    Returns:
        {"layer", "source", "difference", "first"} for each: the module of the model; that of the source's code (None if
            no layer there reads its sources); how far the outputs are apart, relative to the largest (see
            `_difference`; if there is no such layer, or it has another number of channels: 0 if layers of the source's
            code give all channels, else None); and whether the models diverge here, by VERDICT.
    """
    front = {use.index for use in verdict.front}
    told: dict[Any, int] = {}
    out: list[dict[str, Any]] = []
    for use in seen.uses[:_MOST]:
        sources = {key for own in use.keys if own in entries for key in entries[own].sources}
        turn = told[use.told] = told.get(use.told, -1) + 1
        other = _counterpart(sources, expected, turn)
        found: dict[str, Any] = {
            "layer": layer_of(use),
            "source": None if other is None else layer_of(other),
            "difference": _difference(use.given, other, expected),
            "first": use.index in front,
        }
        last = out[-1] if out else None
        if last is not None and (last["layer"], last["source"]) == (found["layer"], found["source"]):
            both = [n for n in (last["difference"], found["difference"]) if n is not None]
            last |= {"difference": max(both, default=None), "first": last["first"] or found["first"]}
        else:
            out.append(found)
    return out


def apart_at_most(expected: Flow, seen: Flow, entries: MappingOf[str, Entry]) -> float | None:
    """Return the largest difference in `layers` of EXPECTED, the flow of the source's code, and SEEN, that of the
    model. Layers that depend on a key without a source in ENTRIES are left out. None if nothing can be compared.
    """
    open_ = behind_new_keys(seen, entries)
    known = replace(seen, uses=[use for use in seen.uses if not open_[use.index]])
    found = (row["difference"] for row in layers(expected, known, entries, NOTHING))
    return max((one for one in found if one is not None), default=None)


def _counterpart(sources: set[str], expected: Flow, turn: int) -> Use | None:
    """Return the layer (use of weights) in EXPECTED, the flow of the source's code, that reads most of the keys in
    SOURCES; None if none reads any. If several read as many, as in a loop: number TURN of them, counted from 0 in the
    order of execution, or the last one, if they are fewer.
    """
    shared = [(len(sources & set(use.keys)), use) for use in expected.uses]
    most = max((n for n, _ in shared), default=0)
    fitting = [use for n, use in shared if n == most] if most else []
    return fitting[min(turn, len(fitting) - 1)] if fitting else None


def _difference(own: torch.Tensor, other: Use | None, expected: Flow) -> float | None:
    """Return how far OWN, the fingerprints of the output of a layer of the model, is from the output of OTHER, a layer
    of the source's code, with or without its bias, whichever is nearer (see `_largest_difference`).

    If OTHER is None or has another number of channels: 0.0 if layers in EXPECTED, the flow of the source's code, give
    all channels of OWN, else None.
    """
    given = [] if other is None else [t for t in (other.given, other.bare) if t is not None and t.shape == own.shape]
    if not given:
        return 0.0 if expected.gives(own) else None
    return min(_largest_difference(own, one) for one in given)


def _largest_difference(own: torch.Tensor, other: torch.Tensor) -> float:
    """Return the largest difference between the fingerprints OWN and OTHER, of equally many channels, divided by the
    largest root mean square of a channel of OTHER (not divided, if that is 0). The channels are compared in their
    order, and with each column of numbers sorted; the smaller result counts. 0.0 if there are no channels.
    """
    largest = float(other[:, 0].max()) if len(other) else 0.0
    in_place = float((own - other).abs().max()) if len(own) else 0.0
    in_any_order = float((own.sort(0).values - other.sort(0).values).abs().max()) if len(own) else 0.0
    return min(in_place, in_any_order) / (largest or 1.0)


__all__ = ["apart_at_most", "layers"]
