"""The reference of the library: every public name under a heading, for mkdocstrings to fill from its docstring."""

from __future__ import annotations

from types import FunctionType

import ckptool

#: Room of the package -> the heading of its public names, in the order of the page.
_HEADINGS = {
    "formats": "Open, save and load",
    "checkpoint": "Checkpoints and tensors",
    "tensor": "Checkpoints and tensors",
    "inert": "Checkpoints and tensors",
    "passes": "Passes",
    "adapters": "Passes",
    "porting": "Porting",
    "reports": "Reports",
    "errors": "Errors",
}


def page() -> str:
    """The page, in Markdown."""
    names: dict[str, list[str]] = {heading: [] for heading in _HEADINGS.values()}
    for name, home in ckptool._HOMES.items():
        names[_HEADINGS[home.split(".")[0]]].append(name)
    lines = ["# Reference of the library", "", "[The library](library.md) shows how these are used together.", ""]
    for heading, those in names.items():
        lines += [f"## {heading}", ""]
        for name in those:
            lines += _entry(name)
    return "\n".join(lines)


def _entry(name: str) -> list[str]:
    """What stands for a public name: where mkdocstrings, which runs nothing, finds its docstring, or its other name."""
    value = getattr(ckptool, name)
    if not isinstance(value, FunctionType):
        return [f"::: ckptool.{name}", "", *_told_by_its_base(value)]
    if value.__name__ != name:
        return [f"### ckptool.{name}", "", f"Another name of `ckptool.{value.__name__}`.", ""]
    found = f"{value.__module__}.{value.__qualname__}"
    return [f"::: {found}", "    options:", f"      heading: ckptool.{name}", f"      toc_label: {name}", ""]


def _told_by_its_base(value: object) -> list[str]:
    """The attributes of a class that only adds something to another one, which describes them."""
    bases = value.__mro__[1:] if isinstance(value, type) else ()
    told = [one for one in bases if one.__module__.startswith("ckptool") and "Attributes:\n" in (one.__doc__ or "")]
    if not told:
        return []
    found = f"{told[0].__module__}.{told[0].__qualname__}"
    return [f"::: {found}", "    options:", "      show_root_heading: false", "      members: false", ""]
