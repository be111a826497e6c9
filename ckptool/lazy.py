"""Names and modules that are imported when they are first used."""

from __future__ import annotations

TYPE_CHECKING = False  # nothing is imported here, since the program begins with it
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazily(package: str, homes: Mapping[str, str], names: dict[str, Any]) -> Callable[[str], Any]:
    """A `__getattr__` for PACKAGE (PEP 562).

    Args:
        package: its name.
        homes: public name -> the module below it that holds it.
        names: its globals, where a name stays once it was used.
    """

    def __getattr__(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        from importlib import import_module

        value = names[name] = getattr(import_module(f".{homes[name]}", package), name)
        return value

    return __getattr__


class _Later:
    """A module that is imported when one of its names is first used."""

    def __init__(self, name: str, package: str) -> None:
        self._name, self._package = name, package

    def __getattr__(self, name: str) -> Any:
        from importlib import import_module

        value = vars(self)[name] = getattr(import_module(self._name, self._package), name)
        return value


def later(name: str, package: str) -> Any:
    """The module NAME (".dcp"), relative to PACKAGE, without importing it yet.

    What a command does not use, it does not wait for. Where types are checked, the module is imported beside this.
    """
    return _Later(name, package)
