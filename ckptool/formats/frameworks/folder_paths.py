"""Files in folders below a folder, by paths that a file names."""

from __future__ import annotations

from ...disk.files import File
from ...disk.inside import Folder
from ...errors import Malformed, printable


class FolderPaths:
    """The files below a folder. No link is followed on the way to them, and no path leads out of it.

    Args:
        folder: the folder.
    """

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self._inner: dict[tuple[str, ...], Folder | None] = {(): folder}

    def find(self, path: str) -> File | None:
        """The file at a path with slashes, or None if there is none.

        Raises:
            Malformed: the path leads out of the folder, or through a link.
        """
        *above, name = path.split("/")
        inner = self._at(tuple(above), path)
        return inner.file(name, name) if inner is not None and name in inner.names else None

    def _at(self, parts: tuple[str, ...], path: str) -> Folder | None:
        if parts not in self._inner:
            above = self._at(parts[:-1], path)
            name = parts[-1]
            if name in ("", ".", "..") or set(name) & {"\\", ":", "\0"}:
                raise Malformed(
                    f"names {printable(repr(path), 120)}, which could lead out of the folder", where=self.folder.path
                )
            if above is not None and (above.path / name).is_symlink():
                raise Malformed(
                    f"{printable(repr(name), 80)} is a link, which is not followed",
                    where=above.path,
                )
            there = above is not None and name in above.names and (above.path / name).is_dir()
            self._inner[parts] = Folder(above.path / name) if there and above is not None else None
        return self._inner[parts]
