"""Ask about the order of colours (RGB or BGR). No proof shows the order, because both models get the same numbers."""

from __future__ import annotations

import inspect
import re

import torch

from .. import expression as ex
from ..expression import Expr
from ..mapping import Entry, Mapping
from ..questions import Question, Reason, ask
from .flow import Flow

_ORDERS = re.compile(r"(?<![a-z])(rgb|bgr)(?![a-z])", re.IGNORECASE)


def doubt_colours(mapping: Mapping, theirs: torch.nn.Module, own: torch.nn.Module, flow: Flow) -> Mapping:
    """Return MAPPING with a doubt about the first convolutions, which take pictures, if the code of one model mentions
    only RGB and the code of the other only BGR; else as it is.

    THEIRS is the source's code, OWN the model. FLOW is the forward pass of the source's code, over keys of the file.
    """
    said, other = _order(theirs), _order(own)
    if said is None or other is None or said == other:
        return mapping
    first = {key for use in flow.uses if not use.before and use.kind == "conv" for key in use.held["weight"].keys}
    asked: Question[Expr] = ask(Reason.COLOURS, said, other)
    return mapping.with_entries([_doubted(entry, first, asked) for entry in mapping.entries])


def _doubted(entry: Entry, first: set[str], asked: Question[Expr]) -> Entry:
    if entry.expr is None or first.isdisjoint(entry.sources) or len(entry.shape) != 4 or entry.shape[1] != 3:
        return entry
    turned = ex.cat(1, *(ex.part(entry.expr, 1, i, i + 1) for i in (2, 1, 0)))
    return entry.asking(asked.about(turned))


def _order(model: torch.nn.Module) -> str | None:
    """Return "RGB" or "BGR" if the code of MODEL, with its comments, mentions only that order; None if it mentions both
    or neither.
    """
    found: set[str] = set()
    for kind in {type(module) for module in model.modules()}:
        if kind.__module__.partition(".")[0] != "torch":
            try:
                found |= {word.upper() for word in _ORDERS.findall(inspect.getsource(kind))}
            except (OSError, TypeError):
                continue
    return found.pop() if len(found) == 1 else None


__all__ = ["doubt_colours"]
