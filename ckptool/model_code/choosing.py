"""Find which class, function or instance in a file is the model, if the user does not name it.

The file itself decides first: a usual name (`build_model`), the only instance, the only factory, the only class that no
other class uses. Of several candidates, those that can be built with the given arguments are built on the meta device.
If it is one, that one is chosen; if there are several, they are compared with the weights to load, and the model that
has most of these is chosen. If two have equally many, none is chosen.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import types
import typing
import warnings
from collections import Counter
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch

from ..disk.files import shell_path
from ..errors import Ambiguous, NotFound, printable
from ..keys import closest

#: Names that say "this makes the model", in the order in which they are preferred.
_FACTORIES = ("build_model", "create_model", "make_model", "get_model", "build", "create", "make")
#: name -> shape of what a model is to be filled with.
Shapes = Mapping[str, tuple[int, ...]]


def is_model(value: Any) -> bool:
    """Return whether VALUE is a torch.nn.Module."""
    return isinstance(value, torch.nn.Module)


def choices(module: Any) -> dict[str, Any]:
    """Return name -> value for all in MODULE that may be the model, in its order; names that begin with `_` do not
    count. These are instances of torch.nn.Module (also imported ones), classes of torch.nn.Module that MODULE defines,
    and functions that it defines and that make a model. One of these is enough for a function:

    - Its annotation for the result is a class of torch.nn.Module.
    - It has a usual name (`build_model`, `get_net`; see `_makes_a_model`).
    - It returns an instance of a class of MODULE that no other of its classes mentions (`_outermost`).

    If there is nothing of all this, the result is the functions of MODULE that return any torch.nn.Module
    (`_gives_a_module`), without those that others of them mention; {} if there are none.
    """
    own = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    here = module.__name__
    classes = {
        name: value
        for name, value in own.items()
        if isinstance(value, type) and issubclass(value, torch.nn.Module) and value.__module__ == here
    }
    outer = set(_outermost(classes))
    functions = {name: value for name, value in own.items() if inspect.isfunction(value) and value.__module__ == here}
    found = {
        name: value
        for name, value in own.items()
        if is_model(value) or name in classes or (name in functions and _makes_a_model(name, value, outer))
    }
    # where nothing else is a model, what gives modules of torch is; beside a class these are its helpers
    return found or _outermost({name: one for name, one in functions.items() if _gives_a_module(one, {one})})


def _makes_a_model(name: str, function: Any, outer: set[str]) -> bool:
    """Return whether the function FUNCTION, called NAME in its module, says that it makes a model: its annotation for
    the result is a class of torch.nn.Module; NAME is a usual one (`build`, `create_resnet_model`, `get_net`); or it
    returns an instance of one of the classes OUTER (names), by its source (`_made_by`).
    """
    said = types.SimpleNamespace(__annotations__={"return": function.__annotations__.get("return")})
    try:
        made = typing.get_type_hints(said, function.__globals__)["return"]
    except Exception:  # a name that is not there when it runs
        made = None
    if isinstance(made, type) and issubclass(made, torch.nn.Module):
        return True
    if name in _FACTORIES or re.match(r"(build|create|make|get)_?(\w*_)?(model|net|network)$", name):
        return True
    return bool(_made_by(function) & outer)


def _made_by(function: Any) -> set[str]:
    """Return the names of the functions and classes whose result FUNCTION returns, and of variables that it returns,
    read from its source; empty if there is no source. For a variable that a call was assigned to, the name of what was
    called counts (of several, the last). A `return` of something else adds "". Each `return` in the source counts, also
    of a function inside of FUNCTION.

    {"VGG"} for `return VGG(…)`, {"nn.Sequential"} for `net = nn.Sequential(…); return net.eval()`.
    """
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return set()
    called: dict[str, str] = {}
    made: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and (name := _called(node.value)):
            called.update((one.id, name) for one in node.targets if isinstance(one, ast.Name))
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and node.value is not None:
            name = _called(node.value) or _root(node.value)
            made.add(called.get(name.partition(".")[0], name))
    return made


def _called(node: ast.expr) -> str:
    """Return the name of the function that the syntax tree NODE calls; "" if it is no call. Methods of a result do not
    count.

    `nn.Sequential` for `nn.Sequential(…)` and for `nn.Sequential(…).to(device)`.
    """
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        node = node.func.value
    return ast.unparse(node.func) if isinstance(node, ast.Call) else ""


def _root(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else ""


def _gives_a_module(function: Any, seen: set[Any]) -> bool:
    """Return whether FUNCTION, by its source (`_made_by`), returns an instance of a class of torch.nn.Module, or the
    result of another function that returns one.

    A function of another module has to say so in its annotation or by a usual name; its source is not read. SEEN holds
    the functions that were looked at, so that functions that call each other end the search.
    """
    known = vars(sys.modules[function.__module__]) if function.__module__ in sys.modules else function.__globals__
    for dotted in _made_by(function):
        first, *others = dotted.split(".")
        found = known.get(first)
        for part in others:
            found = getattr(found, part, None)
        if isinstance(found, type) and issubclass(found, torch.nn.Module):
            return True
        if inspect.isfunction(found) and found not in seen:
            if found.__module__ != function.__module__:
                if _makes_a_model(found.__name__, found, set()):
                    return True
            elif _gives_a_module(found, {*seen, found}):
                return True
    return False


def only_choice(
    module: Any, place: str, weights: Shapes | None = None, kwargs: Mapping[str, Any] | None = None
) -> tuple[str, Any]:
    """Return (name, value) of the model in MODULE, among its `choices`.

    The first of these decides: a usual name (`build_model` before `create_model`, …, `make`); a single instance; a
    single factory, if there is no instance; a single class that no other class mentions, if there is neither (but see
    `_named_by_weights`: WEIGHTS may show that another class is meant). Else the
    candidates are the instances, or if there are none the factories, or else the classes that no other class mentions.
    They are built on the meta device. If only one can be built and has tensors, it is taken; else the one that has most
    of WEIGHTS: elements of tensors that WEIGHTS has by name and shape, and if these are equally many, those by shape
    alone.
    Args:
        module, place: the module, and the text that named it.
        weights: name -> shape of the weights to load, if known.
        kwargs: arguments for the class or factory.
    Raises:
        NotFound: there is no model.
        Ambiguous: there are several candidates, and none can be built, or none has more of WEIGHTS than all others. The
            message lists the best candidates first.
    """
    found = choices(module)
    for name in _FACTORIES:
        if name in found:
            return name, found[name]
    instances = {name: value for name, value in found.items() if is_model(value)}
    if len(instances) == 1:
        return next(iter(instances.items()))
    factories = {name: value for name, value in found.items() if inspect.isfunction(value)}
    if len(factories) == 1 and not instances:
        return next(iter(factories.items()))
    classes = {name: value for name, value in found.items() if isinstance(value, type)}
    outer = _outermost(classes)
    if len(outer) == 1 and not instances and not factories:
        name = _named_by_weights(classes, next(iter(outer)), weights or {}, kwargs or {})
        return name, classes[name]
    if not found:
        raise _none(module, place)
    shown = instances or factories or outer
    ranked = _ranked(shown, weights, kwargs or {})
    best = [name for name, score in ranked.items() if score == max(ranked.values())] if ranked else []
    if len(best) == 1 and (len(ranked) == 1 or ranked[best[0]] > (0, 0)):
        return best[0], shown[best[0]]
    ordered = sorted(shown, key=lambda name: tuple(-n for n in ranked.get(name, (-1, -1))))
    listed = {name: shown[name] for name in ordered}
    raise Ambiguous(
        f"defines {len(shown)} models; say which:", where=place, evidence=listing(listed), hint=hint(place, listed)
    )


def _named_by_weights(classes: Mapping[str, Any], outer: str, weights: Shapes, kwargs: Mapping[str, Any]) -> str:
    """Return OUTER, the only one of CLASSES that no other mentions. But if it has none of WEIGHTS by name and shape (as
    it is built with KWARGS; if it cannot be built, either), return the class that has most of WEIGHTS so, if these are
    half of all elements or more: a class that takes any model, such as one for averages, is mentioned by no other.
    """
    others = {name: value for name, value in classes.items() if name != outer}
    if not weights or not others or _ranked({outer: classes[outer]}, weights, kwargs).get(outer, (0, 0))[0]:
        return outer
    met = {name: score[0] for name, score in _ranked(others, weights, kwargs).items()}
    best = max(met, key=met.__getitem__, default=outer)
    return best if 2 * met.get(best, 0) >= sum(map(prod, weights.values())) else outer


def _ranked(shown: Mapping[str, Any], weights: Shapes | None, kwargs: Mapping[str, Any]) -> dict[str, tuple[int, int]]:
    """Return name -> (elements of its tensors that WEIGHTS has by name and shape, elements that WEIGHTS has by shape,
    each of its tensors counted once) for the candidates SHOWN.

    Only candidates that can be built with KWARGS and have a state dict with tensors are in it. Without WEIGHTS all have
    (0, 0).
    """
    found: dict[str, tuple[int, int]] = {}
    sizes = Counter((weights or {}).values())
    for name, value in shown.items():
        held = _shapes(value, kwargs)
        if not held:
            continue
        met = sum(prod(shape) for key, shape in held.items() if (weights or {}).get(key) == shape)
        alike = Counter(held.values()) & sizes
        found[name] = met, sum(prod(shape) * count for shape, count in alike.items())
    return found


def _shapes(value: Any, kwargs: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return key -> shape of the state dict of the candidate VALUE, an instance, or a class or function, which is
    called with KWARGS on the meta device; {} if the state dict has no tensors, or if the call raises an exception.
    """
    try:
        with torch.device("meta"), torch.random.fork_rng(devices=[]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            made = value if is_model(value) else value(**kwargs)
            held = made.state_dict()
    except (Exception, SystemExit):
        return {}
    return {key: tuple(one.shape) for key, one in held.items() if hasattr(one, "shape")}


def _outermost(classes: Mapping[str, Any]) -> dict[str, Any]:
    """Return name -> class or function for those of CLASSES that the source of no other of them names: the whole
    models. Texts and comments name none. All of CLASSES if each is named by another.
    """
    inner = set()
    for other in classes.values():
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(other)))
        except (OSError, TypeError, SyntaxError):
            continue
        named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        named |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        inner |= {name for name, value in classes.items() if value is not other and name in named}
    return {name: value for name, value in classes.items() if name not in inner} or dict(classes)


