"""Only one module changes a name on disk, and what it promises about that."""

import ast
import errno
import os
import stat
from pathlib import Path

import pytest

import ckptool
from ckptool.disk import door
from ckptool.disk.door import Directory, Seen

pytestmark = pytest.mark.same_without_torch

PACKAGE = Path(ckptool.__file__).parent
MODULES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))

#: What changes a name: attributes of os, whole modules, and methods of a Path.
OF_OS = set(
    "mkdir makedirs mkfifo mknod rmdir removedirs remove unlink rename renames replace link symlink truncate chown "
    "lchown utime O_CREAT O_WRONLY O_RDWR O_TRUNC O_APPEND".split()
)
OF_MODULES = {"tempfile", "shutil"}
OF_SHUTIL = {"get_terminal_size", "which", "disk_usage"}  # what changes nothing
OF_PATHS = set("write_text write_bytes mkdir rmdir unlink touch symlink_to hardlink_to chmod lchmod".split())
#: Calls that are none of these, by module.
NAMESAKES = {
    "cli/__init__.py": {"os.O_WRONLY"},  # of os.devnull
    "cli/help.py": {"write_text"},  # of click's page of help
    "starting.py": {"os.O_RDWR"},  # of the same
}


def changes_in(source):
    """(line, what) for everything in SOURCE that changes a name on disk."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for module in [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module]:
                if module in {"tempfile"}:
                    yield node.lineno, module
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "os" and node.attr in OF_OS:
                yield node.lineno, f"os.{node.attr}"
            if node.value.id == "shutil" and node.attr not in OF_SHUTIL:
                yield node.lineno, f"shutil.{node.attr}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in OF_PATHS:
            yield node.lineno, node.func.attr
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            mode = [*node.args[1:2], *(word.value for word in node.keywords if word.arg == "mode")]
            if any(isinstance(one, ast.Constant) and set("wax+") & set(str(one.value)) for one in mode):
                yield node.lineno, "open for writing"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "open":
            mode = [one for one in node.args if isinstance(one, ast.Constant) and isinstance(one.value, str)]
            if any(set("wax+") & set(one.value) and set(one.value) <= set("rwaxbt+") for one in mode):
                yield node.lineno, "open for writing"


def test_no_other_module_changes_a_name_on_disk():
    others = [module for module in MODULES if module != "disk/door.py"]
    found = {module: {what for _, what in changes_in((PACKAGE / module).read_text())} for module in others}
    assert {module: what for module in others if (what := found[module] - NAMESAKES.get(module, set()))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "os.unlink(x)",
        "os.replace(x, y)",
        "os.open(x, os.O_CREAT)",
        "open(x, 'wb')",
        "open(x, mode='a')",
        "path.open('w')",
        "path.write_text(x)",
        "path.mkdir()",
        "import tempfile",
        "shutil.rmtree(x)",
    ],
)
def test_the_search_finds_what_it_is_for(line):
    assert list(changes_in(line))


WATCHED = """
import os, sys
from pathlib import Path
import ckptool
package = str(Path(ckptool.__file__).parent) + os.sep
names = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "tempfile.mkstemp",
         "shutil.rmtree", "os.utime", "os.chown"}
strangers = []

def watch(event, args):
    if args and isinstance(args[0], int):
        return  # a descriptor, which somebody opened before
    writes = event == "open" and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if event not in names and not writes:
        return
    frame = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.startswith(package):
        frame = frame.f_back
    where = frame.f_code.co_filename[len(package):] if frame is not None else None
    if where not in (None, os.path.join("disk", "door.py")) and args[0] not in (os.devnull,):
        strangers.append((event, where, str(args[0])))

sys.addaudithook(watch)
sys.dont_write_bytecode = True
from ckptool.cli import main
for command in COMMANDS:
    try:
        main(command)
    except SystemExit as left:
        assert left.code in (0, 1), (command, left.code)
