"""Files in folders below a folder, by paths that a file names."""

from __future__ import annotations

from ...disk.addresses import Url
from ...disk.files import File
from ...disk.inside import Folder
from ...disk.urls import look
from ...errors import Malformed, printable


def folder_in(folder: Folder, name: str) -> Folder | None:
    """The folder of a plain name in FOLDER, here or elsewhere, or None if there is none.

    Raises:
        Malformed: it is a link, which may lead anywhere.
    """
    if name not in folder.names:
        return None
    place = folder.path / name
    if isinstance(place, Url):
        found = look(place) if folder.lying(name) != "file" else None
        return found if isinstance(found, Folder) else None
    if place.is_symlink():
        raise Malformed(f"{printable(repr(name), 80)} is a link, which is not followed", where=folder.path)
    return Folder(place) if place.is_dir() else None


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
            self._inner[parts] = folder_in(above, name) if above is not None else None
        return self._inner[parts]
