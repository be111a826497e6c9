"""Folders elsewhere: those that can be listed, and those of the web, whose files are found by their names."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from .addresses import Url
from .files import File
from .inside import Folder
from .remote import FIRST, THREADS

#: Opens a file of a folder by its name, and asks for so many of its bytes at once; None where there is no such file.
Opener = Callable[[str, int], File | None]


class RemoteFolder(Folder):
    """A folder elsewhere.

    Args:
        path: where it is.
        files: the names of its files.
        open_one: opens one of them.
        folders: the names of the folders in it.
        listed: whether these are all names. If not, a file is looked for when it is named.
        opened: those of its files that were opened to find it.
    """

    unfinished = "the upload did not finish; upload the missing file, or use an earlier checkpoint"

    def __init__(
        self,
        path: Url,
        files: Iterable[str],
        open_one: Opener,
        *,
        folders: Iterable[str] = (),
        listed: bool = True,
        opened: Mapping[str, File] | None = None,
    ) -> None:
        self.path: Url = path
        self._fd = -1
        self._open: dict[str, File] = dict(opened or {})
        self._files = frozenset(files)
        self._open_one = open_one
        self._listed = listed
        self.names = tuple(sorted({*self._files, *folders}))

    def lying(self, name: str) -> Literal["file", "outside", "other"]:
        """What a name in this folder is. There are no links elsewhere."""
        return "file" if name in self._files else "other"

    def expect(self, heads: Mapping[str, int]) -> None:
        """Open files that will be read soon, several at once, each with its first bytes."""
        wanted = [name for name in heads if name not in self._open and (name in self._files or not self._listed)]
        with ThreadPoolExecutor(THREADS, "open") as pool:
            for name, found in zip(wanted, pool.map(lambda n: self._open_one(n, heads[n]), wanted), strict=True):
                if found is not None:
                    self._open[name] = found

    def _found(self, name: str) -> File | None:
        if self._listed and name not in self._files:
            return None
        return self._open_one(name, FIRST)
