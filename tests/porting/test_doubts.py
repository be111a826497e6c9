"""A doubt is a sentence for people and a kind for rules."""

import pytest

from ckptool.porting.doubts import About, Doubt


def test_what_a_doubt_speaks_of_stands_in_its_sentence() -> None:
    assert str(Doubt("the names speak for the swap with {}", named="a.b")) == "the names speak for the swap with a.b"


def test_braces_of_a_sentence_that_names_nothing_stay() -> None:
    assert str(Doubt("blocks.{}.norm stands once in the source")) == "blocks.{}.norm stands once in the source"


def test_a_name_with_braces_is_no_place_for_another() -> None:
    assert str(Doubt("it is beside {}", named="a.{}")) == "it is beside a.{}"


@pytest.mark.parametrize("about", About)
def test_only_what_is_about_equal_parts_is_of_parts(about: About) -> None:
    assert Doubt("why", about).of_parts == (about in {About.PARTS, About.COUNT})