def _none(module: Any, place: str) -> NotFound:
    """Return the error for MODULE, the file PLACE, in which no model was found. It says so if a value is made under `if
    __name__ == "__main__":`, which importing the file does not run.
    """
    made = _made_in_main(module)
    if made:
        line, name = made
        return NotFound(
            f'makes its model under `if __name__ == "__main__":` (line {line}), which importing it does not run',
            where=place,
            hint=f"put `{printable(name, 60)} = …` before that, or into a function build() that returns it",
        )
    return NotFound(
        "defines no model: no torch.nn.Module class, instance or factory",
        where=place,
        hint=f"{shell_path(place)}:Name names a class, an instance or a function that returns one",
    )


def _made_in_main(module: Any) -> tuple[int, str] | None:
    """Return (line, name) of the first assignment `name = call(…)` under `if __name__ == "__main__":` in the file of
    MODULE; None if there is none, or if the file cannot be read.
    """
    try:
        tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    except (OSError, TypeError, ValueError, SyntaxError, AttributeError):
        return None
    guarded = [node for node in tree.body if isinstance(node, ast.If) and "__main__" in ast.unparse(node.test)]
    for node in (inner for outer in guarded for inner in ast.walk(outer)):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.targets[0], ast.Name):
            return node.lineno, node.targets[0].id
    return None


def listing(shown: Mapping[str, Any]) -> list[str]:
    """Return a line for each of the first 20 of the candidates SHOWN (name -> value): its name and its kind, as "Net
    (class)".
    """
    return [f"{printable(name)} ({_kind(value)})" for name, value in list(shown.items())[:20]]


def _kind(value: Any) -> str:
    return "instance" if is_model(value) else "class" if isinstance(value, type) else "function"


def hint(place: str, shown: Mapping[str, Any], wanted: str = "") -> str | None:
    """Return one of the candidates SHOWN (name -> value) as a user would type it, `PLACE:Name`; None if there are none.

    It is the candidate whose name is most like WANTED; if none is like it, or WANTED is "", the first that no other
    candidate mentions (`_outermost`).
    """
    near = closest(wanted, list(shown), 1) if wanted else []
    return f"{shell_path(place)}:{(near or list(_outermost(shown)))[0]}" if shown else None
