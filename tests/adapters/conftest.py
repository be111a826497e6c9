"""Tiny models and adapters that the libraries wrote, with what peft merges of them (fixtures/make_adapters.py)."""

import json
import zipfile
from pathlib import Path

import pytest

ARCHIVE = Path(__file__).parents[2] / "fixtures" / "adapters.zip"


def cases():
    with zipfile.ZipFile(ARCHIVE) as archive:
        return json.loads(archive.read("cases.json"))


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    """The folder with `bases`, `adapters` and `merged`."""
    folder = tmp_path_factory.mktemp("adapters")
    with zipfile.ZipFile(ARCHIVE) as archive:
        archive.extractall(folder)
    return folder
