"""List the tables of rules of matching, in the order of their use, and write the page docs/matching.md about them.

python -m ckptool.porting.tables > docs/matching.md
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator
from functools import cache

from .forms.step_table import STEPS
from .holes.conventions import CONVENTIONS
from .holes.substitutes import SUBSTITUTES
from .matching.telling_apart import SUPPORT, TELLING
from .questions import Reason, Topic
from .rivals import WEIGHING
from .rule_examples import examples
from .rules import Rule, Strength

#: Title -> (what the table is for, its rows).
TABLES: dict[str, tuple[str, tuple[Rule[object], ...]]] = {
    "Steps towards a common form": (
        "First, both sides are changed to a common form, so that they hold tensors of equal sizes: a projection that "
        "is fused on one side only is split there. Each step has an inverse, so a tensor that both sides store in the "
        "same way is copied in the end, also if a step changed it on both sides.",
        STEPS,
    ),
    "What tells modules apart": (
        "Modules of both sides with tensors of equal sizes may be partners. Each rule tells some of them apart. "
        "The certain rules run first, until they tell nothing apart any more, then all rules. Whenever a rule told "
        "modules apart, the certain rules start again.",
        TELLING,
    ),
    "What supports a pair": (
        "If a pair was made only because no other module has this shape, it needs support. The first rule that says "
        "yes or no decides; if no rule does, the two are not paired.",
        SUPPORT,
    ),
    "What weighs pairs against their swaps": (
        "Two pairs of look-alikes could have each other's tensors, and no shape would show it. A pair is certain only "
        "if the evidence is worse for every such swap.",
        WEIGHING,
    ),
    "What fills what has no partner": (
        "These rules fill keys of the model that were not matched with any tensor of the source.",
        SUBSTITUTES,
    ),
    "Conventions of code": (
        "Code may do each of these in two ways, and neither names nor shapes show in which. Each rule asks a question, "
        "unless other evidence answers it.",
        CONVENTIONS,
    ),
}


@cache
def rule(name: str) -> Rule[object] | None:
    """Return the rule called NAME in any table; None if there is none."""
    return next((row for _, rows in TABLES.values() for row in rows if row.name == name), None)


def page() -> str:
    """Return the text of docs/matching.md: the tables, the sentences of questions, and why a key has no source."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    """Yield the lines of docs/matching.md, without line ends: an introduction, a table for each of `TABLES`, the table
    of the sentences of questions, and the list of reasons why a key has no source.
    """
    yield "# How matching decides"
    yield ""
    yield from _folded(
        "This page is made from the tables of the code (`python -m ckptool.porting.tables > docs/matching.md`). "
        "`ckptool transfer … --explain KEY` says which of these rules decided about one key. "
        "[docs/transfer.md](transfer.md) says how to use it."
    )
    yield ""
    yield from _folded(
        f"A rule without a mark: {Strength.CERTAIN.value}. (likely): {Strength.LIKELY.value}. (asks): "
        f"{Strength.OPEN.value}. An example is a key of the model and the expression that fills it. If a step was done "
        "on the model's side, the expression shows its inverse: a step that joins tensors is shown as a `slice`."
    )
    for title, (purpose, rows) in TABLES.items():
        yield from ("", f"## {title}", "")
        yield from _folded(purpose)
        yield ""
        yield "| rule | what it says | why that is right | for example |"
        yield "|---|---|---|---|"
        for row in rows:
            says = row.says if not row.when else f"{row.says} Asked where {row.when}."
            mark = {Strength.CERTAIN: "", Strength.LIKELY: " (likely)", Strength.OPEN: " (asks)"}[row.strength]
            yield f"| {row.name}{mark} | {says} | {row.why} | {_example(row.name)} |"
    yield from ("", "## Questions", "")
    yield from _folded(
        "If a rule is not sure, it asks a question with options. An entry with an open question is a guess. These are "
        "the sentences; `{}` stands for a name or a number. The user or a proof answers a question; where the second "
        "column says what it is about, later rules may answer it, too."
    )
    yield from ("", "| sentence | about |", "|---|---|")
    for reason in Reason:
        if reason.topic is not Topic.LEFT:
            yield f"| {reason.says} | {'' if reason.topic is Topic.OTHER else reason.topic.value} |"
    yield from ("", "## Why a key has no source", "")
    yield from _folded("These are no questions: there is nothing to answer.")
    yield ""
    yield from (f"- {reason.says}" for reason in Reason if reason.topic is Topic.LEFT)


def _example(name: str) -> str:
    """Return a table cell with the example of the rule called NAME: a key and the expression that fills it, with
    whether that is a guess, or that it has no source; "" if the rule has no example.
    """
    example = examples().get(name)
    if example is None:
        return ""
    guess = ", a guess" if example.status == "guessed" else ""
    made = example.gives.replace("|", "\\|")
    return f"`{example.key}` <- `{made}`{guess}" if made else f"`{example.key}` has no source"


def _folded(text: str) -> list[str]:
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    sys.stdout.write(page())


__all__ = ["TABLES", "page", "rule"]
