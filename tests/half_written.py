"""The data of coverage that killed programs left half-written.

Tests kill programs at every moment, also while these save which lines ran, and coverage combines nothing if it meets
such a file.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from coverage.data import CoverageData
from coverage.exceptions import CoverageException


def is_whole(path: Path) -> bool:
    """Return whether a file of data can be read, every line of it."""
    try:
        with closing(sqlite3.connect(path)) as database:
            if database.execute("PRAGMA integrity_check").fetchone() != ("ok",):
                return False
        data = CoverageData(basename=str(path))
        data.read()
        for measured in data.measured_files():
            data.lines(measured)
            data.arcs(measured)
        data.close()
    except (sqlite3.Error, CoverageException):
        return False
    return True


def remove(folder: Path) -> None:
    """Remove the files of data in FOLDER that cannot be read."""
    for path in folder.glob(".coverage.*"):
        if not is_whole(path):
            path.unlink()
