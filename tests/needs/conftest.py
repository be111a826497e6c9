"""The command line as a user types it, in a folder of its own."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
from typing_user import User


@pytest.fixture
def user(capfd, tmp_path, monkeypatch):
    """A user in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return User(capfd)
