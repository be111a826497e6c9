"""A long read in several requests, of which some are on their way at once.

Who asks for a store's object in one request gets what one connection brings. Here are `MOST_AHEAD` of them, each for
`SEGMENT` bytes, and as many bytes may be held at a time.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from .remote import Body, again

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

#: Bytes of a request, and how many may be on their way.
SEGMENT = 8 << 20
MOST_AHEAD = 6

_LOCK = threading.Lock()


class Held:
    """Bytes that have arrived."""

    def __init__(self, data: bytes) -> None:
        self._data = memoryview(data)

    def some(self, most: int) -> memoryview:
        """Up to MOST bytes that come next."""
        data, self._data = self._data[:most], self._data[most:]
        return data

    def close(self) -> None:
        """Let go of them."""
        self._data = memoryview(b"")


class Ahead:
    """The bytes from BEGIN to END in requests of their own, of which some are on their way at once.

    One at first, and one more for each that was read to its end: who reads little fetches little ahead.

    Args:
        fetch: gives the bytes from one place to another.
    """

    def __init__(self, fetch: Callable[[int, int], bytes], begin: int, end: int) -> None:
        self._fetch = fetch
        self._next, self._end = begin, end
        self._coming: deque[Future[bytes]] = deque()
        self._allowed = 1
        self._read = 0
        self._here = Held(b"")
        self._refill()

    def _refill(self) -> None:
        while self._next < self._end and len(self._coming) < self._allowed:
            begin, self._next = self._next, min(self._next + SEGMENT, self._end)
            self._coming.append(_pool().submit(again, lambda at=begin, to=self._next: self._fetch(at, to)))

    def some(self, most: int) -> memoryview:
        """Up to MOST bytes that come next."""
        data = self._here.some(most)
        if not data and self._coming:
            self._here = Held(self._coming.popleft().result())
            self._allowed = min(self._read + 1, MOST_AHEAD)
            self._read += 1
            self._refill()
            data = self._here.some(most)
        return data

    def close(self) -> None:
        """Ask for no more."""
        self._next = self._end
        while self._coming:
            self._coming.pop().cancel()
        self._here.close()


def body_of(fetch: Callable[[int, int], bytes], begin: int, end: int) -> Body:
    """The bytes from BEGIN to END by requests that FETCH answers, each of them whole."""
    return Held(fetch(begin, end)) if end - begin <= SEGMENT else Ahead(fetch, begin, end)


_pools: list[ThreadPoolExecutor] = []


def _pool() -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor

    with _LOCK:
        if not _pools:
            _pools.append(ThreadPoolExecutor(MOST_AHEAD + 2, "fetch"))
        return _pools[0]