assert not strangers, strangers
"""
COMMANDS = [
    "strip-prefix in.pth out.pth --save-recipe recipe.yaml",
    "strip-prefix in.pth --in-place --backup .bak",
    "convert out.pth folder --max-shard-size 8 -q",
    "add-prefix folder --in-place",
    "convert out.pth dcp -t dcp",
    "convert dcp dcp --overwrite -t dcp --add-prefix x.",
    "convert out.pth out.safetensors --cast bf16",
    "average out.pth out.pth -o mean.pth",
    "inspect out.pth --html page.html",
    "diff out.pth mean.pth --html other.html",
    "verify out.pth --write-manifest m.json",
    "scan out.pth",
    "doctor out.pth --html diagnosis.html",
    "doctor . --remove-leftovers",
]


def test_whatever_a_command_writes_goes_through_the_door(tmp_path, in_new_python, monkeypatch):
    from strategies import state_dict_of, tensor_of

    monkeypatch.chdir(tmp_path)
    ckptool.save(state_dict_of({"module.a": tensor_of("float32", (2,)), "module.b": tensor_of("float32")}), "in.pth")
    in_new_python(WATCHED.replace("COMMANDS", repr([command.split() for command in COMMANDS])))
    assert not list(tmp_path.glob(".*"))


# -- the directory


@pytest.fixture
def here(tmp_path):
    with Directory.at(tmp_path) as directory:
        yield directory


def test_a_link_is_no_directory(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(OSError, match=os.strerror(errno.ENOTDIR)):
        Directory.at(tmp_path / "link")
    with Directory.at(tmp_path) as directory, pytest.raises(OSError, match=os.strerror(errno.ENOTDIR)):
        directory.enter("link")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/etc", "a\0b", "\ud800"])
def test_only_plain_names_are_taken(here, name):
    for call in (here.status, here.create, here.reopen, here.enter, here.make_directory, here.remove_directory):
        with pytest.raises(ValueError, match="not a plain name"):
            call(name)


@pytest.mark.parametrize("there", ["a file", "a link", "a link to nothing", "a folder"])
def test_a_new_file_is_never_one_that_was_there(tmp_path, here, there):
    (tmp_path / "other").write_bytes(b"precious")
    target = tmp_path / "x"
    if there == "a file":
        target.write_bytes(b"old")
    elif there == "a folder":
        target.mkdir()
    else:
        target.symlink_to("other" if there == "a link" else "nowhere")
    with pytest.raises(OSError, match=os.strerror(errno.EEXIST)):
        here.create("x")
    assert (tmp_path / "other").read_bytes() == b"precious"
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize("there", ["a link", "a pipe", "a second name", "a folder"])
def test_a_file_is_opened_again_only_if_it_is_ours_alone(tmp_path, here, there):
    (tmp_path / "other").write_bytes(b"precious")
    target = tmp_path / "x"
    if there == "a link":
        target.symlink_to("other")
    elif there == "a pipe":
        os.mkfifo(target)
    elif there == "a second name":
        os.link(tmp_path / "other", target)
    else:
        target.mkdir()
    with pytest.raises(OSError):  # noqa: PT011 - the system has a word of its own for each
        here.reopen("x")
    assert (tmp_path / "other").read_bytes() == b"precious"


def test_a_file_is_removed_only_if_it_is_the_one_that_was_seen(tmp_path, here):
    (tmp_path / "x").write_bytes(b"one")
    seen = here.contents()["x"]
    (tmp_path / "x").write_bytes(b"another")
    assert not here.remove("x", lambda status: Seen.of(status) == seen)
    assert (tmp_path / "x").read_bytes() == b"another"
    now = here.contents()["x"]
    assert here.remove("x", lambda status: Seen.of(status) == now)
    assert here.remove("x", lambda _: False)


def test_a_folder_is_removed_only_if_it_is_empty(tmp_path, here):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "empty").mkdir()
    assert not here.remove_directory("full")
    assert here.remove_directory("empty")
    assert here.remove_directory("never there")
    assert os.listdir(tmp_path) == ["full"]


def test_a_directory_stays_the_one_that_was_opened_when_its_name_leads_elsewhere(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "victim").mkdir()
    with Directory.at(tmp_path / "out") as directory:
        os.rename(tmp_path / "out", tmp_path / "moved")
        (tmp_path / "out").symlink_to("victim")
        os.close(directory.create("x"))
    assert os.listdir(tmp_path / "moved") == ["x"]
    assert os.listdir(tmp_path / "victim") == []


@pytest.mark.parametrize("below", [True, False], ids=["below descriptors", "by path"])
def test_nothing_can_be_done_with_a_directory_that_is_closed(tmp_path, monkeypatch, below):
    monkeypatch.setattr(door, "_BELOW_DESCRIPTORS", below)
    (tmp_path / "x").touch()
    with Directory.at(tmp_path) as directory:
        pass
    for call in (lambda: directory.remove("x", lambda _: True), directory.names, directory.own_status):
        with pytest.raises(ValueError, match="is closed"):
            call()
    assert (tmp_path / "x").exists()


def test_two_folders_exchange_their_names_in_one_step(tmp_path, here):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"in {name}").touch()
    if not here.exchange("a", here, "b"):
        pytest.skip("this filesystem cannot")
    assert os.listdir(tmp_path / "a") == ["in b"]
    assert os.listdir(tmp_path / "b") == ["in a"]


@pytest.mark.parametrize("below", [True, False], ids=["below descriptors", "by path"])
def test_all_calls_do_the_same_by_path_where_a_system_has_no_others(tmp_path, monkeypatch, below):
    monkeypatch.setattr(door, "_BELOW_DESCRIPTORS", below)
    with Directory.at(tmp_path) as here:
        os.close(here.create("x", 0o640))
        assert stat.S_IMODE(here.status("x").st_mode) == 0o640
        os.close(here.reopen("x"))
        os.close(here.open_to_read("x"))
        with here.make_directory("sub") as sub:
            here.rename_to_free("x", sub, "y")
            sub.link("y", here, "z")
            assert sub.names() == ["y"]
            sub.set_mode(0o700)
            sub.sync()
            with pytest.raises(FileExistsError):
                sub.rename_to_free("y", here, "z")
            sub.rename("y", here, "z2")
        assert here.remove_directory("sub")
        assert here.names() == ["z", "z2"]
        assert all(here.remove(name, lambda _: True) for name in here.names())
        (tmp_path / "link").symlink_to("nowhere")
        with pytest.raises(OSError, match=os.strerror(errno.ENOTDIR)):
            here.enter("link")
        assert stat.S_ISLNK(here.status("link").st_mode)
        assert here.own_status().st_ino == tmp_path.stat().st_ino
    if not below:
        with pytest.raises(NotADirectoryError):
            Directory.at(tmp_path / "link")
