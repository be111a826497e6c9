"""Import the code that a user names: `MODEL.py`, `MODEL.py:Name` or `package.module:Name`. Importing it runs it.

An installed package is preferred to a folder of its name: a user who asks for `torchvision.models` inside of a download
does not mean a `torchvision` folder in it.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ..disk.paths import is_file, is_folder, is_there, shell_path
from ..errors import Unreadable

_NOTEBOOK = "jupyter nbconvert --to script {}   # makes a Python file of it"
_WAYS = "MODEL.py, MODEL.py:Name or package.module:Name"


def split(text: str) -> tuple[str, str]:
    """Return (place, name) for TEXT: (`a/b.py`, `Net`) for `a/b.py:Net`. The name is "" if there is no colon, or if a
    slash or backslash comes after the last one, as after a drive letter of Windows; the place is then TEXT.
    """
    place, colon, name = text.rpartition(":")
    if not colon or re.search(r"[\\/]", name):
        return text, ""
    return place, name


def file_of(text: str) -> Path | None:
    """Return the file of the module that TEXT (`package.module:Name`) names, found without running code. Modules in the
    current folder are found last.

    None if the place in TEXT ends with `.py` or is no dotted name, if there is no such module, or if it has no file.
    """
    place, _ = split(text)
    if place.endswith(".py") or not all(part.isidentifier() for part in place.split(".")):
        return None
    found, name = None, ""
    with _current_folder_last():
        for part in place.split("."):
            where = found and found.submodule_search_locations
            if name and where is None:
                return None
            name = f"{name}.{part}".lstrip(".")
            specs = (finder.find_spec(name, where) for finder in sys.meta_path if hasattr(finder, "find_spec"))
            found = next((spec for spec in specs if spec is not None), None)
            if found is None:
                return None
    return Path(found.origin) if found is not None and found.origin and found.has_location else None


def import_code(place: str) -> Any:
    """Import the file or the module that PLACE names, which runs it, and return the module. Exceptions of the code are
    not caught.

    Raises:
        Unreadable: PLACE names a file, which is not there or holds no code (see `require_code`).
    """
    path = Path(place)
    if not names_file(place):
        with _current_folder_last():
            return importlib.import_module(place)
    require_code(place)
    return _import_file(path)


def require_code(place: str) -> None:
    """Raise an error if PLACE names a file that cannot be imported. Nothing is run. Names of modules are not looked at.

    Raises:
        Unreadable: there is no such file, it is a folder, or Python does not import files with its suffix.
    """
    if not names_file(place):
        return
    if not is_file(place):
        what = "is a folder" if is_folder(place) else "no such file or directory"
        raise Unreadable(what, where=place or "MODEL.py", hint=_WAYS)
    if importlib.util.spec_from_file_location("model", place) is None:
        notebook = _NOTEBOOK.format(shell_path(place)) if place.endswith(".ipynb") else _WAYS
        raise Unreadable("is not a Python file", where=place, hint=notebook)


def names_file(place: str) -> bool:
    """Return whether PLACE names a file or folder, and not a module: it is empty, ends with `.py` or has a slash in it,
    or it is there and no module of that name with a file is found (`file_of`).
    """
    return not place or place.endswith(".py") or "/" in place or (is_there(place) and file_of(place) is None)


def _import_file(path: Path) -> Any:
    """Import the file PATH as a module of the package that it is in (`_import_in_package`), or alone if there is no
    `__init__.py` beside it, and return the module. Meanwhile the command line is PATH alone.
    """
    with _own_command_line(path):
        if (path.parent / "__init__.py").is_file():
            return _import_in_package(path)
        return _import_alone(path)


@contextlib.contextmanager
def _own_command_line(path: Path) -> Iterator[None]:
    """While this context is open, `sys.argv` is [PATH], without arguments: code may read it when it is imported.

    Python writes no bytecode files beside the code either, because commands that only read must leave no files.
    Both settings are restored at the end.
    """
    before = sys.argv, sys.dont_write_bytecode
    sys.argv, sys.dont_write_bytecode = [str(path)], True
    try:
        yield
    finally:
        sys.argv, sys.dont_write_bytecode = before


def _import_in_package(path: Path) -> Any:
    """Import the file PATH, which is beside an `__init__.py`, as a module of that package, so that its relative imports
    work, and return the module. Folders around it belong to the package as long as each has an `__init__.py` and an
    identifier as its name. The folder that holds the outermost of them comes first in `sys.path` meanwhile.

    PATH is imported alone (`_import_alone`) if its own name or that of its folder is no identifier, if it is the
    `__init__.py` of the outermost package, or if another package of that package's name is imported already.
    """
    place = path.resolve()
    names = [] if place.stem == "__init__" else [place.stem]
    folder = place.parent
    while (folder / "__init__.py").is_file() and folder.name.isidentifier():
        names.insert(0, folder.name)
        folder = folder.parent
    dotted = ".".join(names)
    known = sys.modules.get(names[0]) if names else None
    if not all(name.isidentifier() for name in names) or len(names) < 2 or _is_another(known, place):
        return _import_alone(path)
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(dotted)
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(str(folder))


def _is_another(known: Any, place: Path) -> bool:
    """Return whether KNOWN, an imported package, comes from none of the folders around PLACE, or from no file. False
    for None.
    """
    origin = getattr(known, "__file__", None)
    return known is not None and (origin is None or Path(origin).resolve().parent not in place.parents)


def _import_alone(path: Path) -> Any:
    """Import the file PATH as a module of its own and return it. It stays in `sys.modules` under the name of the file
    (with a number, if there is a module of that name), unless its code raises an exception, which is not caught.
    Meanwhile its folder comes first in `sys.path`.
    """
    name = re.sub(r"\W", "_", path.stem) or "model"
    if name in sys.modules:
        name = f"{name}_{abs(hash(str(path.resolve()))):x}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "require_code looked at the file"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # files beside it can be imported, as when it is run
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(folder)
    return module


@contextlib.contextmanager
def _current_folder_last() -> Iterator[None]:
    """In this context, search the current folder for modules that are found nowhere else. Nothing is changed if
    `sys.path` has that folder already, or if it was deleted.
    """
    try:
        here = str(Path.cwd())
    except OSError:  # it was deleted
        here = ""
    if not here or here in sys.path:
        yield
        return
    sys.path.append(here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)
