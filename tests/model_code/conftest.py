"""Notes on a forward pass that fail stop it in tests; users lose the notes alone."""

import importlib.util

import pytest


@pytest.fixture(autouse=True)
def notes_that_fail_stop_a_pass(monkeypatch):
    if importlib.util.find_spec("torch") is not None:
        monkeypatch.setattr("ckptool.model_code.following.forward_pass.strict", True)
