"""Names of files: what is there, names for outputs, and names as words of a shell, for hints."""

from __future__ import annotations

import os
import re
from itertools import islice
from pathlib import Path

from ..errors import printable
from .addresses import StrPath, is_url


def beside(path: object, word: str, suffix: str | None = None) -> str:
    """A name for an output beside PATH, quoted for a shell, so that a hint is a command that works as it stands.

    Nothing has that name yet; where nothing can be written beside PATH, it is one in the current folder.
    """
    source = Path(str(path) or "in.pth")
    if is_url(path):  # here, under the name that the file has there
        source = Path(re.split(r"[?#]", str(path))[0].partition("://")[2].rstrip("/").rpartition("/")[2] or "in.pth")
    if not source.name:  # "." or "..": beside the folder that it is
        source = Path("..") / source.resolve().name
    ending = source.name[-8:] if source.name.lower().endswith(".pth.tar") else source.suffix  # one ending, of two parts
    stem = source.name[: len(source.name) - len(ending)] or source.stem
    ending = ending if suffix is None else suffix
    folder = source.parent if _may_be_written(source.parent) else Path()
    names = (folder / f"{stem}-{word}{number}{ending}" for number in ("", *(f"-{n}" for n in range(2, _MOST_TAKEN))))
    return shell_path(next((name for name in names if not os.path.lexists(name)), folder / f"{stem}-{word}{ending}"))


#: Names that are tried before one that is taken is proposed.
_MOST_TAKEN = 100


def _may_be_written(folder: Path) -> bool:
    try:
        return os.access(folder, os.W_OK)
    except ValueError:  # a name that no system takes
        return True


def is_folder(path: StrPath) -> bool:
    """Whether there is a folder at PATH. False for names that the system does not take (pathlib raises for those)."""
    return os.path.isdir(path)


def is_file(path: StrPath) -> bool:
    """Whether there is a regular file at PATH. False for names that the system does not take."""
    return os.path.isfile(path)


def is_there(path: StrPath) -> bool:
    """Whether there is something at PATH. False for names that the system does not take."""
    return os.path.exists(path)


def shell_path(path: object) -> str:
    """PATH as one word of a shell. A name that begins like an option does not become one."""
    text = str(path)
    return shell_quote(f"./{text}" if text.startswith("-") else text)


def shell_quote(text: object, limit: int = 4096) -> str:
    """TEXT, cut at LIMIT, as one word of a shell: for the commands in hints.

    What must not reach a terminal is written as bash, zsh and ksh (and POSIX since 2024) read it: $'a\\nb'.
    """
    import shlex

    whole = str(text)
    cut = whole if len(whole) <= limit else whole[: limit - 1] + "…"
    return shlex.quote(cut) if printable(cut, limit) == cut else f"$'{''.join(map(_in_shell, cut))}'"


def _in_shell(character: str) -> str:
    if character in "\\'":
        return f"\\{character}"
    if character.isprintable():
        return character
    of_system = "\udc80" <= character <= "\udcff"  # a byte of a name that is not UTF-8
    encoded = character.encode("utf-8", "surrogateescape" if of_system else "surrogatepass")
    return "".join(f"\\x{byte:02x}" for byte in encoded)


def reason(error: BaseException) -> str:
    """What the operating system says, in lower case and without the number."""
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return text[:1].lower() + text[1:]


def near_name_hint(path: StrPath) -> str | None:
    """The name that was meant, where PATH is absent and one much like it is beside it: `did you mean model.pth?`."""
    place = Path(os.fspath(path))
    try:
        with os.scandir(place.parent) as entries:
            names = [entry.name for entry in islice(entries, _LOOKED_AT)]
    except (OSError, ValueError):
        return None
    from difflib import get_close_matches

    folded = {name.lower(): name for name in sorted(names, reverse=True)}
    near = get_close_matches(place.name.lower(), folded, 1, 0.75)
    near = near or [name for name in folded if Path(name).stem == place.name.lower()][:1]
    return f"did you mean {shell_path(place.parent / folded[near[0]])}?" if near else None


#: Names of a folder that are compared with one that is absent.
_LOOKED_AT = 2000
