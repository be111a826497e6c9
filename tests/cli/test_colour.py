"""Colour: on a terminal, never in a pipe, and as NO_COLOR, FORCE_COLOR, TERM and --color say."""

from __future__ import annotations

import pytest
from samples import Files, Run

from ckptool.cli.help import colour_wanted
from ckptool.drawing import styles
from ckptool.drawing.screen import wrapped
from ckptool.drawing.sizes import table

COMMANDS = [
    ["inspect", "last.ckpt"],
    ["doctor", "last.ckpt"],
    ["scan", "evil.pth"],
    ["verify", "plain.pth"],
    ["diff", "plain.pth", "dp.pth"],
    ["strip-prefix", "dp.pth", "out.pth", "-n"],
    ["strip-prefix", "plain.pth", "out.pth"],
    ["inspect", "absent.pth"],
    ["inspect", "--nonsense"],
    ["inspect", "--help"],
    ["--help"],
]


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch):
    for name in ("NO_COLOR", "FORCE_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    yield
    styles.switch(False)


@pytest.mark.parametrize(
    ("environment", "asked", "wanted"),
    [
        ({}, None, None),
        ({}, "auto", None),
        ({}, "always", True),
        ({}, "never", False),
        ({"NO_COLOR": "1"}, "always", False),
        ({"NO_COLOR": "1", "FORCE_COLOR": "1"}, None, False),
        ({"NO_COLOR": ""}, None, None),
        ({"FORCE_COLOR": "1"}, None, True),
        ({"FORCE_COLOR": "0"}, None, None),
        ({"FORCE_COLOR": "1"}, "never", False),
        ({"TERM": "dumb"}, None, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, None, True),
    ],
)
def test_who_wins(environment: dict[str, str], asked: str | None, wanted: bool | None) -> None:
    assert colour_wanted(asked, environment) is wanted


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_a_pipe_gets_plain_text(run: Run, files: Files, words: list[str]) -> None:
    ran = run(*words)
    assert "\x1b" not in ran.out + ran.err


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_colour_adds_nothing_but_colour(
    run: Run, files: Files, words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = run(*words)
    monkeypatch.setenv("FORCE_COLOR", "1")
    painted = run(*words)
    assert "\x1b" in painted.out + painted.err
    assert (styles.plain(painted.out), styles.plain(painted.err)) == (before.out, before.err)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in "".join((run(*words).out, run(*words).err))


def test_the_option_is_known_before_and_after_the_command(run: Run, files: Files) -> None:
    assert "\x1b" in run("--color", "always", "scan", "evil.pth").out
    assert "\x1b" in run("scan", "evil.pth", "--color", "always").out
    assert "\x1b" not in run("--color", "always", "scan", "evil.pth", "--color", "never").out


def test_columns_are_aligned_and_lines_folded_by_what_is_seen() -> None:
    plain = table([("a", "b"), ("long", "c")])
    styles.switch(True)
    painted = table([(styles.paint("a", "bad"), "b"), ("long", styles.paint("c", "good"))])
    line = " ".join(styles.paint("word", "bad") for _ in range(20))
    folded = list(wrapped([line], 40))
    styles.switch(False)
    assert [styles.plain(row) for row in painted] == plain
    assert all(styles.width_of(part) <= 40 for part in folded)
    assert [styles.plain(part) for part in folded] == list(wrapped([" ".join(["word"] * 20)], 40))
