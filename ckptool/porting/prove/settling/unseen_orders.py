"""Ask about orders that no proof shows: of colours (RGB or BGR), and of inputs or outputs of one size.

Both models get the same numbers, whatever colours these are. If a model gives the mean where the source's code gives
the variance, its outputs are equal in another order: either the model returns them in that order, or the layers that
make them were exchanged. The same is true of inputs.
"""

from __future__ import annotations

import inspect
import re

import torch

from ... import expression as ex
from ...expression import Expr
from ...mapping import Entry, Mapping
from ...questions import Question, Reason, ask
from ..flow import Flow

_ORDERS = re.compile(r"(?<![a-z])(rgb|bgr)(?![a-z])", re.IGNORECASE)


def doubt_colours(mapping: Mapping, theirs: torch.nn.Module, own: torch.nn.Module, flow: Flow) -> Mapping:
    """Return MAPPING with a question about each kernel of a 2d convolution with three input channels that is made of a
    kernel of a first convolution of the source's code (no use of weights is before it), if the code of one model
    mentions only RGB and that of the other only BGR; else as it is. The option has the channels in the opposite order.

    THEIRS is the source's code, OWN the model. FLOW is the forward pass of the source's code, over keys of the file.
    """
    said, other = _order(theirs), _order(own)
    if said is None or other is None or said == other:
        return mapping
    convolutions = [use for use in flow.uses if not use.before and use.kind == "conv" and "weight" in use.held]
    first = {key for use in convolutions for key in use.held["weight"].keys}
    asked: Question[Expr] = ask(Reason.COLOURS, said, other)
    return mapping.with_entries([_doubted(entry, first, asked) for entry in mapping.entries])


def _doubted(entry: Entry, first: set[str], asked: Question[Expr]) -> Entry:
    """Return ENTRY with the question ASKED, if its expression reads a key in FIRST and it is a kernel of a 2d
    convolution with three input channels ([n, 3, h, w]); else as it is. The option has the channels in the opposite
    order.
    """
    if entry.expr is None or first.isdisjoint(entry.sources) or len(entry.shape) != 4 or entry.shape[1] != 3:
        return entry
    turned = ex.cat(1, *(ex.part(entry.expr, 1, i, i + 1) for i in (2, 1, 0)))
    return entry.asking(asked.about(turned))


def _order(model: torch.nn.Module) -> str | None:
    """Return "RGB" or "BGR" if the code of the classes of modules in MODEL, with its comments, mentions only that one,
    in capital or small letters; None if it mentions both or neither. Classes of torch, and those without readable code,
    are passed over.
    """
    found: set[str] = set()
    for kind in {type(module) for module in model.modules()}:
        if kind.__module__.partition(".")[0] != "torch":
            try:
                found |= {word.upper() for word in _ORDERS.findall(inspect.getsource(kind))}
            except (OSError, TypeError):
                continue
    return found.pop() if len(found) == 1 else None


def doubt_turned(entries: dict[str, Entry], seen: Flow, reason: Reason) -> dict[str, Entry]:
    """Return ENTRIES (key -> entry) with the question REASON about the keys with a source that may be exchanged because
    outputs or inputs of one size changed places. SEEN is the flow of the model.

    If REASON is `OUTPUTS_TURNED`, these are the keys of each use of weights that some output of the model does not
    depend on, and of each last use before an output. For any other REASON, inputs count in the same way: these are the
    keys of each use with no use before it, and of each use that does not depend on all of those first uses.
    """
    if reason is Reason.OUTPUTS_TURNED:
        ends = set().union(*seen.behind)
        sides = [seen.reaching(behind) for behind in seen.behind]
    else:
        ends = {use.index for use in seen.uses if not use.before}
        sides = [seen.depending([first]) for first in ends]
    some = {
        key
        for use in seen.uses
        if use.index in ends or not all(use.index in side for side in sides)
        for key in use.keys
    }
    return {
        key: entry.asking(ask(reason)) if key in some and entry.expr is not None else entry
        for key, entry in entries.items()
    }


__all__ = ["doubt_colours", "doubt_turned"]
