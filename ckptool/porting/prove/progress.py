"""What a proof is at, for whoever watches it, and how long its search may go on."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Is given a line that says what is being done.
Tell = Callable[[str], None]

#: Seconds that the search for what makes outputs equal may take, unless it is told otherwise.
PATIENCE = 300.0


class Progress:
    """Tells in a line what is being done, and knows when the search has had its time."""

    def __init__(self, tell: Tell | None = None, patience: float = PATIENCE) -> None:
        self._tell, self.patience = tell, patience
        self._until: float | None = None

    def say(self, text: str) -> None:
        """Tell what is being done now."""
        if self._tell is not None:
            self._tell(text)

    def begin(self) -> None:
        """The search begins; its time runs from the first one on."""
        if self._until is None:
            self._until = time.monotonic() + self.patience

    @property
    def late(self) -> bool:
        """Whether the search has had its time."""
        return self._until is not None and time.monotonic() > self._until


__all__ = ["PATIENCE", "Progress", "Tell"]
