"""A user who types commands, asks doctor, and types what doctor says; and the files that such users come with."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple
from unittest import mock

import pytest
import torch

from ckptool.cli import main

FIXTURES = Path(__file__).parents[2] / "fixtures"


class Seen(NamedTuple):
    """What the user sees: the exit code, all text, and the commands that are shown to be typed."""

    code: int
    text: str
    commands: list[str]


class User:
    """Types command lines, and reads what they print."""

    def __init__(self, captured):
        self.captured = captured

    def tries(self, line, *more):
        """Type a command LINE; each of MORE is one word, quoted by the user."""
        words = [*shlex.split(line, comments=True), *more]
        assert words[0] == "ckptool"
        self.captured.readouterr()
        with pytest.raises(SystemExit) as left:
            main(words[1:])
        out, err = self.captured.readouterr()
        text = out + err
        lines = text.partition("to fix it, run")[2] or text
        shown = [line.strip() for line in lines.splitlines() if line.strip().startswith("ckptool ")]
        return Seen(int(left.value.code or 0), text, shown)

    def types(self, line, *more):
        """Type a command line that works at the first try."""
        seen = self.tries(line, *more)
        assert seen.code == 0, f"{line}\n{seen.text}"
        return seen

    def asks(self, line, *more, says=""):
        """Type a command line that answers "no" (exit code 1), with the words that it SAYS."""
        seen = self.tries(line, *more)
        assert seen.code == 1, f"{line}\n{seen.text}"
        assert says in " ".join(seen.text.split()), seen.text
        return seen

    def follows(self, seen, number=0):
        """Type the command that was shown, and return the name of the file that it writes."""
        assert seen.commands, seen.text
        self.types(seen.commands[number])
        return written_by(seen.commands[number])

    def takes_the_hint(self, seen):
        """Paste the whole line of the hint, as a shell takes it, and return the name of the file that it writes."""
        (hint,) = [line.partition("Hint: ")[2] for line in seen.text.splitlines() if line.startswith("Hint: ")]
        self.types(hint)
        return written_by(hint)

    def cures(self, path, *more, error=None, says=""):
        """Ask doctor about a file, type the first command that it shows, and return the name of what that wrote."""
        words = [*more, *(["--error", error_text(error)] if error is not None else [])]
        return self.follows(self.asks(f"ckptool doctor {shlex.quote(str(path))}", *words, says=says))


def written_by(line):
    """The OUT of a command that was shown."""
    words = shlex.split(line, comments=True)
    if "-o" in words:
        return words[words.index("-o") + 1]
    plain = [word for n, word in enumerate(words[2:], 2) if not word.startswith("-") and words[n - 1][:2] != "--"]
    return plain[-1] if words[1] == "merge-lora" else plain[1]


def error_text(error):
    """An error as a user copies it: the last line of a traceback, or the text that was given."""
    return error if isinstance(error, str) else f"{type(error).__name__}: {error}"


def error_of(call, *args, **options):
    """The error that a line of the user's script raises."""
    try:
        call(*args, **options)
    except Exception as error:
        return error
    raise AssertionError("it works")


def on_device(place, value, path, **options):
    """Save as a machine with that device would: torch writes what `location_tag` says."""
    with mock.patch("torch.serialization.location_tag", return_value=place):
        torch.save(value, path, **options)


class Net(torch.nn.Module):
    """The user's model: a convolution, a block with an unlucky name, and a head."""

    def __init__(self, classes=3, channels=3):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(channels, 4, 3, padding=1)
        self.bn1 = torch.nn.BatchNorm2d(4)
        self.mlp_module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4))
        self.fc = torch.nn.Linear(4, classes)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x))).mean((2, 3))
        return self.fc(x + self.mlp_module(x))


#: The same as a file of the user's.
NET_PY = """import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, classes=3, channels=3):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.mlp_module = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4))
        self.fc = nn.Linear(4, classes)

    def forward(self, x):
        x = torch.relu(self.bn1(self.conv1(x))).mean((2, 3))
        return self.fc(x + self.mlp_module(x))
"""


def net(**options):
    """The model with weights that are not those of another one."""
    torch.manual_seed(0)
    made = Net(**options)
    with torch.no_grad():
        for value in made.state_dict().values():
            if value.is_floating_point():
                value.add_(torch.rand_like(value))
    return made.eval()


def same(first, second):
    """Whether two state dicts have the same keys in the same order, and equal values."""
    return list(first) == list(second) and all(torch.equal(first[key], second[key]) for key in first)


def loads(path, model=None, **options):
    """Load as the user's script does, strictly, and return what was loaded."""
    model = Net() if model is None else model
    state = torch.load(path, **options)
    model.load_state_dict(state, strict=True)
    return model
