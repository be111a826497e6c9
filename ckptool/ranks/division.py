"""Dividing work among ranks by its bytes. All ranks compute the same division, so nobody has to be asked."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import accumulate, pairwise


def divide(sizes: Sequence[int], ranks: int) -> list[list[int]]:
    """Give each of RANKS some of the items, so that all have about the same number of bytes.

    The largest item goes first, always to the rank that has least (LPT: Graham 1969; the heaviest rank has at most 4/3
    of the least possible). Items of a rank are in order.

    Args:
        sizes: bytes of each item.
        ranks: how many there are.

    Returns:
        For each rank, the numbers of its items.
    """
    mine: list[list[int]] = [[] for _ in range(ranks)]
    heap = [(0, rank) for rank in range(ranks)]
    for number in sorted(range(len(sizes)), key=lambda n: (-sizes[n], n)):
        total, rank = heap[0]
        mine[rank].append(number)
        heapq.heapreplace(heap, (total + sizes[number], rank))
    return [sorted(numbers) for numbers in mine]


def cut_evenly(sizes: Sequence[int], ranks: int) -> list[range]:
    """Cut a row of items into one run for each of RANKS, so that all have about the same number of bytes.

    A run ends with the item whose middle is nearest to its share, so none is off by more than one item. A rank that
    reads and writes items in a row reads and writes its files from one place on.

    Args:
        sizes: bytes of each item.
        ranks: how many there are.

    Returns:
        For each rank, the numbers of its items; together they are all items.
    """
    ends = list(accumulate(sizes))
    total = ends[-1] if ends else 0
    cuts, at = [0], 0
    for rank in range(1, ranks):
        share = total * rank / ranks
        while at < len(sizes) and ends[at] - sizes[at] / 2 < share:
            at += 1
        cuts.append(at)
    cuts.append(len(sizes))
    return [range(begin, end) for begin, end in pairwise(cuts)]


def balance(totals: Sequence[int]) -> float:
    """Bytes of the rank that has most, divided by the mean of all; 1.0 where there is nothing to do."""
    return max(totals) * len(totals) / sum(totals) if sum(totals) else 1.0
