"""Every error says where, what, on what evidence, and what helps; and nothing out of a file reaches a terminal raw."""

import inspect
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptool.train
from ckptool import Checkpoint, LazyTensor, Storage, errors
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.errors import CheckpointError, printable
from ckptool.inert.in_memory import from_plain
from ckptool.tree import Global, Object

FLOAT32 = BY_NAME["float32"]
CLASSES = [cls for _, cls in inspect.getmembers(errors, inspect.isclass) if issubclass(cls, CheckpointError)]


def tensor(location="cpu"):
    return LazyTensor(Storage(Buffer(bytes(8)), location, FLOAT32), FLOAT32, (2,), (1,))


def saved(path, value, **options):
    ckptool.save(Checkpoint(from_plain(value)), path, keep_objects=True, **options)
    return ckptool.open(path)


def weights(*keys):
    return {key: tensor() for key in keys or ("module.a.weight", "module.b.weight")}


def live():
    return Object("reduce", Global("os", "system"), ("echo",))


# ------------------------------------------------------------------------------- one way to meet every class


def unknown_format(path):
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:4d\nsize 438007537\n")
    ckptool.open(path)


def malformed(path):
    saved(path, weights())
    path.write_bytes(path.read_bytes()[:-30])
    ckptool.open(path)


def unwritable(path):
    ckpt = saved(path, weights())
    path.unlink()
    path.mkdir()
    ckptool.save(ckpt, path)


def partial_match(path):
    ckptool.strip_prefix(saved(path, weights("module.a", "n_averaged")))


def doubtful(path):
    torch = pytest.importorskip("torch")
    ckptool.load_into(torch.nn.Linear(2, 1, bias=False), saved(path, {"other.w": tensor(), "another.w": tensor()}))


def training_failed(path):
    pytest.importorskip("torch")
    ckptool.train.run(ckptool.train.Config(out=path, epochs=1, lr=1e30))


RAISED = {
    "UnknownFormat": unknown_format,
    "Malformed": malformed,
    "Unreadable": lambda path: (os.mkfifo(path), ckptool.open(path)),
    "NoSuchFile": ckptool.open,
    "Unwritable": unwritable,
    "OutputExists": lambda path: ckptool.save(saved(path, weights()), path),
    "NotFound": lambda path: saved(path, {"epoch": 1}).state_dict(),
    "Ambiguous": lambda path: saved(path, {"netG": weights(), "netD": weights()}).state_dict(),
    "RuleError": lambda path: ckptool.rename(saved(path, weights()), "re:(=x"),
    "NoMatch": lambda path: ckptool.strip_prefix(saved(path, weights()), "net."),
    "PartialMatch": partial_match,
    "KeyCollision": lambda path: ckptool.rename(saved(path, weights()), {"module.a": "x", "module.b": "x"}),
    "CannotCarry": lambda path: ckptool.save(saved(path, {"model": weights(), "hook": live()}), path, overwrite=True),
    "Doubtful": doubtful,
    "NotInstalled": lambda path: errors.require("this", "no_such_package"),
    "TrainingFailed": training_failed,
}

FILE_NAMED = [
    name for name in RAISED if name not in ("RuleError", "Doubtful", "NotInstalled", "TrainingFailed")
]  # wrong whatever the file


@pytest.mark.parametrize("name", RAISED)
def test_every_class_is_raised_by_something(tmp_path, name):
    with pytest.raises(CheckpointError) as raised:
        RAISED[name](tmp_path / "file.pth")
    assert type(raised.value) is getattr(errors, name)


def test_no_class_is_forgotten_here_or_in_the_drawing():
    names = {cls.__name__ for cls in CLASSES} - {"CheckpointError"}
    assert names == RAISED.keys()
    assert names <= set(re.findall(r"\w+", errors.__doc__))
    assert names | {"CheckpointError"} <= set(dir(ckptool))
    page = (Path(__file__).parents[1] / "docs" / "library.md").read_text(encoding="utf-8")
    table = page.partition("\n## Errors\n")[2].partition("\n## ")[0]
    assert names <= set(re.findall(r"`(\w+)`", table))


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_derives_from_the_builtin_that_the_drawing_gives_it(cls):
    drawn = dict(re.findall(r"^ +(\w+) +\((\w+)\)", errors.__doc__, re.M))
    builtin = next((drawn[base.__name__] for base in cls.__mro__ if base.__name__ in drawn), "Exception")
    assert issubclass(cls, __builtins__[builtin])
    assert isinstance(cls("what"), CheckpointError)


