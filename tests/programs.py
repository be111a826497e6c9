"""Programs that tests start."""

import os


def unwatched():
    """The environment, without what `make coverage` would measure with: it takes time and memory, and is disturbed by
    signals.
    """
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}
