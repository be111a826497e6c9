"""Whether a file fits a model in code, as `load_state_dict(strict=True)` would judge it, and what makes it fit."""

from __future__ import annotations

import heapq
import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from math import prod
from typing import Any

from ... import keys
from ...checkpoint import Checkpoint, StateDict
from ...disk.files import StrPath, beside, shell_path, shell_quote
from ...errors import NotFound, counted, require
from ...formats import open as open_checkpoint
from ...passes.optimizers import misfits

Shape = tuple[int, ...]
_MOST_DROPPED = 8


@dataclass(frozen=True, slots=True)
class Fit:
    """How the weights of a file fit a model.

    Attributes:
        path: the file.
        model: the model, as it was named.
        fits: `load_state_dict(strict=True)` would succeed.
        missing: keys that only the model has.
        unexpected: keys that only the file has.
        mismatched: (key, shape in the file, shape in the model).
        common: how many keys are in both with the same shape, and how many the model has.
        parameters: the same in elements, tied tensors counted once.
        commands: (command, what for) that make it fit, in order; none where nothing of the file fits.
        at: where in the file the weights are that were held against the model.
        optimizers: what keeps an optimizer made of all parameters of the model from loading the states in the file.
    """

    path: str
    model: str
    fits: bool
    missing: list[str]
    unexpected: list[str]
    mismatched: list[tuple[str, list[int], list[int]]]
    common: tuple[int, int]
    parameters: tuple[int, int]
    commands: list[tuple[str, str]]
    at: str = ""
    optimizers: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def fits(path: StrPath, model: str, *, at: str | None = None, kwargs: Mapping[str, Any] | None = None) -> Fit:
    """Check the weights of a file against a model in code. The model file is imported, which runs it; torch is needed.

    Args:
        path: the file.
        model: `MODEL.py`, `MODEL.py:Name` or `package.module:Name`.
        at: where the weights are in the file, if there are several state dicts.
        kwargs: arguments for the class or function that makes the model.

    Raises:
        CheckpointError: the file cannot be read, or the model not be built.
    """
    ckpt = open_checkpoint(path)
    weights = ckpt.state_dict(at)
    return _fit(ckpt, weights, model, _built(model, kwargs, weights), kwargs)


def best_fit(ckpt: Checkpoint, model: str, at: str | None = None, kwargs: Mapping[str, Any] | None = None) -> Fit:
    """How the weights of an open checkpoint fit a model (see `fits`); of several state dicts the one that fits best."""
    found = [ckpt.state_dict(at)] if at is not None else ckpt.state_dicts() or [ckpt.state_dict()]
    built = _built(model, kwargs, max(found, key=lambda one: one.parameters))
    wanted = _shapes(built)
    likely = heapq.nlargest(_MOST_TRIED, found, key=lambda one: _in_common(one, wanted))
    return max((_fit(ckpt, one, model, built, kwargs) for one in likely), key=lambda fit: (fit.fits, fit.parameters[0]))


#: State dicts that are tried; matching them with a model takes long.
_MOST_TRIED = 4


def _built(model: str, kwargs: Mapping[str, Any] | None, weights: StateDict) -> Any:
    require(f"running {model}", "torch", extra="torch")
    from ...model_code.building import build, find_model, unwrapped

    shapes = {key: tensor.shape for key, tensor in weights.tensors.items()}
    return unwrapped(build(find_model(model, kwargs, weights=shapes)))


def _shapes(built: Any) -> dict[str, Shape]:
    return {key: tuple(value.shape) for key, value in built.state_dict().items() if hasattr(value, "shape")}


def _tied(built: Any, met: Collection[str]) -> set[str]:
    """The keys of a model whose tensor another key has, too; the other one is MET, where one of them is."""
    held: dict[int, list[str]] = {}
    for named in (built.named_parameters, built.named_buffers):
        for key, value in named(remove_duplicate=False):
            held.setdefault(id(value), []).append(key)
    return {key for keys in held.values() for key in sorted(keys, key=lambda key: key not in met)[1:]}


def _in_common(weights: StateDict, wanted: Mapping[str, Shape]) -> tuple[int, int]:
    """How many elements and keys of a model a state dict has."""
    theirs = weights.tensors
    met = [prod(shape) for key, shape in wanted.items() if key in theirs and theirs[key].shape == shape]
    return sum(met), len(met)


def _fit(ckpt: Checkpoint, weights: StateDict, model: str, built: Any, kwargs: Mapping[str, Any] | None = None) -> Fit:
    from ...model_code.building import refused

    theirs = {key: tensor.shape for key, tensor in weights.tensors.items()}
    wanted = _shapes(built)
    met = [key for key, shape in wanted.items() if theirs.get(key) == shape]
    again = _tied(built, set(met))
    trained = {name: tuple(parameter.shape) for name, parameter in built.named_parameters()}
    fine = refused(built, weights) is None
    return Fit(
        ckpt.where,
        model,
        fine,
        [key for key in wanted if key not in theirs],
        [key for key in theirs if key not in wanted],
        [(k, list(theirs[k]), list(shape)) for k, shape in wanted.items() if k in theirs and theirs[k] != shape],
        (len(met), len(wanted)),
        (
            sum(prod(wanted[key]) for key in met if key not in again),
            sum(prod(wanted[key]) for key in wanted if key not in again),
        ),
        [] if fine else list(_commands(ckpt, weights, theirs, wanted, model, built, kwargs or {})),
        weights.path,
        list(misfits(ckpt, trained)) if fine else [],
    )


