"""Small examples for each rule, in `rule_examples.json`: name of the rule -> the smallest pair of sides that needs it.

Each is run as a test: with the rule, a key gets the result in the example, and without it another result. If an example
says what the rule needs (`unless`), the rule makes no difference on sides that do not have it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache
from importlib.resources import files
from typing import Any

from ..checkpoint import Role
from ..disk.documents import read_json
from ..model_code.signature import (
    Axis,
    Bypass,
    Entry,
    Facts,
    Flattened,
    Flow,
    Gate,
    Layout,
    Neighbours,
    Part,
    Signature,
)

#: How facts that are more than a number or a text are read.
_FACTS: dict[str, Any] = {
    "flow": lambda value: Flow(*value),
    "flattened": lambda value: Flattened(*value),
    "unflattened": lambda value: Flattened(*value),
    "gate": lambda value: Gate(*value),
    "bypasses": lambda value: tuple(Bypass(*one) for one in value),
    "layout": lambda value: Layout(value[0], tuple(value[1])),
    "joined": lambda value: tuple(tuple(one) for one in value),
    "modulates": tuple,
    "parts": lambda value: tuple(Part(*one) for one in value),
    "takes": lambda value: tuple(Part(*one) for one in value),
    "pixels": lambda value: tuple(Axis(*one) for one in value),
    "dims": tuple,
    "gates": tuple,
    "neighbours": lambda value: Neighbours(tuple(value[0]), value[1]),
}


#: What becomes of a key: its status, what it is made of, and the reasons of its open questions.
Outcome = tuple[str, str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Example:
    """Two small sides, and the result of matching for one key.

    Attributes:
        source, target: the keys, sizes and facts of the two sides, as `signature` reads them.
        key: a key of the target.
        status, gives: the status of that key, and its expression as text, "" if it has none.
        asks: the names of the reasons of its open questions.
        scale: the factor of low-rank adapters, if the file states it.
        values: key of the source -> numbers that its tensor holds over and over.
        unless: "source", "target" or "values" -> one that lacks something that the rule needs; it replaces that of the
            example. Empty if there is none.
    """

    source: Mapping[str, Any]
    target: Mapping[str, Any]
    key: str
    status: str
    gives: str
    asks: Sequence[str] = ()
    scale: float | None = None
    values: Mapping[str, Sequence[float]] = field(default_factory=dict)
    unless: Mapping[str, Any] = field(default_factory=dict)

    @property
    def outcome(self) -> Outcome:
        """Return what becomes of the key with the rule: (its status, its expression as text, the names of the reasons
        of its open questions).
        """
        return self.status, self.gives, tuple(self.asks)

    def without_need(self) -> Example:
        """Return the example with the sides or values of `unless`. The rule makes no difference to these: with it and
        without it, the result is the same. It need not be `outcome`.
        """
        return replace(self, **self.unless)


@cache
def examples() -> dict[str, Example]:
    """Return name of a rule -> its example, in the order of the file, which is read once."""
    text = files(__package__).joinpath("rule_examples.json").read_text(encoding="utf-8")
    return {name: Example(**one) for name, one in read_json(text).items()}


def signature(side: Mapping[str, Any], *, is_target: bool) -> Signature:
    """Return the signature of SIDE, one side of an example. With IS_TARGET it is that of a model, named "Net", whose
    tensors are parameters; else that of a file, in which it is not known what is a parameter.

    SIDE has `tensors` (key -> sizes). It may have `used` (the keys in the order of execution, without which it was not
    traced), `known` (key -> attributes of `Entry`, with `facts` as name -> value; they replace those set by default),
    `sorted` (whether the order of the keys means nothing) and `rotary` (as in `Signature`). An assertion fails if
    `known` has a name that is no attribute.
    """
    used = {key: place for place, key in enumerate(side.get("used", ()))}
    learned = {field.name for field in fields(Entry)}
    entries = {}
    for key, sizes in side["tensors"].items():
        more = dict(side.get("known", {}).get(key, {}))
        facts = {name: _FACTS.get(name, lambda value: value)(value) for name, value in more.pop("facts", {}).items()}
        assert more.keys() <= learned
        if "stated" in more:
            more["stated"] = Role(*more["stated"])
        entry = {"parameter": True if is_target else None, "used": used.get(key), **more}
        entries[key] = Entry(key, tuple(sizes), facts=Facts(**facts), **entry)
    return Signature(
        "Net" if is_target else "a file",
        entries,
        ordered=not side.get("sorted", False),
        traced=bool(used),
        rotary=side.get("rotary"),
    )


__all__ = ["Example", "examples", "signature"]
