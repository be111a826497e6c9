"""The stored text of ports: it is what matching makes of the pairs now, and a change is shown in it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

sys.path.append(str(Path(__file__).resolve().parents[2]))
from benchmarks.golden import OF_THE_ZOO, compare, difference, lines_of, read, summary, text_of
from benchmarks.zoo import PAIRS

pytestmark = pytest.mark.no_cover  # as for the ports of the zoo

STORED = read(OF_THE_ZOO)

BEFORE = {
    "net": [
        "mapped    a.weight <- x.weight",
        "guessed   b.weight <- y.weight   (why)",
        "mapped+   b.weight <- y.weight",
    ],
    "same": ["mapped    c <- z"],
}
NOW = {
    "net": ["guessed   a.weight <- x.weight   (why)   or y.weight", *BEFORE["net"][1:]],
    "same": ["mapped    c <- z"],
}


@pytest.mark.parametrize("name", ["adapters_with_alpha", "branches_in_another_order", "one_side_of_two"])
def test_what_is_stored_of_a_pair_is_what_matching_makes_of_it(name: str) -> None:
    assert lines_of(None, name) == STORED[name], "`make golden` shows all that differs"


def test_every_pair_of_the_zoo_is_stored() -> None:
    assert list(STORED) == sorted(PAIRS)


def test_text_is_read_as_it_was_written() -> None:
    assert text_of(STORED) == OF_THE_ZOO.read_text(encoding="utf-8")


def test_an_entry_that_is_not_as_before_is_shown_and_counted() -> None:
    assert list(difference(BEFORE, NOW)) == [
        "--- net (stored)",
        "+++ net (now)",
        "@@ -1,2 +1,2 @@",
        "-mapped    a.weight <- x.weight",
        "+guessed   a.weight <- x.weight   (why)   or y.weight",
        " guessed   b.weight <- y.weight   (why)",
    ]
    assert summary(BEFORE, NOW) == "1 pair and 1 entry changed\n  mapped -> guessed: 1"


def test_pairs_that_come_and_go_are_a_difference() -> None:
    assert summary(BEFORE, {"net": BEFORE["net"]}) == "1 pair and 1 entry changed\n  mapped -> absent: 1"
    assert summary({}, {"same": BEFORE["same"]}) == "1 pair and 1 entry changed\n  absent -> mapped: 1"


def test_a_change_that_only_the_code_of_the_source_makes_is_counted() -> None:
    now = {**BEFORE, "net": [*BEFORE["net"][:2], "mapped+   b.weight <- x.weight"]}
    assert summary(BEFORE, now) == "1 pair and 1 entry changed\n  guessed -> guessed: 1"


def test_a_difference_stays_until_it_is_accepted(tmp_path: Path) -> None:
    stored = tmp_path / "out" / "golden.txt"
    assert not compare(stored, BEFORE, accept=False), "there is nothing to compare with"
    assert compare(stored, NOW, accept=False)
    assert compare(stored, NOW, accept=False)
    assert not compare(stored, NOW, accept=True)
    assert not compare(stored, NOW, accept=False)
