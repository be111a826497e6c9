"""The outline of keys: what is in it is in a key, and the other way round."""

from hypothesis import given
from hypothesis import strategies as st

from ckptool import keys

_TEXTS = st.text(st.sampled_from("ab.01\n é٣"), max_size=8)
_WORDS = st.text(st.sampled_from("ab. é"), min_size=1, max_size=3)


@given(st.lists(_TEXTS, max_size=6), _WORDS)
def test_a_word_without_digits_is_in_the_outline_if_it_is_in_a_key(names, word):
    assert (word in keys.outline(names)) == any(word in name for name in names)


@given(st.lists(_TEXTS.filter(lambda name: "\n" not in name), max_size=6), _WORDS)
def test_the_outline_shows_what_keys_begin_and_end_with(names, word):
    assert (f"\n{word}" in keys.outline(names)) == any(name.startswith(word) for name in names)
    assert (f"{word}\n" in keys.outline(names)) == any(name.endswith(word) for name in names)


def test_keys_that_differ_in_numbers_of_as_many_digits_are_one_line():
    assert keys.outline(f"layers.{number}.w1" for number in range(10_000, 30_000)) == "\nlayers.00000.w0\n"
