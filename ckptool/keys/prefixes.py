"""Components that keys begin with: taken off, put in front, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def strip_prefix(key: str, prefix: str) -> str | None:
    """Return KEY without the leading components PREFIX, or None if it does not have them.

    `module` and `module.` are the same prefix. A key that is the prefix and nothing more does not have it.
    """
    head = prefix.removesuffix(".")
    if not head:
        return key
    return key[len(head) + 1 :] or None if key.startswith(head + ".") else None


def add_prefix(key: str, prefix: str) -> str:
    """Return KEY below the components PREFIX, which may be written with or without its last dot."""
    head = prefix.removesuffix(".")
    return f"{head}.{key}" if head else key


def first_component(key: str) -> str:
    """Return what stands before the first dot."""
    return key.partition(".")[0]


def drop_first(key: str) -> str | None:
    """Return KEY without its first component, whatever that is, or None if nothing would be left."""
    return key.partition(".")[2] or None


def common_prefix(keys: Iterable[str]) -> str:
    """Return the components that all KEYS begin with, without a last dot; never the whole of a key."""
    listed = list(keys)
    if not listed:
        return ""
    # What the least and the greatest share, all that sort between them share too.
    low, high = min(listed), max(listed)
    return low[: agreeing(low, high)].rpartition(".")[0]


def leading(keys: Iterable[str]) -> list[tuple[str, int]]:
    """Return the first components of KEYS and how many keys have each, most frequent first."""
    return Counter(map(first_component, keys)).most_common()


def heads(left: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return patterns that fit all keys LEFT and none of the OTHERS: the shortest heads that do."""
    taken: set[str] = set()
    for other in others:
        parts = other.split(".")
        taken.update(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    found: dict[str, None] = {}
    for key in left:
        parts = key.split(".")
        each = (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        found[next((head for head in each if head not in taken), key)] = None
    return list(found)


def agreeing(a: str, b: str) -> int:
    """Return how many characters A and B begin with alike."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
