"""What is made for readers is up to date: the man page, the pages of the site, pictures and drawings."""

import contextlib
import inspect
import os
import re
import shutil
import subprocess

import pytest

from ckptool.cli import _COMMANDS
from ckptool.reports.diagnosis.lessons import LESSONS
from manual import check, commands, layouts, library, man, mappings, pictures, problems

TOLD = {one.name: one for one in commands.told()}
PTY = pytest.mark.skipif(os.name != "posix", reason="needs a pty")


def test_the_man_page_says_what_the_help_says():
    assert (pictures.ROOT / "manual" / "ckptool.1").read_text(encoding="utf-8") == man.man(), "make man"


@pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
def test_the_man_page_is_roff_without_a_warning():
    page = pictures.ROOT / "manual" / "ckptool.1"
    done = subprocess.run(["groff", "-man", "-ww", "-z", page], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""


def test_every_command_has_a_page_with_all_its_options():
    assert list(TOLD) == list(_COMMANDS)
    for one in TOLD.values():
        assert one.summary
        assert one.examples
        page = commands.page(one).replace("\\|", "|")
        names = [names for options in one.options.values() for names, _ in options]
        assert [name for name in names if f"| `{name}` |" not in page] == []


def test_the_page_of_a_command_leads_to_its_section():
    reference = (pictures.ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    assert all(f"## `ckptool {name}`\n" in reference for name in TOLD)


def test_every_kind_of_message_has_a_page_under_a_line_of_the_message():
    pages = dict(problems.pages())
    assert set(pages) == {lesson.name for lesson in LESSONS} | {"index"}
    for lesson in LESSONS:
        assert problems.title(lesson) in pages[lesson.name].splitlines()[0]
        assert f"]({lesson.name}.md)" in pages["index"]
        assert not re.search(r"\{(file|out|key)\}", pages[lesson.name])


def test_every_public_name_is_in_the_reference_once():
    import ckptool

    shown = re.findall(r"^(?:::: |### | +heading: )ckptool\.(\w+)$", library.page(), re.MULTILINE)
    assert sorted(shown) == sorted(set(ckptool.__all__) - {"__version__"})


def test_a_docstring_describes_each_argument_and_attribute_on_its_own():
    import ckptool

    sections = re.compile(r"(?:Args|Attributes):\n((?: {4,}.*\n|\n)+)")
    found = []
    for name in ckptool.__all__:
        with contextlib.suppress(ImportError):  # torch
            for section in sections.findall(inspect.getdoc(getattr(ckptool, name)) or ""):
                found += [(name, line) for line in re.findall(r"^    (\w+, \w[\w, ]*:)", section, re.MULTILINE)]
    assert found == []


def test_every_mapping_that_ships_is_on_its_page():
    from ckptool.porting import family_files

    assert all(f"\n## {one.name}\n" in mappings.page() for one in family_files.shipped())


def test_the_drawings_of_formats_are_of_the_files_as_they_are():
    text = layouts.PAGE.read_text(encoding="utf-8")
    assert layouts.with_drawings(text) == text, "make pictures"


@pytest.mark.parametrize("name", layouts.DRAWN)
def test_a_drawing_leaves_no_byte_out(name):
    rows = re.findall(r"^ *(\d+) +(\d+)  ", layouts.drawing(name), re.MULTILINE)
    ends = [int(at) + int(size) for at, size in rows]
    assert [int(at) for at, _ in rows] == [0, *ends[:-1]]
    assert ends[-1] == (layouts.ROOT / layouts.DRAWN[name][0]).stat().st_size


@PTY
@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_shows_what_the_commands_print(name):
    svg = (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    today = pictures.picture(name, pictures.session(pictures.PICTURES[name]))
    assert pictures.text_of(svg) == pictures.text_of(today), "make pictures"
    assert any("$ ckptool" in line for line in pictures.text_of(svg))


@pytest.mark.parametrize("name", sorted(pictures.MOVING))
def test_a_picture_that_moves_types_each_command_and_is_still_for_those_who_want_that(name):
    svg = (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    still, moves = svg.partition("</style>")[0].split("@media (prefers-reduced-motion: no-preference) {")
    assert "animation" not in still
    assert ".cover { opacity: 0; }" in still
    lengths = [len(command) for command in pictures.PICTURES[name]]
    assert [int(steps) for steps in re.findall(r"steps\((\d+)\)", moves)] == lengths
    assert svg.count('class="cover ') == len(lengths)


@pytest.mark.parametrize("name", pictures.PICTURES)
def test_a_picture_is_small_and_fetches_nothing(name):
    svg = (pictures.FOLDER / f"{name}.svg").read_text(encoding="utf-8")
    assert len(svg) < 60_000
    assert re.findall(r"https?://(?!www\.w3\.org/2000/svg)", svg) == []
    assert "<script" not in svg


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ('<a href="other.html">', "no other.html"),
        ('<a href="#there">', "no anchor #there"),
        ('<img src="https://example.org/x.png">', "fetches https://example.org/x.png"),
        ('<p id="here"><a href="#here">', None),
    ],
)
def test_the_check_of_the_site_finds(tmp_path, body, fault):
    (tmp_path / "index.html").write_text(body)
    assert check.faults(tmp_path) == ([f"index.html: {fault}"] if fault else [])