def _commands(
    ckpt: Checkpoint,
    weights: StateDict,
    theirs: Mapping[str, Shape],
    wanted: Mapping[str, Shape],
    model: str,
    built: Any,
    kwargs: Mapping[str, Any],
) -> Iterator[tuple[str, str]]:
    """What makes the file fit: the renaming that brings most keys together, then leaving out what is left over."""
    best: dict[str, str] = {key: key for key in theirs}
    words: list[str] = []
    for options, renamed in _renamings(list(theirs), list(wanted)):
        if _met(renamed, theirs, wanted) > _met(best, theirs, wanted):
            best, words = renamed, options
    left = [new for new in best.values() if new not in wanted]
    whole = all(key in best.values() for key in wanted) and all(
        wanted[new] == theirs[old] for old, new in best.items() if new in wanted
    )
    file, out = shell_path(ckpt.where), beside(ckpt.where, "fitting")
    at = ["--at", shell_quote(weights.path, 200)] if len(ckpt.state_dicts()) > 1 else []
    dropped = keys.heads(left, wanted)
    if whole and len(dropped) <= _MOST_DROPPED:
        extract = ["--extract"] if weights.path or weights.model else []
        drops = [word for pattern in dropped for word in ("--drop", shell_quote(pattern, 200))]
        command = " ".join(["ckptool convert", file, out, *extract, *words, *drops, *at])
        what = "to give the tensors the names that the model has"
        yield command, what + (f", and leave out what it has not ({len(left):,})" if left else "")
        return
    port = " ".join(["ckptool transfer", file, shell_path(model), *_arguments(kwargs), "-o", out, *at])
    yield from _accepted(port, ckpt, weights, built)


def _arguments(kwargs: Mapping[str, Any]) -> Iterator[str]:
    """KWARGS as they are typed."""
    for name, value in kwargs.items():
        yield "--kwargs"
        yield shell_quote(f"{name}={value if isinstance(value, str) else json.dumps(value, default=str)}")


def _accepted(port: str, ckpt: Checkpoint, weights: StateDict, built: Any) -> Iterator[tuple[str, str]]:
    """The command PORT with what it asks for, and what that comes to: the matching itself tells."""
    from ...porting import transfer
    from ...porting.refusal import accepting_command

    try:
        mapping = transfer(ckpt, built, at=weights.path)
    except NotFound:
        return
    guessed = [entry for entry in mapping.entries if entry.status == "guessed"]
    gaps = [entry for entry in mapping.entries if entry.status == "unmapped"]
    what = ["to port the weights into this model, by names, shapes and structure"]
    if guessed:
        what.append(f"{counted(len(guessed), 'key')} guessed: look at them first, with --dry-run")
    if gaps:
        keep = "keeps" if len(gaps) == 1 else "keep"
        what.append(f"{counted(len(gaps), 'key')} that the file has nothing for {keep} the model's initial values")
    yield accepting_command(mapping, guessed, gaps, port) if guessed or gaps else port, "; ".join(what)


def by_names(theirs: list[str], wanted: list[str]) -> list[str] | None:
    """Options of `convert` that give the keys THEIRS the names that are WANTED, all of them, and leave out the rest;
    None if nothing does. They are not quoted."""
    best: tuple[int, list[str], dict[str, str]] = (sum(key in wanted for key in theirs), [], {k: k for k in theirs})
    names = set(wanted)
    for options, renamed in _renamings(theirs, wanted, quoted=False):
        met = sum(new in names for new in renamed.values())
        if met > best[0]:
            best = met, options, renamed
    met, options, renamed = best
    if met < len(names):
        return None
    dropped = keys.heads([new for new in renamed.values() if new not in names], wanted)
    return (
        [*options, *(word for head in dropped for word in ("--drop", head))] if len(dropped) <= _MOST_DROPPED else None
    )


def _met(renamed: Mapping[str, str], theirs: Mapping[str, Shape], wanted: Mapping[str, Shape]) -> int:
    return sum(wanted.get(new) == theirs[old] for old, new in renamed.items())


def _renamings(
    theirs: list[str], wanted: list[str], *, quoted: bool = True
) -> Iterator[tuple[list[str], dict[str, str]]]:
    """Options of `convert`, their values quoted for a shell or not, and what becomes of the keys with them."""

    def shown(text: str) -> str:
        return shell_quote(text, 200) if quoted else text

    as_it_is = {key: key for key in theirs}
    unwrapped = keys.unwrap(theirs)
    bases = [(as_it_is, list[str]())]
    if unwrapped != as_it_is and len(set(unwrapped.values())) == len(theirs):
        yield ["--unwrap"], unwrapped
        bases.append((unwrapped, ["--unwrap"]))
    for base, first in bases:
        names = list(base.values())
        for prefix in _prefixes(names):
            stripped = {old: keys.strip_prefix(new, prefix) for old, new in base.items()}
            if all(new is not None for new in stripped.values()):
                yield (
                    [*first, "--strip-prefix", shown(f"{prefix}.")],
                    {old: new or "" for old, new in stripped.items()},
                )
            else:  # some keys only: of the others, those that the model has not can be left out
                some = {old: new or base[old] for old, new in stripped.items()}
                if len(set(some.values())) == len(some):
                    yield [*first, "--rename", shown(f"{prefix}=")], some
        for prefix in _prefixes(wanted):
            yield (
                [*first, "--add-prefix", shown(f"{prefix}.")],
                {old: keys.add_prefix(new, prefix) for old, new in base.items()},
            )


def _prefixes(names: list[str]) -> list[str]:
    """What most names begin with: the first component, the first two, the first three."""
    found = []
    for depth in (1, 2, 3):
        heads = [".".join(name.split(".")[:depth]) for name in names if name.count(".") >= depth]
        found += [head for head, _ in Counter(heads).most_common(4)]
    return list(dict.fromkeys(found))
