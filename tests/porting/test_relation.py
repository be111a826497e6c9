"""What pairs show about places: only what always goes to one, to which nothing else goes, is known."""

from hypothesis import given
from hypothesis import strategies as st

from ckptool.porting.matching.series import Relation, Ways

COUPLES = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from("wxyz")))


@given(COUPLES)
def test_what_is_sure_was_seen_and_nothing_seen_contradicts_it(couples: list[tuple[str, str]]) -> None:
    sure = Relation(couples).sure()
    assert all(
        ({there for own, there in couples if own == a}, {own for own, there in couples if there == b}) == ({b}, {a})
        for a, b in sure.items()
    )


@given(COUPLES)
def test_a_relation_holds_where_every_place_goes_to_one_of_its_own(couples: list[tuple[str, str]]) -> None:
    own, theirs = ({couple[side] for couple in couples} for side in (0, 1))
    assert Relation(couples).holds() == (len(own) == len(theirs) == len(set(couples)))


def test_labels_are_equal_for_what_goes_to_each_other_and_missing_for_what_is_not_known() -> None:
    relation = Relation([("conv1", "first"), ("conv2", "second"), ("bn", "norm1"), ("bn", "norm2")])
    labels = relation.labels({1: "conv1", 2: "conv2", 3: "bn", 4: "new"}, {5: "second", 6: "first", 7: "norm1"})
    assert labels[1] == labels[6] != labels[2] == labels[5]
    assert labels.keys() == {1, 2, 5, 6}


def test_a_member_of_a_known_series_has_the_label_of_what_it_goes_to() -> None:
    ways = Ways([(("blocks", "0", "norm"), ("norms_1",)), (("blocks", "1", "norm"), ("norms_2",))])
    assert ways.label(("blocks", "7", "norm"), True) == ways.label(("norms_8",), False) is not None
    assert ways.label(("blocks", "7", "conv"), True) is None


def test_a_series_beside_a_known_one_is_counted_by_its_rule() -> None:
    ways = Ways([(("blocks", "0", "norm"), ("norms", "1")), (("blocks", "1", "norm"), ("norms", "2"))])
    assert ways.beside("blocks.{}.conv", "norms.{}") == {(1, 1)}
    assert ways.beside("blocks.{}.conv", "decoder.norms.{}") == set()
