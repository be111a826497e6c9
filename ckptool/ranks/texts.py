"""Texts in the key-value store that all ranks of a launcher reach."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, TypeVar

_T = TypeVar("_T")

#: Characters of one value of the store, which takes 8 MiB; a longer one is in pieces, and says how many. JSON never
#: begins like that.
_LONGEST_TEXT, _IN_PIECES = 4 << 20, "pieces "


class Texts:
    """Plain data under names, as JSON.

    Attributes:
        run: the beginning of all names of this run in the store.
    """

    def __init__(self, store: Any, gone: Callable[[RuntimeError], NoReturn]) -> None:
        """Ask nothing of the store yet.

        Args:
            store: a `torch.distributed.Store`.
            gone: what raises the error for a store that does not answer.
        """
        self.run = ""
        self._store, self._gone = store, gone

    def set(self, name: str, value: Any) -> None:
        """Keep VALUE under NAME."""
        name, text = self.run + name, json.dumps(value)
        pieces = [text[at : at + _LONGEST_TEXT] for at in range(0, len(text), _LONGEST_TEXT)]
        if len(pieces) > 1:
            for number, piece in enumerate(pieces):
                self._reaching(partial(self._store.set, f"{name}/{number}", piece))
            text = f"{_IN_PIECES}{len(pieces)}"
        self._reaching(lambda: self._store.set(name, text))

    def set_first(self, name: str, value: Any) -> Any:
        """Keep VALUE under NAME if no rank was faster; return what is there. A store that is gone raises its own
        error."""
        return json.loads(self._store.compare_set(self.run + name, "", json.dumps(value)))

    def add(self, name: str, number: int) -> int:
        """Add NUMBER to the count under NAME, and return the sum."""
        return int(self._store.add(self.run + name, number))

    def get(self, name: str) -> Any:
        """Return the value under NAME, which is there."""
        name = self.run + name
        text = self._reaching(lambda: self._store.get(name)).decode()
        if text.startswith(_IN_PIECES):
            count = int(text.removeprefix(_IN_PIECES))
            pieces = [self._reaching(partial(self._store.get, f"{name}/{number}")) for number in range(count)]
            text = b"".join(pieces).decode()
        return json.loads(text)

    def delete(self, name: str) -> None:
        """Remove NAME, if this store can."""
        name = self.run + name
        with contextlib.suppress(RuntimeError, NotImplementedError):
            text = self._store.get(name).decode()
            count = int(text.removeprefix(_IN_PIECES)) if text.startswith(_IN_PIECES) else 0
            for one in (name, *(f"{name}/{number}" for number in range(count))):
                self._store.delete_key(one)

    def __contains__(self, name: str) -> bool:
        return bool(self._reaching(lambda: self._store.check([self.run + name])))

    def _reaching(self, ask: Callable[[], _T]) -> _T:
        try:
            return ask()
        except RuntimeError as error:  # of the connection
            self._gone(error)
