"""What stands for an object of an unknown class."""

from __future__ import annotations

from typing import Any

from ..errors import printable


class Inert:
    """Stands for an object of a class that a file names. It holds what the file says of it, and does nothing.

    Attributes:
        class_name: dotted name of the class.
        args: the arguments that it would have been made with.
        state: what it would have been given as its state (often the dict of its attributes), or None.
        items: what would have been appended to it.
        entries: what would have been set in it.
    """

    def __init__(self, class_name: str) -> None:
        self.class_name = class_name
        self.args: Any = ()
        self.state: Any = None
        self.items: list[Any] = []
        self.entries: list[tuple[Any, Any]] = []

    def __repr__(self) -> str:
        return f"<inert {printable(self.class_name, 80)}>"
