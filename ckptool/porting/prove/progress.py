"""Report the progress of a proof, and limit the time of its search."""

from __future__ import annotations

import time
from collections.abc import Callable

#: Is given a line that says what is being done.
Tell = Callable[[str], None]

#: Seconds that a proof may take, unless it is told otherwise.
PATIENCE = 300.0


class Progress:
    """Reports what a proof does, one line at a time to TELL, if given, and says when it has had PATIENCE seconds since
    `begin`.
    """

    def __init__(self, tell: Tell | None = None, patience: float = PATIENCE) -> None:
        self._tell, self.patience = tell, patience
        self._until: float | None = None

    def say(self, text: str) -> None:
        """Give TEXT to the function that reports progress, if there is one."""
        if self._tell is not None:
            self._tell(text)

    def begin(self) -> None:
        """Start the clock of the proof, also again."""
        self._until = time.monotonic() + self.patience

    @property
    def late(self) -> bool:
        """Return whether more than PATIENCE seconds have passed since `begin`; False before it."""
        return self._until is not None and time.monotonic() > self._until


__all__ = ["PATIENCE", "Progress", "Tell"]
