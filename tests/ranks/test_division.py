"""Even shares of work, the same on every rank."""

from hypothesis import given
from hypothesis import strategies as st

from ckptool.ranks import balance, cut_evenly, divide

SIZES = st.lists(st.integers(0, 10**12), max_size=60)


@given(SIZES, st.integers(1, 20))
def test_every_item_is_given_to_one_rank(sizes, ranks):
    for shares in (divide(sizes, ranks), cut_evenly(sizes, ranks)):
        assert len(shares) == ranks
        assert sorted(number for share in shares for number in share) == list(range(len(sizes)))


@given(SIZES.filter(any), st.integers(1, 20))
def test_no_rank_has_more_than_the_mean_and_the_largest_item(sizes, ranks):
    for shares in (divide(sizes, ranks), cut_evenly(sizes, ranks)):
        heaviest = max(sum(sizes[number] for number in share) for share in shares)
        assert heaviest <= sum(sizes) / ranks + max(sizes)


@given(SIZES, st.integers(1, 20))
def test_a_row_is_cut_into_runs(sizes, ranks):
    ends = [0]
    for share in cut_evenly(sizes, ranks):
        assert share.start == ends[-1]
        ends.append(share.stop)


def test_the_largest_item_goes_first():
    assert divide([1, 1, 1, 1, 4], 2) == [[4], [0, 1, 2, 3]]


def test_balance_is_that_of_the_heaviest_rank():
    assert balance([3, 1]) == 1.5
    assert balance([0, 0]) == 1.0
