"""The plain values of objects of well-known classes: paths, dates, exact numbers, arrays of texts.

They are read off what the pickle holds; no class is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from ..tree import ByteString, Dict, List, Object
from .other_tensors import Contradiction, numbers, numpy_dtype, other_tensor


def plain_value(node: Object) -> Any:
    """The text, number or list that an object stands for, or None if its class is not one of those known here."""
    for known in _KNOWN:
        value = known(node)
        if value is not None:
            return value
    return None


def held_by_omegaconf(node: Object) -> tuple[Any] | None:
    """What a node of OmegaConf holds: a dict, a list or a value, whose parts are such nodes; None for other objects."""
    if not node.class_name.startswith("omegaconf.") or not isinstance(node.state, Dict):
        return None
    for name in ("_content", "_val"):
        if name in node.state:
            return (node.state.get(name),)
    return None


def _path(node: Object) -> str | None:
    module, _, name = node.class_name.rpartition(".")
    if module not in ("pathlib", "pathlib._local") or not all(isinstance(part, str) for part in node.args):
        return None
    parts = [str(part) for part in node.args]
    slash = "\\" if "Windows" in name else "/"
    first = parts[0] if parts else ""
    rest = slash.join(parts[1:])
    return (first + rest if first.endswith(slash) else slash.join(filter(None, [first, rest]))) or "."


def _moment(node: Object) -> Any:
    """A date, time or difference, from the bytes that they pickle as."""
    if not node.class_name.startswith("datetime.") or not node.args:
        return None
    import datetime

    raw = node.args[0].raw if isinstance(node.args[0], ByteString) else node.args[0]
    try:
        if node.class_name == "datetime.timedelta":
            return str(datetime.timedelta(*(int(part) for part in node.args)))
        if node.class_name in ("datetime.datetime", "datetime.date", "datetime.time") and isinstance(raw, bytes):
            made: Any = getattr(datetime, node.class_name[9:])(raw)
            return str(made.isoformat())
    except (TypeError, ValueError, OverflowError):
        return None
    return "UTC" if node.class_name == "datetime.timezone" else None


def _exact(node: Object) -> Any:
    """Decimal, Fraction and UUID."""
    if node.class_name in ("decimal.Decimal", "fractions.Fraction"):
        whole = all(type(part) is int or isinstance(part, str) for part in node.args)
        return "/".join(map(str, node.args)) if whole and node.args else None
    if node.class_name == "uuid.UUID" and isinstance(node.state, Dict):
        number = node.state.get("int")
        if type(number) is int and 0 <= number < 1 << 128:
            digits = f"{number:032x}"
            return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))
    return None


def _range(node: Object) -> Any:
    if node.class_name in ("builtins.range", "builtins.slice") and all(
        part is None or type(part) is int for part in node.args
    ):
        return f"{node.class_name[9:]}({', '.join(map(str, node.args))})"
    return None


def _dtype(node: Object) -> Any:
    if node.class_name != "numpy.dtype":
        return None
    found = numpy_dtype(node)
    return found[0].name if found else str(node.args[0]) if node.args and isinstance(node.args[0], str) else None


def _number(node: Object) -> Any:
    """A number of numpy (numpy.float64(0.5))."""
    if not node.class_name.endswith("multiarray.scalar"):
        return None
    try:
        found = other_tensor(node)
    except Contradiction:
        return None
    value = None if found is None or found.dense is None else found.dense.numpy()[()].item()
    return value if isinstance(value, bool | int | float) else None


def array_items(node: Object) -> tuple[tuple[int, ...], list[Any]] | None:
    """(shape, items in C order) of a pickled numpy array of objects or texts, or of one such text; None for any other.

    The items of an array of objects are nodes; texts are decoded.
    """
    state = node.state
    if node.class_name.endswith("multiarray.scalar") and isinstance(node.args, tuple) and len(node.args) == 2:
        text = _texts(*node.args)
        return ((), text) if text is not None and len(text) == 1 else None
    if not node.class_name.endswith("multiarray._reconstruct") or not isinstance(state, tuple) or len(state) < 4:
        return None
    shape, dtype, fortran, data = state[-4:]
    sizes = numbers(shape)
    if sizes is None or min(sizes, default=0) < 0:
        return None
    if isinstance(data, List):
        items = data.items
    else:
        found = _texts(dtype, data)
        if found is None:
            return None
        items = found
    if prod(sizes) != len(items):
        return None
    return sizes, _in_c_order(sizes, items) if fortran is True else items


def _texts(dtype: Any, data: Any) -> list[Any] | None:
    """The items of an array of fixed-width texts ("U5", four bytes a character, or "S5")."""
    code = dtype.args[0] if isinstance(dtype, Object) and dtype.args else None
    raw = data.raw if isinstance(data, ByteString) else data
    if not isinstance(code, str) or code[:1] not in ("U", "S") or not code[1:].isdecimal() or type(raw) is not bytes:
        return None
    width = int(code[1:]) * (4 if code[0] == "U" else 1)
    if width == 0 or len(raw) % width:
        return None
    big = isinstance(dtype.state, tuple) and len(dtype.state) > 1 and str(dtype.state[1]) == ">"
    pieces = [raw[at : at + width] for at in range(0, len(raw), width)]
    if code[0] == "S":
        return [piece.rstrip(b"\0") for piece in pieces]
    return [piece.decode("utf-32-be" if big else "utf-32-le", "replace").rstrip("\0") for piece in pieces]


def _in_c_order(shape: tuple[int, ...], items: list[Any]) -> list[Any]:
    """ITEMS, whose first index varies fastest, with the last index varying fastest."""
    positions = [0]
    step = 1
    for size in shape:
        positions = [position + step * index for position in positions for index in range(size)]
        step *= size
    return [items[position] for position in positions]


_KNOWN: tuple[Callable[[Object], Any], ...] = (_path, _moment, _exact, _range, _dtype, _number)
