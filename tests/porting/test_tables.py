"""Every rule is a row of a table, and the page of the documentation is made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckptool.porting import rivals
from ckptool.porting.forms import step_table
from ckptool.porting.holes import conventions, substitutes
from ckptool.porting.matching import match
from ckptool.porting.port import port
from ckptool.porting.questions import still_open
from ckptool.porting.rule_examples import Example, Outcome, examples, signature
from ckptool.porting.rules import Rule, in_order
from ckptool.porting.tables import TABLES, page, rule

ROWS = [row for _, rows in TABLES.values() for row in rows]


def test_the_page_about_matching_is_up_to_date() -> None:
    stored = Path(__file__).parents[2] / "docs" / "matching.md"
    assert stored.read_text(encoding="utf-8") == page(), "python -m ckptool.porting.tables > docs/matching.md"


def test_no_two_rows_of_all_tables_have_one_name() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_says_what_it_found_and_why_that_is_right(row: Rule[object]) -> None:
    assert rule(row.name) is row
    for sentence in (row.says, row.why):
        assert sentence[0] in "`" or sentence[0].isupper()
        assert sentence.endswith(".")
    assert not row.when.endswith(".")


def test_rows_are_taken_by_their_numbers() -> None:
    one, other = (Rule(name, order, "It.", "So.", None) for name, order in (("b", 2), ("a", 1)))
    assert [row.name for row in in_order(one, other)] == ["a", "b"]


def test_two_rows_in_one_place_are_refused() -> None:
    one, other = (Rule(name, 1, "It.", "So.", None) for name in "ab")
    with pytest.raises(AssertionError, match="two rows in one place"):
        in_order(one, other)


#: Where the rules of each table are taken from when a side is matched.
PLACES = [
    (step_table, "STEPS"),
    (match, "TELLING"),
    (match, "SUPPORT"),
    (rivals, "WEIGHING"),
    (substitutes, "SUBSTITUTES"),
    (conventions, "CONVENTIONS"),
]


def without(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a row out of its table."""
    for module, table in PLACES:
        rows = getattr(module, table)
        monkeypatch.setattr(module, table, tuple(row for row in rows if row.name != name))


def result(example: Example) -> Outcome | None:
    """What becomes of the key of an example, or None if that cannot be worked out."""
    sides = (signature(side, is_target=side is example.target) for side in (example.source, example.target))
    sizes = example.source["tensors"]
    values = {key: np.resize(np.array(held, "float32"), sizes[key]) for key, held in example.values.items()}
    try:
        entry = port(*sides, values=values.get if values else None, lora_scale=example.scale)[example.key]
    except StopIteration:  # what a step calls the tensors is missing
        return None
    made = str(entry.expr) if entry.expr is not None else "default" if entry.default else ""
    return entry.status, made, tuple(question.reason.name for question in still_open(entry.questions))


@pytest.mark.parametrize("name", examples())
def test_an_example_comes_out_as_it_says_and_does_not_without_its_rule(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = examples()[name]
    assert result(example) == example.outcome
    without(name, monkeypatch)
    assert result(example) != example.outcome


@pytest.mark.parametrize("name", [name for name, example in examples().items() if example.unless])
def test_a_rule_makes_no_difference_where_something_that_it_needs_is_missing(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    example = examples()[name].without_need()
    with_it = result(example)
    assert with_it is not None
    without(name, monkeypatch)
    assert result(example) == with_it


#: Rows that much code asks, and of which no small pair has been found for which they are needed.
NO_EXAMPLE = {"modules of its class", "settled in other blocks"}


def test_every_row_has_an_example_and_every_example_a_row() -> None:
    assert list(examples()) == [row.name for row in ROWS if row.name not in NO_EXAMPLE]
