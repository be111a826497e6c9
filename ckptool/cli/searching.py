"""The files that a command is given, with those in the folders among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from ..disk.addresses import is_url
from ..disk.files import is_folder
from ..disk.inside import files_in
from ..errors import Unreadable


class Search:
    """Each file, and whether it was named itself.

    Args:
        named: files and folders, as they were typed.
        whole: whether a folder counts as one file. Of folders elsewhere, all do if this is given.

    Attributes:
        left_alone: links out of the folders that were met so far. They are not followed.
        failures: why folders could not be searched.
    """

    def __init__(self, named: Sequence[str], whole: Callable[[str], bool] | None = None) -> None:
        self._named = named
        self._all_whole = whole is not None
        self._whole = whole or (lambda _: False)
        self.left_alone: list[str] = []
        self.failures: list[Unreadable] = []

    def __iter__(self) -> Iterator[tuple[str, bool]]:
        for name in self._named:
            if is_url(name):
                yield from self._elsewhere(name)
                continue
            if not is_folder(name) or self._whole(name):
                yield name, True
                continue
            for path, inside in files_in(name, self.failures.append):
                if inside:
                    yield path, False
                else:
                    self.left_alone.append(path)

    def _elsewhere(self, name: str) -> Iterator[tuple[str, bool]]:
        from ..disk.urls import files_at

        inside = None if self._all_whole else files_at(name, self.failures.append)
        if inside is None:
            yield name, True
        else:
            yield from ((path, False) for path in inside)
