"""Pictures of terminals: real runs of real commands, as SVG. `python -m manual.pictures` makes docs/pictures.

The commands run on a terminal of their own (a pty), so they print what a reader sees, colours included.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from html import unescape
from io import StringIO
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "pictures"
_WIDTH = 92
_CHARACTER = 12.2  # units that rich gives a column

#: Picture -> the commands in it, in the order in which they run in one folder.
PICTURES = {
    "doctor": ("ckptool doctor model.pth", "ckptool convert model.pth model-fixed.pth --unwrap --map-location cpu"),
    "inspect": ("ckptool inspect model.pth",),
    "scan": ("ckptool scan whole-model.pth",),
}
#: What is in that folder -> the fixture that it is a copy of.
_FILES = {
    "model.pth": "real/deepcr-mask.pth",
    "whole-model.pth": "trained/housing-data-parallel-model.pth",
}

#: The frame that rich draws, without the font that it would fetch.
_FRAME = """\
<svg viewBox="0 0 {terminal_width} HEIGHT" xmlns="http://www.w3.org/2000/svg">
<style>
.{unique_id}-matrix {{ font-family: ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: {char_height}px; line-height: {line_height}px; }}
{styles}
</style>
<defs>
{lines}
</defs>
<rect fill="rgb(41,41,41)" width="{terminal_width}" height="HEIGHT" rx="8"/>
<g transform="translate(9, 12)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def session(commands: tuple[str, ...]) -> str:
    """What a terminal shows when COMMANDS run one after the other, with its escape codes."""
    with tempfile.TemporaryDirectory() as folder:
        for name, source in _FILES.items():
            shutil.copy(ROOT / "fixtures" / source, Path(folder, name))
        shown = [
            f"\x1b[1;32m$\x1b[0m \x1b[1m{command}\x1b[0m\n{_on_a_terminal(command, folder)}" for command in commands
        ]
    return "\n".join(shown).rstrip("\n")


def _on_a_terminal(command: str, folder: str) -> str:
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, _WIDTH, 0, 0))
    plain = {"PATH", "PYTHONPATH", "HOME", "LANG"}
    environment = {name: value for name, value in os.environ.items() if name in plain}
    environment |= {"TERM": "xterm-256color", "PYTHONUTF8": "1"}
    words = [sys.executable, "-m", *command.split()]
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [environment.get("PYTHONPATH")])])
    with subprocess.Popen(words, cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs):
        os.close(theirs)
        said = b""
        try:
            while more := os.read(ours, 65536):
                said += more
        except OSError:  # so Linux says that nobody writes any more
            pass
    os.close(ours)
    return said.decode().replace("\r\n", "\n")


def picture(name: str, shown: str) -> str:
    """SVG of a terminal that shows this text."""
    console = Console(record=True, width=_WIDTH, file=StringIO(), force_terminal=True, legacy_windows=False)
    console.print(Text.from_ansi(shown), soft_wrap=False)
    drawn = console.export_svg(title="", code_format=_FRAME, unique_id=name)
    last = max(float(y) for y in re.findall(r' y="([\d.]+)" textLength', drawn))
    return "".join(f"{line.rstrip()}\n" for line in drawn.replace("HEIGHT", f"{last + 32:.0f}").splitlines())


def text_of(svg: str) -> list[str]:
    """The lines of text in a picture, each piece in its column."""
    lines: dict[float, str] = {}
    for x, y, text in re.findall(r'<text[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        before = lines.get(float(y), "").ljust(round(float(x) / _CHARACTER))
        lines[float(y)] = before + unescape(text).replace("\xa0", " ")
    return [line.rstrip() for _, line in sorted(lines.items())]


def main() -> None:
    """Make all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, commands in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(picture(name, session(commands)), encoding="utf-8")


if __name__ == "__main__":
    main()
