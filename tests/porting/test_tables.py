"""Every rule is a row of a table, and the page of the documentation is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest

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
