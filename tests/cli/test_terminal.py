"""What reports look like on a terminal: as wide as it is, and nothing that could colour it or move its cursor."""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from samples import Files, envelope, state_dict, tensor

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.tree import Dict

pytestmark = pytest.mark.same_without_torch

pty = pytest.importorskip("pty")
fcntl = pytest.importorskip("fcntl")
termios = pytest.importorskip("termios")

#: All that ckptool ever sends to a terminal beside text: attributes of ECMA-48, never the move of a cursor.
COLOUR = re.compile("\x1b\\[(0|1|2|32|33|36|1;31|1;36)m")

REPORTS = [
    ["inspect", "loud.pth"],
    ["inspect", "loud.pth", "--stats"],
    ["diff", "loud.pth", "plain.pth"],
    ["verify", "loud.pth", "--digest"],
    ["scan", "last.ckpt", "evil.pth"],
    ["doctor", "loud.pth"],
]


def on_a_terminal(words: list[str], folder: Path, columns: int, **more: str) -> str:
    """What a command prints to a terminal of so many columns."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    environment |= {"TERM": "xterm-256color", **more}
    command = [sys.executable, "-m", "ckptool", *words]
    with subprocess.Popen(
        command,
        cwd=folder,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment,
    ) as child:
        os.close(theirs)
        said = b""
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # how Linux says that the other side was closed
                break
            if not part:
                break
            said += part
        child.wait(60)
    os.close(ours)
    return said.decode().replace("\r\n", "\n")


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize("words", REPORTS, ids=" ".join)
def test_a_report_fits_the_terminal_and_holds_only_text(
    files: Files, tmp_path: Path, words: list[str], columns: int
) -> None:
    root = envelope(state_dict("module.", "cuda:1"))
    root.entries.append(("\x1b[31m\x9b2J\x07\r", Dict([("\u202ename\n", tensor(3, location="cuda:\x1b[0m"))])))
    ckptool.save(Checkpoint(root), tmp_path / "loud.pth", keep_objects=True)
    painted = on_a_terminal(words, tmp_path, columns)
    said = COLOUR.sub("", painted)
    assert said != painted
    assert all(char.isprintable() or char == "\n" for char in said)
    long = [line for line in said.splitlines() if len(line) > columns and not line.strip().startswith("ckptool ")]
    assert long == []


def test_no_color_means_no_escape_code_also_while_something_is_done(tmp_path: Path) -> None:
    ckptool.save(Checkpoint(Dict([("w", tensor(1 << 25))])), tmp_path / "large.pth")  # 128 MB
    for words in (["convert", "large.pth", "out.safetensors"], ["inspect", "large.pth", "--stats"]):
        assert "\x1b" in on_a_terminal(words, tmp_path, 80)
        (tmp_path / "out.safetensors").unlink(missing_ok=True)
        said = on_a_terminal(words, tmp_path, 80, NO_COLOR="1")
        assert "\x1b" not in said
        assert "% of 134.2 MB" in said
