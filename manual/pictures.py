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
    "convert": (
        "ckptool convert model.pth model.safetensors --unwrap --map-location cpu",
        "ckptool inspect model.safetensors --depth 2",
        "ckptool verify model.safetensors",
    ),
    "inspect": ("ckptool inspect model.pth",),
    "scan": ("ckptool scan whole-model.pth",),
}
#: Pictures that move: the commands are typed, and what they print follows.
MOVING = frozenset({"doctor", "convert"})
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
    if name in MOVING:
        drawn = moving(drawn)
    return "".join(f"{line.rstrip()}\n" for line in drawn.replace("HEIGHT", f"{last + 32:.0f}").splitlines())


#: Seconds: a letter that is typed, before a command and behind it, to read a line, and to read the end.
_LETTER, _BEFORE, _BEHIND, _LINE, _END = 0.03, 0.6, 0.4, 0.25, 6.0


def moving(svg: str) -> str:
    """A picture whose commands are typed one after the other, each followed by what it prints; then it begins again.

    It is all there where nothing may move: without animations, or where the reader wants none.
    """
    lines = _lines(svg)
    rows = {y: lines.get(y, "") for y in sorted({float(y) for y in re.findall(r' y="([\d.]+)" textLength', svg)})}
    now = 0.0
    parts: list[float] = []  # when each part of the session appears
    covers: list[tuple[float, float, int]] = []  # of commands: where, when, and how many letters
    part_of: dict[float, int] = {}
    printing = False
    for y, text in rows.items():
        typed = text.startswith("$ ckptool")
        if typed:
            parts.append(now)
            covers.append((y, now + _BEFORE, len(text) - 2))
            now += _BEFORE + len(text) * _LETTER + _BEHIND
        elif not printing:
            parts.append(now)
        printing = not typed
        part_of[y] = len(parts) - 1
        now += _LINE if printing and text else 0
    whole = now + _END
    rules = []
    for number, when in enumerate(parts):
        at = 100 * when / whole
        rules.append(f".part-{number} {{ animation: part-{number} {whole:.1f}s step-end infinite; }}")
        rules.append(f"@keyframes part-{number} {{ 0% {{ opacity: {int(not at)}; }} {at:.2f}% {{ opacity: 1; }} }}")
    shapes = []
    for number, (y, when, letters) in enumerate(covers):
        begin, end = 100 * when / whole, 100 * (when + letters * _LETTER) / whole
        width = letters * _CHARACTER
        rules.append(f".typed-{number} {{ animation: typed-{number} {whole:.1f}s infinite; }}")
        rules.append(
            f"@keyframes typed-{number} {{ 0%, {begin:.2f}% {{ opacity: 1; transform: none; "
            f"animation-timing-function: steps({letters}); }} {end:.2f}% {{ opacity: 1; "
            f"transform: translateX({width:.1f}px); animation-timing-function: step-start; }} "
            f"100% {{ opacity: 0; transform: translateX({width:.1f}px); }} }}"
        )
        box = f'x="{2 * _CHARACTER:.1f}" y="{y - 18.5:.1f}" height="24.4"'
        cover = f'<rect fill="rgb(41,41,41)" {box} width="{width + _CHARACTER:.1f}"/>'
        cursor = f'<rect fill="#c5c8c6" {box} width="{_CHARACTER}"/>'
        shapes.append(f'<g class="part-{part_of[y]}"><g class="cover typed-{number}">{cover}{cursor}</g></g>')
    style = [".cover { opacity: 0; }", "@media (prefers-reduced-motion: no-preference) {", *rules, "}"]
    svg = svg.replace("</style>", "\n".join([*style, "</style>"]))
    svg = re.sub(
        r'<text class="([\w-]+)"([^>]* y="([\d.]+)" textLength)',
        lambda found: f'<text class="{found[1]} part-{part_of[float(found[3])]}"{found[2]}',
        svg,
    )
    return svg.replace("</g>\n</g>\n</svg>", "\n".join([*shapes, "</g>", "</g>", "</svg>"]))


def text_of(svg: str) -> list[str]:
    """The lines of text in a picture, each piece in its column."""
    return [line for _, line in sorted(_lines(svg).items())]


def _lines(svg: str) -> dict[float, str]:
    """The same by their heights in the picture."""
    lines: dict[float, str] = {}
    for x, y, text in re.findall(r'<text[^>]* x="([\d.]+)" y="([\d.]+)"[^>]*>(.*?)</text>', svg):
        before = lines.get(float(y), "").ljust(round(float(x) / _CHARACTER))
        lines[float(y)] = before + unescape(text).replace("\xa0", " ")
    return {y: line.rstrip() for y, line in lines.items()}


def main() -> None:
    """Make all pictures."""
    FOLDER.mkdir(exist_ok=True)
    for name, commands in PICTURES.items():
        (FOLDER / f"{name}.svg").write_text(picture(name, session(commands)), encoding="utf-8")


if __name__ == "__main__":
    main()
