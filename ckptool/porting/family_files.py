"""Read mapping files of both kinds, by path or by name: for one model, or for a family of models (see `family`)."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..disk.documents import read_json, read_text
from ..disk.files import StrPath
from ..errors import CheckpointError, Malformed, NotFound, RuleError, printable
from . import expression as ex
from . import mapping_file, ranges
from .expression import Shape
from .family import ANY, Family, FamilyLine
from .mapping import Mapping as Port

#: Where the mapping files are that come with ckptool.
_SHIPPED = Path(__file__).parents[1] / "mappings"
#: Sections that only a mapping for a family has.
_OF_FAMILIES = ("numbers", "back", "below", "beside", "needs")


def shipped() -> list[Family]:
    """Return the built-in mappings for families, in alphabetical order of their names."""
    return [found for path in sorted(_SHIPPED.glob("*.yaml")) if isinstance(found := read(path), Family)]


def file_of(text: str) -> Path | None:
    """Return the path of the built-in mapping called TEXT (letters, digits, `_` and `-`); None if there is no such
    mapping.
    """
    path = _SHIPPED / f"{text}.yaml"
    return path if re.fullmatch(r"[\w-]+", text) and path.is_file() else None


def named(text: str) -> Family | Port:
    """Return the built-in mapping called TEXT; if there is none, the mapping in the file with the path TEXT. A file
    with the name of a built-in mapping is read only if its path has another character (`./NAME`).

    Raises:
        NotFound: TEXT is a plain name (letters, digits, `_` and `-`) of no mapping and no file.
        Unreadable, Malformed: there is no file with the path TEXT, or it is not a mapping file.
    """
    own = file_of(text)
    if own is None and re.fullmatch(r"[\w-]+", text) and not Path(text).exists():
        names = [path.stem for path in sorted(_SHIPPED.glob("*.yaml"))]
        near = difflib.get_close_matches(text, names, 1, 0.5)
        raise NotFound(
            f"there is no file {printable(text)}, and no mapping of this name comes with ckptool",
            where="--mapping",
            hint=f"did you mean {near[0]}?" if near else "`ckptool mappings` lists those that do",
        )
    return read(own or text)


def read(path: StrPath) -> Family | Port:
    """Return the mapping in the file PATH: a Family (named as the file, without its ending) if it has a section that
    only those have (`numbers`, `back`, `below`, `beside`, `needs`) or a key under `mapping` with `{...}`; else the
    mapping for one model, without sizes.

    Raises:
        Unreadable, Malformed: there is no such file, or it is no mapping file.
    """
    document = mapping_file.document_of(path)
    lines = document.get("mapping")
    general = isinstance(lines, dict) and any(f"{{{ANY}}}" in key for key in lines)
    if general or any(name in document for name in _OF_FAMILIES):
        return family_of(document, Path(path).stem, path)
    return mapping_file.mapping_of(document, path)


def without_model(mapping: Port, shapes: Mapping[str, Shape]) -> Port:
    """Return MAPPING for a source of these SHAPES, which become its `source_shapes`, with the sizes that its
    expressions give, without a model to compare with. An entry without an expression, or with keys that the source
    lacks, keeps its sizes.

    Keys that MAPPING reads are renamed, all or none, if the source has each of them with or without a wrapper
    (`module.`; see `mapping_file.fitted`).

    Raises:
        RuleError: an expression cannot be applied to these sizes; the message names the key that it makes.
    """
    mapping = mapping_file.fitted(mapping, shapes)
    entries = []
    for entry in mapping.entries:
        if entry.expr is not None and all(key in shapes for key in entry.sources):
            try:
                entry = replace(entry, shape=ex.shape_of(entry.expr, shapes))
            except RuleError as error:
                what = f"{ranges.place_of(entry.line)}{printable(entry.target)}: {error.what}"
                raise RuleError(what, where="--mapping", hint=error.hint) from None
        entries.append(entry)
    return replace(mapping, source_shapes=shapes).with_entries(entries)


def family_of(document: Mapping[str, Any], name: str, path: StrPath) -> Family:
    """Return the family in DOCUMENT, the parsed YAML of a mapping file (see `read`). Sections that are not there are
    empty.

    Args:
        document: its sections, as `mapping_file.document_of` returns them.
        name: the name of the family.
        path: the path of the file, for messages.
    Raises:
        Malformed: a section or a value is not one of a family file; the message names the line if it is known.
    """
    known = {
        "ckptool-mapping", "source", "target", "numbers", "mapping", "back", "below", "beside", "needs",
    }  # fmt: skip
    for key in document:
        if key not in known:
            raise Malformed(
                f"{ranges.place_of(ranges.number_of(key))}{printable(key)!r} is not a section of a family's mapping",
                where=path,
                hint=f"there are {', '.join(sorted(known - {'ckptool-mapping'}))}",
            )
    numbers = _texts(document, "numbers", path)
    for number in numbers:
        if not number.isidentifier():
            what = f"{ranges.place_of(ranges.number_of(number))}{printable(number)!r} is not a name of a number"
            raise Malformed(what, where=path, hint="a name is letters, digits and _")
    beside = document.get("beside") or []
    if not isinstance(beside, list) or not all(isinstance(item, str) for item in beside):
        raise Malformed("'beside' holds no list of patterns", where=path)
    below = str(document.get("below") or "")
    return Family(
        name,
        str(document.get("source") or ""),
        str(document.get("target") or ""),
        numbers,
        _lines(document, "mapping", path),
        _lines(document, "back", path),
        f"{below.removesuffix('.')}." if below else "",
        tuple(beside),
        _texts(document, "needs", path),
    )


def _texts(document: Mapping[str, Any], name: str, path: StrPath) -> dict[str, str]:
    """Return name -> text, of DOCUMENT under NAME; {} if it is absent. Raises Malformed if it is something else."""
    found = document.get(name) or {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise Malformed(f"{name!r} holds no lines NAME: TEXT", where=path)
    return found


def _lines(document: Mapping[str, Any], name: str, path: StrPath) -> tuple[FamilyLine, ...]:
    """Return the lines KEY: EXPRESSION of DOCUMENT under NAME (`mapping` or `back`) with their line numbers;
    `if_there(X)` makes an optional line with the expression X.
    """
    out = []
    for key, value in _texts(document, name, path).items():
        optional = re.fullmatch(r"if_there\((.*)\)", value, re.DOTALL)
        number = ranges.number_of(key, value)
        out.append(FamilyLine(str(key), optional[1] if optional else str(value), optional is not None, number))
    return tuple(out)


def configuration_beside(path: Any) -> dict[str, Any]:
    """Return the entries of params.json and config.json in the folder PATH or beside the file PATH; of a name that both
    have, that of params.json. A file that cannot be read as an object has none. {} if PATH is no path.
    """
    entries: dict[str, Any] = {}
    for name in ("config.json", "params.json"):
        with suppress(CheckpointError, OSError, TypeError, ValueError):
            place = Path(path)
            found = read_json(read_text((place if place.is_dir() else place.parent) / name))
            entries |= found if isinstance(found, dict) else {}
    return entries
