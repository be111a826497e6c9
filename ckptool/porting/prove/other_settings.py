"""Find settings without weights (eps, activation, scale) that differ between two codes, by comparing the steps around
equal weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field, replace
from difflib import SequenceMatcher
from math import isclose
from typing import Any

import torch

from ...errors import counted, printable
from ..mapping import Entry
from .code_steps import Step, Swap, before, instead, left_out, times
from .flow import Flow, Use
from .ground import module_of


@dataclass(slots=True)
class Setting:
    """A setting that differs between the source's code and the model, with all of its places.

    Attributes:
        name: the setting: "eps", "gelu approximate", "scale".
        theirs, own: its value in the source's code and in the model, in words ("has eps 1e-05").
        places: the layers (of the source's code, of the model) that have it.
        swaps: functions that make the model compute like the source's code, by the numbers of its steps.
        modules: (module of the model, name of an attribute, its value in the source's code).
    """

    name: str
    theirs: str
    own: str
    places: list[tuple[str, str]] = field(default_factory=list)
    swaps: dict[int, Swap] = field(default_factory=dict)
    modules: list[tuple[torch.nn.Module, str, Any]] = field(default_factory=list)

    @property
    def can_be_tried(self) -> bool:
        """Return whether the model can be run with the setting of the source's code."""
        return bool(self.swaps or self.modules)

    def __str__(self) -> str:
        there, here = (printable(one, 80) for one in self.places[0])
        more = f", and so at {counted(len(self.places) - 1, 'more layer')}" if len(self.places) > 1 else ""
        return f"the source {self.theirs} at {there}, the model {self.own} at {here}{more}"

    def as_json(self) -> dict[str, Any]:
        """Return the setting as an item of `proof["causes"]`: {"setting", "source", "model", "layers", "text"}, with
        {"source", "model"} for each of the layers.
        """
        layers = [{"source": theirs, "model": own} for theirs, own in self.places]
        return {"setting": self.name, "source": self.theirs, "model": self.own, "layers": layers, "text": str(self)}


def settings(
    expected: Flow,
    seen: Flow,
    entries: MappingOf[str, Entry],
    modules: MappingOf[str, tuple[torch.nn.Module, torch.nn.Module]],
) -> list[Setting]:
    """Return the settings (eps, activation, padding) that differ between the source's code and the model: attributes
    of modules first, then steps, in the order of execution of the model. A setting with the same two values at several
    layers is there once, with all of its places. [] if none differ. Compared are layers that read at least one key of
    the source in common (`_pairs`), the steps (operations without weights) directly before them, and, if each code has
    just one output, the steps before that.

    Args:
        expected: the flow of the source's code, over keys of the file.
        seen: the flow of the model.
        entries: the mapping that fills the model.
        modules: key of the model -> (module of the source's code, module of the model).
    """
    notes = _Notes()
    pairs = list(_pairs(expected, seen, entries))
    for use, other in pairs:
        notes.place = layer_of(other), layer_of(use)
        for key in use.keys:
            if key in modules:
                _attributes(*modules[key], notes)
    for use, other in pairs:
        notes.place = layer_of(other), layer_of(use)
        if use.step is not None and other.step is not None and use.step.name == other.step.name:
            _of_step(other.step, use.step, notes)
        _between(other.steps, use.steps, use.step, notes)
    if len(expected.tails) == len(seen.tails) == 1:
        notes.place = "the output", "the output"
        _between(expected.tails[0], seen.tails[0], None, notes)
    return list(notes.found.values())


@dataclass(slots=True)
class _Notes:
    """The settings that differ, as they are found.

    Attributes:
        found: (name, its value in the source's code, in the model) -> the setting.
        place: the layers that are compared now, (of the source's code, of the model).
    """

    found: dict[tuple[str, str, str], Setting] = field(default_factory=dict)
    place: tuple[str, str] = ("", "")

    def add(self, name: str, theirs: str, own: str) -> Setting:
        """Note at the present place that the setting NAME is THEIRS in the source's code and OWN in the model, and
        return it.
        """
        one = self.found.setdefault((name, theirs, own), Setting(name, theirs, own))
        if self.place not in one.places:
            one.places.append(self.place)
        return one


def layer_of(use: Use) -> str:
    """Return the path of the module of the first key that USE reads, or that key if it is in no module; "?" if it reads
    none.
    """
    if not use.keys:
        return "?"
    return module_of(use.keys[0]) or use.keys[0]


def _pairs(expected: Flow, seen: Flow, entries: MappingOf[str, Entry]) -> Iterator[tuple[Use, Use]]:
    """Yield (layer of the model, its counterpart in the source's code) for each use of weights in SEEN, the flow of the
    model, that has a counterpart in EXPECTED, the flow of the source's code.

    The counterpart reads some of the keys of the source that ENTRIES give to the layer. Of several, those of the same
    kind as the layer count (all, if there are none), and of these the one that reads most of these keys. If several
    read as many, the first run of the layer gets the first of them, the second run the second …, further runs the last.
    """
    told: dict[Any, int] = {}
    by_key: dict[str, list[Use]] = {}
    for use in expected.uses:
        for key in use.keys:
            by_key.setdefault(key, []).append(use)
    for use in seen.uses:
        sources = {key for own in use.keys if own in entries for key in entries[own].sources}
        turn = told[use.told] = told.get(use.told, -1) + 1
        near = {u.index: u for key in sources for u in by_key.get(key, ())}
        same = [u for u in near.values() if u.kind == use.kind] or list(near.values())
        same.sort(key=lambda u: (-len(sources & set(u.keys)), u.index))
        if same:
            most = len(sources & set(same[0].keys))
            fitting = [u for u in same if len(sources & set(u.keys)) == most]
            yield use, fitting[min(turn, len(fitting) - 1)]


#: Attributes of modules that only show in how they pad; what others do is seen in their steps.
_ATTRIBUTES = ("padding_mode",)


def _attributes(theirs: torch.nn.Module, own: torch.nn.Module, notes: _Notes) -> None:
    """Add to NOTES each attribute in `_ATTRIBUTES` (`padding_mode`) that differs between THEIRS, a module of the
    source's code, and OWN, one of the model, with the value that OWN has to get. Only text counts: nothing is added if
    one of the modules lacks the attribute. The modules are not changed.
    """
    for name in _ATTRIBUTES:
        a, b = getattr(theirs, name, None), getattr(own, name, None)
        if isinstance(a, str) and isinstance(b, str) and a != b:
            one = notes.add(name, f"has {name} {a}", f"has {name} {b}")
            if all(module is not own for module, _, _ in one.modules):
                one.modules.append((own, name, a))


def _of_step(theirs: Step, own: Step, notes: _Notes) -> None:
    """Compare THEIRS, an operation of the source's code, and OWN, one of the same name in the model. If settings differ
    that both have, add to NOTES one item for all of these ("has eps 1e-05"), with a function that runs THEIRS in place
    of OWN; else nothing. Numbers are equal up to a millionth.
    """
    a, b = dict(theirs.settings), dict(own.settings)
    differ = [name for name in a if name in b and not _is_same(a[name], b[name])]
    if not differ:
        return
    first, second = (", ".join(f"{_word(name)} {_value(x[name])}" for name in differ) for x in (a, b))
    op = _operation(own.name)
    is_layer = own.name in _LAYERS
    shown = ("has {}" if is_layer else f"has {op} with {{}}").format
    one = notes.add(", ".join(map(_word, differ)) if is_layer else op, shown(first), shown(second))
    one.swaps[own.number] = instead(theirs)


def _is_same(one: Any, other: Any) -> bool:
    """Return whether two values of a setting are equal; two floats are equal if they differ by at most a millionth of
    the larger one, because code computes them in float32.
    """
    both = isinstance(one, float) and isinstance(other, float)
    return isclose(one, other, rel_tol=1e-6) if both else bool(one == other)


_LAYERS = frozenset(
    "convolution native_layer_norm native_group_norm native_batch_norm _native_batch_norm_legit_no_training "
    "_fused_rms_norm".split()
)
_WORDS = {"group": "groups", "other": "number"}


def _word(name: str) -> str:
    """Return the name of a setting, called NAME by torch, for a message to the user: "groups" for "group", "number" for
    "other", else NAME.
    """
    return _WORDS.get(name, name)


def _operation(name: str) -> str:
    """Return the name of an operation of torch for a message to the user, without what torch adds to it: "softmax" for
    "_softmax", "layer_norm" for "native_layer_norm", "max_pool2d" for "max_pool2d_with_indices".
    """
    plain = name.removeprefix("_native_").removeprefix("native_").removeprefix("_").removesuffix("_forward")
    return plain.removesuffix("_with_indices")


def _value(value: Any) -> str:
    """Return the VALUE of a setting for a message to the user, a float with six digits."""
    return f"{value:g}" if isinstance(value, float) else str(value)


# ------------------------------------------------------------------------------------------------- between weights


@dataclass(frozen=True, slots=True)
class _Token:
    """A step in a form in which two codes can be compared: all operations that scale in succession are one factor.

    Attributes:
        name: "scale", "add", "dropout", "_softmax" or the name of another operation.
        settings: pairs (name, value): ("scale", factor) for a scale, ("number", what is added) for an "add", ("p",
            probability to drop a number) for a dropout.
        steps: the steps that it stands for.
        of_attention: whether it is the scale directly before a softmax, or that of a fused attention.
    """

    name: str
    settings: tuple[tuple[str, Any], ...]
    steps: tuple[Step, ...]
    of_attention: bool = False

    @property
    def look(self) -> Any:
        """Return (name, settings), which is equal for two tokens that do the same."""
        return self.name, self.settings

    @property
    def factor(self) -> float:
        """Return the factor by which this token multiplies. Only a token "scale" has one; for others, KeyError is
        raised.
        """
        return float(dict(self.settings)["scale"])


def _tokens(steps: Sequence[Step]) -> list[_Token]:
    """Return STEPS (operations without weights) of one code as tokens, in their order; if two codes do the same, their
    tokens are equal.

    Multiplications by numbers that follow one another become one token "scale" (its factor is their product), and fused
    attention becomes a scale and a softmax. Left out are products of matrices; a scale of 1, and a 0 that is added; and
    the factor after a dropout that makes up for it (`_keeps_the_size`).
    """
    out: list[_Token] = []

    def scaled(step: Step, factor: float, of_attention: bool = False) -> None:
        """Add STEP, which multiplies by FACTOR, as a token; if the last one is a scale, as one token with that."""
        if out and out[-1].name == "scale":
            last = out.pop()
            factor, steps = last.factor * factor, (*last.steps, step)
        else:
            steps = (step,)
        out.append(_Token("scale", (("scale", _rounded(factor)),), steps, of_attention))

    for step in steps:
        given = dict(step.settings)
        if step.is_attention:
            scaled(step, given["scale"], True)
            out.append(_Token("_softmax", (), (step,)))
        elif step.name == "bernoulli":
            out.append(_Token("dropout", (("p", _rounded(1 - given.get("p", 0.5))),), (step,)))
        elif step.factor is not None:
            if not (out and out[-1].name == "dropout" and _keeps_the_size(out[-1], step.factor)):
                scaled(step, step.factor)
        elif step.added is not None:
            out.append(_Token("add", (("number", _rounded(step.added)),), (step,)))
        elif step.name not in _PRODUCTS and not (step.name in ("add", "sub") and given.get("other") == 0):
            out.append(_Token(step.name, step.settings, (step,)))
        if step.name == "_softmax" and len(out) > 1 and out[-2].name == "scale":
            out[-2] = replace(out[-2], of_attention=True)
    return [token for token in out if token.look != ("scale", (("scale", 1.0),))]


def _rounded(number: float) -> float:
    """Return NUMBER with six digits: code may compute it in float32, or in float64."""
    return float(f"{number:.6g}")


def _keeps_the_size(dropout: _Token, factor: float) -> bool:
    """Return whether FACTOR is 1 / (1 - p), where p is the probability of DROPOUT: code multiplies by it in training to
    make up for what the dropout sets to 0.
    """
    return bool(abs(factor * (1 - dict(dropout.settings)["p"]) - 1) < 1e-6)


#: Products of matrices, which have no settings.
_PRODUCTS = frozenset({"mm", "addmm", "bmm", "baddbmm"})


def _between(theirs: Sequence[Step], own: Sequence[Step], use: Step | None, notes: _Notes) -> None:
    """Add to NOTES what differs in the steps (operations without weights) before a layer: THEIRS in the source's code,
    OWN in the model, in order. Steps that are equal in both are skipped. What stands between them in one code is
    compared with what stands there in the other (`_instead_of`): other settings, another activation, a missing step.
    USE is the step of the layer itself in the model; None if it has none, or if THEIRS and OWN are before an output.
    """
    a, b = _tokens(theirs), _tokens(own)
    matcher = SequenceMatcher(None, [t.look for t in a], [t.look for t in b], autojunk=False)
    for kind, i, i_end, j, j_end in matcher.get_opcodes():
        if kind != "equal":
            following = next((t.steps[0] for t in b[j_end:]), use)
            _instead_of(a[i:i_end], b[j:j_end], following, notes)


def _instead_of(theirs: list[_Token], own: list[_Token], following: Step | None, notes: _Notes) -> None:
    """Add to NOTES what differs between THEIRS, steps of the source's code, and OWN, the steps of the model in their
    place, both as tokens. First, steps of one name are paired, and their settings compared; then, if each list has just
    one activation left (any step but a scale, an "add" or a dropout), these two are paired; then each step that is left
    is noted as one that only one code has. Pairs are removed from both lists.

    Each note gets a function that makes the model do as the source's code (`Setting.swaps`), where one is known: the
    other activation, a factor, a step that is left out, or one of the source's code put in before FOLLOWING, the next
    step of the model (None: then none is put in).
    """
    for token in list(theirs):
        same = next((t for t in own if t.name == token.name), None)
        if same is not None:
            theirs.remove(token)
            own.remove(same)
            _other_settings(token, same, notes)
    acts, own_acts = ([t for t in some if t.name not in ("scale", "add", "dropout")] for some in (theirs, own))
    if len(acts) == len(own_acts) == 1:
        one = notes.add("activation", f"has {_shown(acts[0])}", f"has {_shown(own_acts[0])}")
        if len(acts[0].steps) == 1:
            one.swaps[own_acts[0].steps[-1].number] = instead(acts[0].steps[0])
        theirs.remove(acts[0])
        own.remove(own_acts[0])
    for token in own:
        one = notes.add(_called(token), f"has no {_called(token)}", f"has {_shown(token)}")
        one.swaps[token.steps[-1].number] = times(1 / token.factor) if token.name == "scale" else left_out
    for token in theirs:
        one = notes.add(_called(token), f"has {_shown(token)}", f"has no {_called(token)}")
        if following is None:
            continue
        if token.name == "scale":
            one.swaps[following.number] = times(token.factor, before=True)
        elif len(token.steps) == 1 and token.name != "dropout" and not token.steps[0].is_attention:
            one.swaps[following.number] = before(token.steps[0])


def _other_settings(theirs: _Token, own: _Token, notes: _Notes) -> None:
    """Add to NOTES what differs between THEIRS, a step of the source's code, and OWN, a step of the model of the same
    name, both as tokens: the factor of a scale, the probability of a dropout, the number that is added (called "eps" if
    both are below 0.05), or else the settings (`_of_step`). A dropout gets no function in `Setting.swaps`.
    """
    if theirs.name == "scale":
        name = _called(own)
        one = notes.add(name, f"has {name} {theirs.factor:g}", f"has {name} {own.factor:g}")
        one.swaps[own.steps[-1].number] = times(theirs.factor / own.factor)
    elif theirs.name == "dropout":
        first, second = (dict(t.settings)["p"] for t in (theirs, own))
        notes.add("dropout", f"has dropout {first:g}", f"has dropout {second:g}")
    elif theirs.name == "add":
        first, second = (dict(t.settings)["number"] for t in (theirs, own))
        name = "eps" if 0 < max(abs(first), abs(second)) < 0.05 else "number that is added"
        one = notes.add(name, f"has {name} {first:g}", f"has {name} {second:g}")
        one.swaps[own.steps[-1].number] = instead(theirs.steps[-1])
    else:
        _of_step(theirs.steps[-1], own.steps[-1], notes)


def _called(token: _Token) -> str:
    """Return the name of TOKEN in a text: "scale of attention", "scale", or that of the operation ("softmax")."""
    if token.name == "scale":
        return "scale of attention" if token.of_attention else "scale"
    return _operation(token.name)


def _shown(token: _Token) -> str:
    """Return the name of TOKEN in a text, with its factor or settings: "scale 0.5", "gelu (approximate tanh)"."""
    if token.name == "scale":
        return f"{_called(token)} {token.factor:g}"
    given = ", ".join(f"{_word(name)} {_value(value)}" for name, value in token.settings)
    return _operation(token.name) + (f" ({given})" if given else "")


__all__ = ["Setting", "layer_of", "settings"]