@pytest.mark.parametrize("name", RAISED)
def test_a_message_is_where_what_evidence_and_hint(tmp_path, name):
    with pytest.raises(CheckpointError) as raised:
        RAISED[name](tmp_path / "file.pth")
    error = raised.value
    first, *rest = str(error).split("\n")
    assert first.startswith(f"{printable(error.where)}: " if error.where else error.what)
    assert first.endswith((".", ":", "?"))
    assert not first.endswith(("..", "….", ":."))
    assert error.what[0].islower() or error.what[0].isdigit() or error.what[0] in "'("
    assert not error.what.endswith(".")
    assert "\n" not in error.what
    assert rest[: len(error.evidence)] == [f"    {line}" for line in error.evidence]
    assert rest[len(error.evidence) :] == ([f"Hint: {error.hint}"] if error.hint else [])
    assert (error.what[-1] == ":") <= bool(error.evidence)


@pytest.mark.parametrize("name", FILE_NAMED)
def test_a_message_names_the_file(tmp_path, name):
    path = tmp_path / "my file.pth"
    with pytest.raises(CheckpointError) as raised:
        RAISED[name](path)
    assert str(raised.value).startswith(f"{path}: ")


@pytest.mark.parametrize("name", ["UnknownFormat", "Malformed", "OutputExists", "Ambiguous", "NoMatch", "PartialMatch"])
def test_a_hint_is_given_where_something_helps(tmp_path, name):
    with pytest.raises(CheckpointError) as raised:
        RAISED[name](tmp_path / "file.pth")
    assert raised.value.hint


@pytest.mark.parametrize("name", RAISED)
def test_every_option_and_command_in_a_hint_exists(tmp_path, name):
    import click

    from ckptool.cli import cli

    with pytest.raises(CheckpointError) as raised:
        RAISED[name](tmp_path / "file.pth")
    hint = raised.value.hint or ""
    context = click.Context(cli)
    commands = {command: cli.get_command(context, command) for command in cli.list_commands(context)}
    options = {option for command in commands.values() for param in command.params for option in param.opts}
    assert set(re.findall(r"ckptool ([a-z-]+)", hint)) <= commands.keys()
    if not hint.startswith("git "):
        assert set(re.findall(r"--[a-z][a-z-]+", hint)) <= options


def test_an_error_is_caught_as_the_builtin_that_fits(tmp_path):
    with pytest.raises(OSError, match=r"(?i)no such file"):
        ckptool.open(tmp_path / "absent.pth")
    with pytest.raises(FileExistsError):
        RAISED["OutputExists"](tmp_path / "in.pth")
    with pytest.raises(LookupError):
        Checkpoint(None).state_dict()
    with pytest.raises(ValueError, match="no key starts with"):
        ckptool.strip_prefix(Checkpoint(from_plain(weights("a"))))


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (CheckpointError("is bad"), "is bad."),
        (CheckpointError("is bad", where="a.pth"), "a.pth: is bad."),
        (CheckpointError("which?", where="a.pth"), "a.pth: which?"),
        (CheckpointError("two:", evidence=["one", "other"]), "two:\n    one\n    other"),
        (CheckpointError("bad", hint="--fix"), "bad.\nHint: --fix"),
        (CheckpointError("bad", where="x\x1b[1m\ny"), "x\\x1b[1m\\x0ay: bad."),
    ],
)
def test_how_an_error_is_printed(error, text):
    assert str(error) == text


# ------------------------------------------------------------------------------------------------ hostile names

HOSTILE = {
    "colour": "\x1b[31mred",
    "title": "\x1b]0;title\x07",
    "new line": "a\nError: all is well",
    "return": "weight\rhidden",
    "backspace": "evil\x08\x08\x08\x08good",
    "right to left": "\u202eexe.htp",
    "isolate": "\u2066a\u2069",
    "surrogate": "a\ud800b",
    "zero width": "a\u200bb",
    "line separator": "a\u2028b",
    "null": "a\0b",
    "C1": "\x9b31m",
    "very long": "x" * 100_000,
    "long and hostile": "\x1b" * 1000,
}


def hostile_key(name):
    """As a key, a prefix and an envelope at once."""
    return f"{name}.weight"


def named(name):
    """A class of that name. (The pickle of a class cannot spell surrogates.)"""
    return Global("m", name.encode("utf-8", "ignore").decode())


