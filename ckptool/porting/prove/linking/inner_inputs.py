"""Find the inputs of modules inside of the source's code, for a model that is a part of that code."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import torch

from ....model_code.inputs import InputSpec, leaves
from ..calling import tensors
from ..recorder import attempt
from .spellings import spellings

#: Inputs of modules of the source's code that the model may take, and of the first with weights that it has.
_PARTS, _BEGINS = 24, 3


def inputs_inside(code: torch.nn.Module, values: Any, wanted: frozenset[str]) -> dict[str, torch.Tensor]:
    """Run CODE (the source's code) on VALUES (`attempt`) and return path -> first input, a copy, for the modules inside
    of CODE that have children, or whose paths are in WANTED, in the order in which they run. Of a module that runs
    several times, the first time with a tensor as its first input (by position) counts; modules without one are left
    out. {} if CODE cannot be run.
    """
    found: dict[str, torch.Tensor] = {}
    hooks = []

    def note(path: str) -> Callable[[torch.nn.Module, Any], None]:
        """Return a hook that notes the first input of the module at PATH, the first time that it runs."""

        def hook(module: torch.nn.Module, args: Any) -> None:
            if args and isinstance(args[0], torch.Tensor):
                found.setdefault(path, args[0].detach().clone())

        return hook

    for path, module in code.named_modules():
        if path and (path in wanted or any(True for _ in module.children())):
            hooks.append(module.register_forward_pre_hook(note(path)))
    _, error = attempt(code, values)
    for hook in hooks:
        hook.remove()
    return found if error is None else {}


def beginnings(
    theirs: torch.nn.Module, own: torch.nn.Module, values: Any, known: frozenset[str]
) -> Iterator[tuple[str, Any]]:
    """Yield (path of a module inside of the source's code THEIRS, inputs of the model OWN) for a model that may be this
    module. The inputs are one spec, with the type and sizes of the first input of the module when the code runs on
    VALUES, in up to three forms that OWN may take (`spellings`).

    The first three modules in KNOWN that run come first; then the modules around each of these, from the inside, as
    they may do something before it; then modules that are not in KNOWN, one for each further shape of their inputs; the
    search ends after 24 shapes. If a module around one of these gets an input with the same values, the path of the
    outermost such module is yielded instead. No path is yielded twice. A module is left out if its input has the values
    of an input of the code itself, in any order (BGR for RGB): the model then takes the same pictures as the code.
    Nothing is yielded if the code cannot be run.
    """
    given = list(tensors(values))
    found = {
        path: tensor
        for path, tensor in inputs_inside(theirs, values, known).items()
        if not any(_same_values(tensor, other) for other in given)
    }
    begins = [path for path in found if path in known][:_BEGINS]
    around = [outer for path in begins for outer in reversed(found) if path.startswith(f"{outer}.")]
    seen: set[tuple[int, ...]] = set()
    done: set[str] = set()
    for path in dict.fromkeys((*begins, *around, *(path for path in found if path not in known))):
        tensor = found[path]
        shape = tuple(tensor.shape)
        outer = (one for one in found if path.startswith(f"{one}.") and _same_values(found[one], tensor))
        begun = next(outer, path)  # as it is given to the whole part
        if begun in done or (shape in seen and path not in (*begins, *around)):
            continue
        done.add(begun)
        seen.add(shape)
        if len(seen) > _PARTS:
            return
        wanted = InputSpec(str(tensor.dtype).removeprefix("torch."), shape)
        for spelled in islice(spellings(own, [wanted]), 3):
            if len(leaves(spelled)) == 1:
                yield begun, spelled


def _same_values(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors have one shape and type, and the same values in any order; numbers that are not
    floating point have to be in the same order.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    if not one.is_floating_point():  # there are others that cannot be sorted
        return bool(torch.equal(one, other))
    return bool(torch.equal(one.double().flatten().sort().values, other.double().flatten().sort().values))


__all__ = ["beginnings", "inputs_inside"]
