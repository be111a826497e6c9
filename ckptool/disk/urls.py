"""From a word to a file or folder, here or elsewhere. The network is asked only if the word is a URL."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from ..errors import CheckpointError, Unreadable, printable
from .addresses import HUB, STORES, WEB, StrPath, Url, address_of, as_path, is_remote, scheme_of
from .files import File, is_folder
from .inside import Folder
from .journals import as_it_was
from .remote import NotThere, RemoteFile

_READ = f"{', '.join(f'{scheme}://' for scheme in ('https', 's3', 'gs', 'az'))} and {HUB}:// are"


def look(path: StrPath) -> File | Folder:
    """The file or folder that a word names: here, or elsewhere if it is a URL.

    Raises:
        Unreadable: it cannot be opened.
        UnknownFormat: the URL is that of a web page.
    """
    place = as_path(path)
    if not isinstance(place, Url):
        _require_here(path)
        return Folder(path) if is_folder(path) else as_it_was(File(path))
    scheme = scheme_of(place)
    if scheme in WEB:
        from . import http_files

        return http_files.folder_of_names(place) or RemoteFile(http_files.HttpFetcher(place.address))
    if scheme in STORES:
        from . import stores

        return stores.look(place)
    from . import hub

    return hub.look(place)


def open_file(path: StrPath) -> File:
    """A file to read from, by its path or its URL.

    Raises:
        Unreadable: it cannot be opened, or is a folder.
        UnknownFormat: the URL is that of a web page.
    """
    if not isinstance(as_path(path), Url):
        _require_here(path)
        return as_it_was(File(path))
    found = look(path)
    if isinstance(found, Folder):
        raise Unreadable("is a folder", where=path)
    return found


def folder_of(path: StrPath) -> Folder:
    """The folder that a file is in, by the path or URL of the file. Of the web, other files are found by their names.

    Raises:
        Unreadable: it cannot be opened.
    """
    place = as_path(path)
    if not isinstance(place, Url):
        return Folder(place.parent)
    if scheme_of(place) in WEB:
        from . import http_files

        web = http_files.folder_with(place.parent, place.name)
        if web is None:
            raise NotThere("is not there", where=path, hint="look at the address")
        return web
    found = look(place.parent)
    if isinstance(found, File):
        raise Unreadable("is a file", where=place.parent)
    if place.name not in found.names:
        raise NotThere("is not there", where=path, hint="check the name")
    return found


def files_at(path: StrPath, failed: Callable[[Unreadable], None]) -> Iterator[str] | None:
    """The URLs of the files in a folder elsewhere and in the folders below it, in order; None if it is a file.

    Folders that may not be listed are told to FAILED.

    Raises:
        Unreadable: the folder is one of the web, which cannot be listed.
    """
    place = as_path(path)
    web = scheme_of(place) in WEB
    if web and not str(path).partition("?")[0].endswith("/"):
        return None
    found = look(place)
    if isinstance(found, File):
        return None
    if web:
        raise Unreadable("is a folder of the web, which cannot be listed", where=path, hint="name the files in it")
    return _below(found, failed)


def _below(folder: Folder, failed: Callable[[Unreadable], None]) -> Iterator[str]:
    for name in folder.names:
        inner = folder.path / name
        if folder.lying(name) == "file":
            yield address_of(inner)
            continue
        try:
            found = look(inner)
        except Unreadable as error:
            failed(error)
            continue
        if isinstance(found, Folder):
            yield from _below(found, failed)


def _require_here(path: StrPath) -> None:
    """Refuse a word that names something elsewhere, where nothing is read."""
    if is_remote(path):
        scheme = str(path).partition(":")[0]
        what = f"{printable(scheme)}:// is not read; {_READ}, and files"
        if scheme.lower() in (*WEB, *STORES, HUB):
            what = "a URL is given as text; a Path loses one of its slashes"
        raise Unreadable(what, where=path)


def size_of(path: StrPath) -> int:
    """Bytes of a file, for a progress bar; 0 for what is none."""
    if isinstance(as_path(path), Url):
        with contextlib.suppress(CheckpointError):
            found = look(path)
            return found.size if isinstance(found, File) else 0
        return 0
    return os.stat(path).st_size if os.path.isfile(path) else 0