MEET = {
    "strip": lambda n: ckptool.strip_prefix(Checkpoint(from_plain(weights(hostile_key(n), "b.w")))),
    "strip a common prefix": lambda n: ckptool.strip_prefix(Checkpoint(from_plain(weights(f"{n}.a", f"{n}.b")))),
    "strip it": lambda n: ckptool.strip_prefix(Checkpoint(from_plain(weights("a"))), n),
    "strip it from some": lambda n: ckptool.strip_prefix(Checkpoint(from_plain(weights(f"{n}.a", "b"))), n),
    "strip partly": lambda n: ckptool.strip_prefix(Checkpoint(from_plain(weights("module.a", hostile_key(n))))),
    "unwrap": lambda n: ckptool.unwrap(Checkpoint(from_plain(weights(hostile_key(n))))),
    "rename": lambda n: ckptool.rename(Checkpoint(from_plain(weights(f"{n}eight"))), "weight=x"),
    "rename it": lambda n: ckptool.rename(Checkpoint(from_plain(weights("a"))), {n: "b"}),
    "collide": lambda n: ckptool.rename(Checkpoint(from_plain(weights("a.w", f"{n}.w"))), {"a": n}),
    "select": lambda n: ckptool.select(Checkpoint(from_plain(weights(hostile_key(n)))), "other"),
    "select it": lambda n: ckptool.select(Checkpoint(from_plain(weights("a"))), n),
    "select by expression": lambda n: ckptool.select(Checkpoint(from_plain(weights("a"))), "re:" + re.escape(n)),
    "drop all": lambda n: ckptool.drop(Checkpoint(from_plain(weights(hostile_key(n)))), "re:."),
    "ambiguous": lambda n: Checkpoint(from_plain({n: weights(), "other": weights()})).state_dict(),
    "at": lambda n: Checkpoint(from_plain({"model": weights()})).state_dict(n),
    "no state dict": lambda n: Checkpoint(from_plain({n: 1})).state_dict(),
    "a class": lambda n: Checkpoint(Object("reduce", Global("m", n), ())).state_dict(),
    "location": lambda n: ckptool.map_location(Checkpoint(from_plain({"w": tensor(n)})), "cuda:1=cpu,cuda:2=meta"),
    "location word": lambda n: ckptool.map_location(Checkpoint(from_plain(weights())), f"{n}=cpu"),
    "format": lambda n: ckptool.save(Checkpoint(from_plain(weights())), "unused.pth", format=n),
    "objects": lambda n: ckptool.plan(Checkpoint(from_plain({"a": Object("reduce", named(n), ())})), "x.pth"),
    "loss": lambda n: ckptool.plan(Checkpoint(from_plain({n: 1, "model": weights()})), "x.safetensors"),
    "file": lambda n: ckptool.open(n.replace("\0", "")[:200]),
}


def assert_fit_for_a_terminal(text):
    for line in text.split("\n"):
        assert line.isprintable(), ascii(line)
        assert len(line) < 2000


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("meeting", MEET)
def test_hostile_names_are_escaped_and_cut_in_every_message(meeting, name):
    with pytest.raises(CheckpointError) as raised:
        MEET[meeting](HOSTILE[name])
    error = raised.value
    assert_fit_for_a_terminal(str(error))
    assert len(str(error).split("\n")) == 1 + len(error.evidence) + bool(error.hint)


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_escaped_and_cut_in_the_history(name):
    hostile = HOSTILE[name]
    root = {hostile: weights(), "device": {hostile: "cuda:1"}, "names": {"module.a.weight": hostile}, hostile + "2": 1}
    ckpt = Checkpoint(from_plain(root))
    at = ckpt.state_dict().path
    done = ckptool.extract(ckptool.add_prefix(ckptool.strip_prefix(ckpt, at=at), "x", at=at), at=at)
    done = ckptool.rename(ckptool.select(done, "x"), {"x": hostile})
    moved = ckptool.map_location(Checkpoint(from_plain({**root, "t": tensor(hostile)})), "cuda:0")
    for line in (*done.history, *moved.history):
        assert_fit_for_a_terminal(line)
        assert "\n" not in line


@given(st.text(), st.integers(1, 50))
def test_printable_text_is_printable_and_no_longer_than_ten_times_its_limit(text, limit):
    shown = printable(text, limit)
    assert shown.isprintable()
    assert len(shown) <= 10 * limit


@given(st.text(st.characters(categories=["L", "N", "P", "S", "Zs"], exclude_characters="\xa0"), max_size=150))
def test_what_is_printable_already_stays_as_it_is(text):
    assert not text.isprintable() or printable(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("layers.0.weight", "layers.0.weight"),
        ("größe 层", "größe 层"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b", "\\x9b"),
        ("\u202e", "\\u202e"),
        ("\ud800", "\\ud800"),
        ("abcdef", "abcd…"),
    ],
)
def test_printable(text, shown):
    assert printable(text, 5 if text == "abcdef" else 200) == shown
