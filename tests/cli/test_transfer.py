"""`ckptool transfer`: what it writes, what it refuses, and the command that it names then."""

from __future__ import annotations

import json
import math
import os
import shlex
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from samples import Run
from torch import nn

from ckptool.model_code import user_code

OLD = """
    from torch import nn

    class Old(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Sequential(
                nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3), nn.BatchNorm2d(16), nn.ReLU()
            )
            self.classifier = nn.Linear(16, 10)

        def forward(self, x):
            return self.classifier(self.features(x).mean((2, 3)))
"""
NEW = """
    from torch import nn

    class Net(nn.Module):
        def __init__(self, classes=10, width=8):
            super().__init__()
            self.stem = nn.Conv2d(3, width, 3)
            self.norm = nn.BatchNorm2d(width)
            self.body = nn.Conv2d(width, 2 * width, 3)
            self.norm2 = nn.BatchNorm2d(2 * width)
            self.head = nn.Linear(2 * width, classes)

        def forward(self, x):
            x = self.norm(self.stem(x)).relu()
            x = self.norm2(self.body(x)).relu()
            return self.head(x.mean((2, 3)))
"""
PLACES = {
    "features.0": "stem",
    "features.1": "norm",
    "features.3": "body",
    "features.4": "norm2",
    "classifier": "head",
}


def module_of(text: str) -> Any:
    names: dict[str, Any] = {}
    exec(dedent(text), names)  # the text of a test
    return next(v for k, v in names.items() if isinstance(v, type) and issubclass(v, nn.Module))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "net.py").write_text(dedent(NEW))
    (tmp_path / "old.py").write_text(dedent(OLD))
    torch.manual_seed(0)
    torch.save(module_of(OLD)().state_dict(), tmp_path / "old.pth")
    return tmp_path


def expected(folder: Path) -> dict[str, Any]:
    state = torch.load(folder / "old.pth")
    return {f"{PLACES[key.rpartition('.')[0]]}.{key.rpartition('.')[2]}": value for key, value in state.items()}


def same(left: dict[str, Any], right: dict[str, Any]) -> bool:
    return list(left) == list(right) and all(torch.equal(left[key], right[key]) for key in left)


def test_what_fits_is_written_as_the_state_dict_of_the_model(run: Run, folder: Path) -> None:
    ran = run("transfer", "old.pth", "net.py")
    assert (ran.code, ran.err.splitlines()[0]) == (0, "running the code of net.py")
    made = torch.load(folder / "old.Net.pth")
    assert same(made, expected(folder))
    net = module_of(NEW)()
    assert made._metadata == net.state_dict()._metadata
    assert list(made) == list(net.state_dict())
    net.load_state_dict(made)


def test_an_import_that_takes_long_is_told_with_the_package_that_it_imports(
    run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "a_big_library").mkdir()
    for name in ("__init__", "first", "second"):
        (folder / "a_big_library" / f"{name}.py").touch()
    code = (folder / "net.py").read_text()
    (folder / "net.py").write_text(f"import a_big_library.first, a_big_library.second\n{code}")
    monkeypatch.setattr("ckptool.cli.transfer._LONG", -1.0)
    ran = run("transfer", "old.pth", "net.py", "-n")
    assert ran.err.splitlines()[1] == "importing net.py took 0 s: it imports 3 modules of a_big_library"
    assert "importing" not in run("transfer", "old.pth", "net.py", "-n", "--quiet").err


@pytest.fixture
def installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages that are installed. No module of them, or of the current folder, stays."""
    (folder / "site").mkdir()
    monkeypatch.syspath_prepend(folder / "site")
    yield folder / "site"
    for name, module in [*sys.modules.items()]:
        if str(getattr(module, "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


def package(folder: Path, name: str, text: str) -> Path:
    """A package with a module `nets`. Returns the path of the module."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text("from .nets import Net\n")
    (folder / name / "nets.py").write_text(dedent(text))
    return folder / name / "nets.py"


@pytest.mark.parametrize("named", ["vision_nets.nets:Net", "vision_nets.nets", "vision_nets:Net"])
def test_an_installed_package_goes_before_a_folder_of_its_name(
    run: Run, folder: Path, installed: Path, named: str
) -> None:
    module = package(installed, "vision_nets", NEW)
    package(folder, "vision_nets", "raise SystemExit('canary')")
    run_of = module if ".nets" in named else module.with_name("__init__.py")
    ran = run("transfer", "old.pth", named)
    assert (ran.code, ran.err.splitlines()[0]) == (0, f"running the code of {named} ({run_of})")
    assert str(folder) not in sys.path


def test_a_package_in_the_current_folder_is_found_and_its_file_is_named(
    run: Run, folder: Path, installed: Path
) -> None:
    module = package(folder, "own_nets", "import own_helper\n" + dedent(NEW))
    (folder / "own_helper.py").write_text("")
    ran = run("transfer", "old.pth", "own_nets.nets:Net", "-o", "out.pth", "--source-model", "own_nets:Net")
    whole = module.with_name("__init__.py")
    assert ran.err.splitlines()[0] == (f"running the code of own_nets.nets:Net ({module}) and own_nets:Net ({whole})")
    assert ran.code == 0, ran.err


def test_to_say_which_file_it_is_nothing_is_run(folder: Path, installed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "silent").mkdir()
    (folder / "silent" / "__init__.py").write_text("raise SystemExit('canary')")
    (folder / "silent" / "nets.py").write_text("")
    assert user_code.file_of("silent.nets:Net") == folder / "silent" / "nets.py"
    assert user_code.file_of("silent:Net") == folder / "silent" / "__init__.py"
    for none in ("silent.none", "none.at.all", "silent.nets.Net", "sys", "", ".", "..", "a..b", ".a", "net.py"):
        assert user_code.file_of(none) is None


NO_CODE = {
    "absent.py": "absent.py: no such file or directory",
    "./site": "./site: is a folder",
    "plain": "plain: is a folder",
    "absent.module:X": "absent.module: needs the module 'absent', which is not there",
    ":Net": "MODEL.py: no such file or directory",
    "": "the name of a file is empty",
    "..:X": "..: is a folder",
}


@pytest.mark.parametrize(("named", "what"), NO_CODE.items())
def test_what_is_no_code_is_said_to_be_none(run: Run, folder: Path, installed: Path, named: str, what: str) -> None:
    (folder / "plain").mkdir()
    ran = run("transfer", "old.pth", named)
    assert ran.code == 2
    assert what in ran.err


@pytest.mark.parametrize("wrapper", ["module.", "model.", "_orig_mod."])
@pytest.mark.parametrize("envelope", [None, "state_dict", "model_state_dict"])
def test_wrappers_and_envelopes_are_looked_through(run: Run, folder: Path, wrapper: str, envelope: str | None) -> None:
    state = {wrapper + key: value for key, value in torch.load(folder / "old.pth").items()}
    torch.save(state if envelope is None else {"epoch": 3, envelope: state}, folder / "w.pth")
    assert run("transfer", "w.pth", "net.py", "-o", "out.pth").code == 0
    assert same(torch.load(folder / "out.pth"), expected(folder))


def test_types_and_locations_are_those_of_the_source(run: Run, folder: Path) -> None:
    state = {key: value.half() if value.is_floating_point() else value for key, value in expected(folder).items()}
    torch.save(state, folder / "half.pth")
    assert run("remap", "half.pth", "gpu.pth", "-m", "cuda:1").code == 0
    assert run("transfer", "gpu.pth", "net.py", "-o", "out.pth").code == 0
    places = set()
    made = torch.load(folder / "out.pth", map_location=lambda s, place: places.add(place) or s)
    assert places == {"cuda:1"}
    assert same(made, state)
    assert run("transfer", "gpu.pth", "net.py", "-o", "cpu.pth", "-m", "cpu").code == 0
    assert same(torch.load(folder / "cpu.pth"), state)


def test_floating_point_tensors_are_cast_on_request(run: Run, folder: Path) -> None:
    assert run("transfer", "old.pth", "net.py", "-o", "out.pth", "--cast", "bf16").code == 0
    made, want = torch.load(folder / "out.pth"), expected(folder)
    assert all(torch.equal(made[k], v.bfloat16() if v.is_floating_point() else v) for k, v in want.items())


@pytest.mark.parametrize("suffix", ["safetensors", "pth"])
def test_the_suffix_chooses_the_format(run: Run, folder: Path, suffix: str) -> None:
    from safetensors.torch import load_file

    assert run("transfer", "old.pth", "net.py", "-o", f"out.{suffix}").code == 0
    made = load_file(folder / "out.safetensors") if suffix == "safetensors" else torch.load(folder / "out.pth")
    want = expected(folder)
    assert set(made) == set(want)
    assert all(torch.equal(made[key], want[key]) for key in want)


# ------------------------------------------------------------------------------------------------ a new head


def test_a_new_head_takes_one_obvious_step(run: Run, folder: Path) -> None:
    """The refusal names the command; pasted, it does the job."""
    ran = run("transfer", "old.pth", "net.py", "--kwargs", "classes=5")
    assert ran.code == 1
    assert sorted(path.name for path in folder.iterdir()) == ["net.py", "old.pth", "old.py"]
    assert "head.weight [5, 16]: in its place the source has classifier.weight with sizes [10, 16]" in ran.err
    hint = ran.err.splitlines()[-1].removeprefix("Hint: ")
    assert hint == "ckptool transfer old.pth net.py --kwargs classes=5 --partial 'head.*'"
    again = run(*shlex.split(hint)[1:])
    assert again.code == 0
    made, want = torch.load(folder / "old.Net.pth"), expected(folder)
    assert made["head.weight"].shape == (5, 16)
    assert made["head.weight"].abs().sum() > 0  # the model's own initial values
    assert all(torch.equal(made[key], want[key]) for key in want if not key.startswith("head"))
    assert [line.split()[0] for line in again.out.splitlines() if "head." in line] == ["head.weight", "head.bias"]


@pytest.mark.parametrize(
    "pattern", [["--partial"], ["--partial", "head"], ["--partial", "head.*"], ["--partial=head.*"]]
)
def test_gaps_are_accepted_by_pattern_or_all(run: Run, folder: Path, pattern: list[str]) -> None:
    assert run("transfer", "old.pth", "net.py", "--kwargs", "classes=5", *pattern).code == 0


def test_an_option_without_its_pattern_does_not_take_the_file_that_follows(run: Run, folder: Path) -> None:
    assert run("transfer", "--partial", "old.pth", "net.py", "--kwargs", "classes=5").code == 0
    assert run("transfer", "old.pth", "--accept-guesses", "net.py", "-o", "b.pth").code == 0


def test_a_pattern_for_other_keys_does_not_accept(run: Run, folder: Path) -> None:
    ran = run("transfer", "old.pth", "net.py", "--kwargs", "classes=5", "--partial", "head.bias")
    assert ran.code == 1
    assert "head.weight" in ran.err
    assert "head.bias [5]" not in ran.err


def test_a_pattern_that_fits_no_key_of_the_model_is_an_error(run: Run, folder: Path) -> None:
    ran = run("transfer", "old.pth", "net.py", "--partial", "haed.*")
    assert ran.code == 2
    assert "'haed.*'" in ran.err
    assert "did you mean" in ran.err


def test_a_checkpoint_in_the_place_of_code_is_refused_before_it_is_said_that_code_runs(run: Run, folder: Path) -> None:
    ran = run("transfer", "old.pth", "old.pth")
    assert (ran.code, ran.err.splitlines()[0]) == (2, "Error: old.pth: is not a Python file.")


# ---------------------------------------------------------------------------------------------------- guesses

TWINS = """
    import torch
    from torch import nn

    class Twins(nn.Module):
        def __init__(self):
            super().__init__()
            self.left = nn.Linear(4, 4)
            self.right = nn.Linear(4, 4)

        def forward(self, x):
            return self.right(x) * self.left(x).sigmoid()
"""


@pytest.fixture
def twins(folder: Path) -> Path:
    """Two layers of one shape under other names, sorted by key: nothing says which is which."""
    (folder / "twins.py").write_text(dedent(TWINS))
    from safetensors.torch import save_file

    torch.manual_seed(1)
    state = {f"{n}.{leaf}": torch.randn(*shape) for n in "ab" for leaf, shape in (("weight", (4, 4)), ("bias", (4,)))}
    save_file(state, folder / "twins.safetensors")
    return folder


def test_a_guess_is_called_one_and_nothing_is_written(run: Run, twins: Path) -> None:
    ran = run("transfer", "twins.safetensors", "twins.py", "--json")
    assert ran.code == 1
    assert not list(twins.glob("*.Twins.pth"))
    entries = {entry["target"]: entry for entry in json.loads(ran.out)["entries"]}
    assert {entry["status"] for entry in entries.values()} <= {"guessed", "unmapped"}
    for entry in entries.values():
        assert entry["doubts"]
        if entry["status"] == "guessed":
            assert entry["rivals"]
    hint = ran.err.splitlines()[-1].removeprefix("Hint: ")
    assert run(*shlex.split(hint)[1:]).code == 0
    assert len(list(twins.glob("*.Twins.pth"))) == 1


def test_a_hint_settles_it(run: Run, twins: Path) -> None:
    assert run("transfer", "twins.safetensors", "twins.py", "--hint", "a=right", "--hint", "b=left").code == 0
    from safetensors.torch import load_file

    source, made = load_file(twins / "twins.safetensors"), torch.load(twins / "twins.Twins.pth")
    assert torch.equal(made["right.weight"], source["a.weight"])
    assert torch.equal(made["left.bias"], source["b.bias"])


def test_the_refusal_says_how_to_settle_a_guess_by_a_hint(run: Run, twins: Path) -> None:
    """What stands behind "if A is B:" can be typed, and does it."""
    from safetensors.torch import load_file

    ran = run("transfer", "twins.safetensors", "twins.py")
    says, hint = next(line for line in ran.err.splitlines() if line.strip().startswith("if ")).strip().split(": ")
    _, own, _, theirs = says.split()
    assert run("transfer", "twins.safetensors", "twins.py", *shlex.split(hint)).code == 0
    source, made = load_file(twins / "twins.safetensors"), torch.load(twins / "twins.Twins.pth")
    assert torch.equal(made[own], source[theirs])
    assert "--source-model SRC.py --prove" in ran.err


def test_a_guess_that_has_no_rival_is_not_settled_by_hints(run: Run, folder: Path) -> None:
    state = torch.load(folder / "old.pth")
    torch.save({**state, "features.0.weight": torch.randn(8, 6, 3, 3)}, folder / "six.pth")
    (folder / "twelve.py").write_text(dedent(NEW).replace("nn.Conv2d(3,", "nn.Conv2d(12,"))
    ran = run("transfer", "six.pth", "twelve.py")
    assert (ran.code, " guessed" in ran.err, "--hint" in ran.err) == (1, True, False)


def test_counters_do_not_make_the_command_longer(run: Run, folder: Path) -> None:
    """What needs no source stays as it is whatever --partial says: a whole head is one pattern."""
    (folder / "deep.py").write_text(
        dedent(NEW).replace(
            "nn.Linear(2 * width, classes)", "nn.Sequential(nn.Linear(2 * width, 7), nn.BatchNorm1d(7))"
        )
    )
    ran = run("transfer", "old.pth", "deep.py")
    assert ran.err.splitlines()[-1] == "Hint: ckptool transfer old.pth deep.py --partial 'head.*'"


def test_the_command_of_a_refusal_works_after_the_mapping_was_saved(run: Run, twins: Path) -> None:
    ran = run("transfer", "twins.safetensors", "twins.py", "--save-mapping", "m.yaml")
    hint = ran.err.splitlines()[-1].removeprefix("Hint: ")
    assert "--save-mapping m.yaml" in hint
    assert run(*shlex.split(hint)[1:]).code == 0


def test_a_hint_that_fits_nothing_is_an_error(run: Run, twins: Path) -> None:
    ran = run("transfer", "twins.safetensors", "twins.py", "--hint", "c=left")
    assert (ran.code, "no key of the source matches" in ran.err) == (2, True)
    ran = run("transfer", "twins.safetensors", "twins.py", "--hint", "a=left", "--hint", "a.weight=left.weight")
    assert (ran.code, "earlier hints match all keys that it matches" in ran.err) == (2, True), ran.err


# ------------------------------------------------------------------------------------------ the mapping file


def test_a_mapping_file_replays_exactly(run: Run, folder: Path) -> None:
    assert run("transfer", "old.pth", "net.py", "--save-mapping", "m.yaml", "-o", "a.pth").code == 0
    other = {key: value + 1 for key, value in torch.load(folder / "old.pth").items()}
    torch.save({"state_dict": other}, folder / "other.pth")
    assert run("transfer", "other.pth", "net.py", "--mapping", "m.yaml", "-o", "b.pth").code == 0
    first, second = torch.load(folder / "a.pth"), torch.load(folder / "b.pth")
    assert list(first) == list(second)
    assert all(torch.equal(first[key] + 1, second[key]) for key in first)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_a_mapping_may_come_through_a_pipe(run: Run, folder: Path) -> None:
    assert run("transfer", "old.pth", "net.py", "--save-mapping", "m.yaml", "-o", "a.pth").code == 0
    os.mkfifo("pipe")
    writer = threading.Thread(target=lambda: Path("pipe").write_bytes(Path("m.yaml").read_bytes()), daemon=True)
    writer.start()
    assert run("transfer", "old.pth", "net.py", "--mapping", "pipe", "-o", "b.pth").code == 0
    assert same(torch.load(folder / "b.pth"), torch.load(folder / "a.pth"))


def test_a_mapping_file_can_be_inverted(run: Run, folder: Path) -> None:
    assert run("transfer", "old.pth", "net.py", "--save-mapping", "m.yaml", "-o", "a.pth").code == 0
    assert run("transfer", "a.pth", "old.py", "--mapping", "m.yaml", "--invert", "-o", "back.pth").code == 0
    assert same(torch.load(folder / "back.pth"), torch.load(folder / "old.pth"))


def test_a_mapping_from_a_file_of_a_wrapped_model_can_be_inverted_into_the_model_itself(run: Run, folder: Path) -> None:
    old = torch.load(folder / "old.pth")
    torch.save({f"module.{key}": value for key, value in old.items()}, folder / "wrapped.pth")
    assert run("transfer", "wrapped.pth", "net.py", "--save-mapping", "m.yaml", "-o", "a.pth").code == 0
    assert run("transfer", "a.pth", "old.py", "--mapping", "m.yaml", "--invert", "-o", "back.pth").code == 0
    assert same(torch.load(folder / "back.pth"), old)


def test_a_mapping_replays_on_a_file_of_the_model_in_a_wrapper_and_without_one(run: Run, folder: Path) -> None:
    old = torch.load(folder / "old.pth")
    torch.save({f"module.{key}": value for key, value in old.items()}, folder / "wrapped.pth")
    for made, other in (("old.pth", "wrapped.pth"), ("wrapped.pth", "old.pth")):
        saved = ("--save-mapping", f"{made}.yaml", "-o", f"{made}.ported.pth")
        assert run("transfer", made, "net.py", *saved).code == 0
        assert run("transfer", other, "net.py", "--mapping", f"{made}.yaml", "-o", f"{made}.again.pth").code == 0
        assert same(torch.load(folder / f"{made}.again.pth"), torch.load(folder / f"{made}.ported.pth"))
    torch.save({key.replace("0", "9"): value for key, value in old.items()}, folder / "another.pth")
    ran = run("transfer", "another.pth", "net.py", "--mapping", "old.pth.yaml", "-o", "no.pth")
    assert (ran.code, "of the mapping" in ran.err, (folder / "no.pth").exists()) == (2, True, False)


def test_the_mapping_is_saved_when_the_port_is_refused_and_can_be_edited(run: Run, twins: Path) -> None:
    assert run("transfer", "twins.safetensors", "twins.py", "--save-mapping", "m.yaml").code == 1
    text = (twins / "m.yaml").read_text()
    assert text.index("\ndoubts:") < text.index("\nmapping:")
    (twins / "m.yaml").write_text(
        "ckptool-mapping: 1\nmapping:\n  left.weight: b.weight\n  left.bias: b.bias\n"
        "  right.weight: a.weight\n  right.bias: a.bias\n"
    )
    assert run("transfer", "twins.safetensors", "twins.py", "--mapping", "m.yaml").code == 0
    from safetensors.torch import load_file

    source, made = load_file(twins / "twins.safetensors"), torch.load(twins / "twins.Twins.pth")
    assert torch.equal(made["left.weight"], source["b.weight"])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("hello", "not a mapping file"),
        ("ckptool-mapping: 9\n", "version 9"),
        ("ckptool-mapping: 1\nmapping:\n  nope.weight: features.0.weight\n", "does not have"),
        ("ckptool-mapping: 1\nmapping:\n  stem.weight: features.3.weight\n", "wants [8, 3, 3, 3]"),
        ("ckptool-mapping: 1\nmapping:\n  stem.weight: explode(features.0.weight)\n", "no operation 'explode'"),
        ("ckptool-mapping: 1\nmapping:\n  stem.weight: gone.weight\n", "gone.weight"),
        ("ckptool-mapping: 1\nmapping: [\n", "not valid YAML"),
    ],
)
def test_a_mapping_file_that_cannot_be_used_says_why(run: Run, folder: Path, text: str, says: str) -> None:
    (folder / "m.yaml").write_text(text)
    ran = run("transfer", "old.pth", "net.py", "--mapping", "m.yaml", "--partial")
    assert ran.code == 2
    assert says in ran.err
    assert not (folder / "old.Net.pth").exists()


def test_a_mapping_file_is_refused_before_the_models_code_runs(run: Run, folder: Path) -> None:
    (folder / "net.py").write_text("from pathlib import Path\nPath('ran').touch()\n" + (folder / "net.py").read_text())
    (folder / "m.yaml").write_text("ckptool-mapping: 1\nleft: ['a.{0..999999}']\n")
    ran = run("transfer", "old.pth", "net.py", "--mapping", "m.yaml")
    assert (ran.code, "stands for too much" in ran.err) == (2, True)
    assert not (folder / "ran").exists()


def test_an_argument_is_json_or_a_text(run: Run) -> None:
    from ckptool.cli.typed import keyword_arguments as _kwargs

    told = ["a=1", "b=[1, 2]", "c=x", "d=True", "e=NaN", "f=" + "[" * 100_000, "g=" + "9" * 5000, 'h={"i": null}']
    read = _kwargs(told, "--kwargs")
    assert math.isnan(read.pop("e"))
    assert (read.pop("f"), read.pop("g")) == ("[" * 100_000, "9" * 5000)
    assert read == {"a": 1, "b": (1, 2), "c": "x", "d": True, "h": {"i": None}}


# ------------------------------------------------------------------------------------------ a grown vocabulary

TEXT = """
    import torch
    from torch import nn

    class Text(nn.Module):
        def __init__(self, vocab=20, positions=True):
            super().__init__()
            self.embed = nn.Embedding(vocab, 6)
            self.places = nn.Embedding(9, 6) if positions else None
            self.body = nn.Linear(6, 6)
            self.out = nn.Linear(6, vocab if positions else 3)

        def forward(self, ids):
            x = self.embed(ids)
            if self.places is not None:
                x = x + self.places(torch.arange(ids.shape[1], device=ids.device))
            return self.out(self.body(x).relu())
"""


@pytest.mark.parametrize("positions", [True, False])
def test_a_table_that_is_looked_up_keeps_its_words_whatever_it_is_called(
    run: Run, folder: Path, positions: bool
) -> None:
    """More words are a declared guess, for the table and the output layer over it; not weights that start anew."""
    (folder / "text.py").write_text(dedent(TEXT))
    state = module_of(TEXT)(positions=positions).state_dict()
    torch.save(state, folder / "text.pth")
    words = ("--kwargs", "vocab=25", "--kwargs", f"positions={positions}")
    ran = run("transfer", "text.pth", "text.py", *words, "-o", "more.pth")
    assert ran.code == 1
    hint = ran.err.splitlines()[-1].removeprefix("Hint: ")
    assert hint.endswith("--accept-guesses")
    assert run(*shlex.split(hint)[1:]).code == 0
    made = torch.load(folder / "more.pth")
    for key in ("embed.weight", "out.weight", "out.bias"):
        assert torch.equal(made[key][: len(state[key])], state[key])
    assert made["embed.weight"].shape == (25, 6)
    assert torch.allclose(made["embed.weight"][20:], state["embed.weight"].mean(0))


# ------------------------------------------------------------------------------------------------ by position


def test_the_loop_of_old_with_shapes_checked(run: Run, folder: Path) -> None:
    assert run("transfer", "old.pth", "net.py", "--by", "position").code == 0
    assert same(torch.load(folder / "old.Net.pth"), expected(folder))


def test_the_loop_of_old_stops_where_shapes_differ(run: Run, folder: Path) -> None:
    ran = run("transfer", "old.pth", "net.py", "--by", "position", "--kwargs", "classes=5")
    assert ran.code == 2
    assert "classifier.weight [10, 16] is not head.weight [5, 16]" in ran.err
    hint = next(line for line in ran.err.splitlines() if line.startswith("Hint"))
    first = hint.split("--first ")[1].split()[0]
    ran = run(
        "transfer", "old.pth", "net.py", "--by", "position", "--kwargs", "classes=5", "--first", first, "--partial"
    )
    assert ran.code == 0
    made, want = torch.load(folder / "old.Net.pth"), expected(folder)
    assert all(torch.equal(made[key], want[key]) for key in want if not key.startswith("head"))


def test_options_of_the_loop_need_the_loop(run: Run, folder: Path) -> None:
    assert run("transfer", "old.pth", "net.py", "--first", "3").code == 2


# ------------------------------------------------------------------------------------------------- the report


def test_json_is_one_document_of_the_documented_form(run: Run, folder: Path) -> None:
    ran = run("transfer", "old.pth", "net.py", "--kwargs", "classes=5", "--json", "--partial")
    document = json.loads(ran.out)
    assert list(document) == [
        "ckptool", "command", "target", "coverage", "entries", "unused", "proof", "output", "written", "errors",
    ]  # fmt: skip
    assert document["ckptool"] == 1
    assert document["command"] == "transfer"
    assert document["target"] == "Net"
    state = module_of(NEW)(classes=5).state_dict()
    total = sum(value.numel() for value in state.values())
    assert document["coverage"] == {"keys": [len(state) - 2, len(state)], "parameters": [total - 85, total]}
    assert [entry["target"] for entry in document["entries"]] == list(state)
    assert {entry["status"] for entry in document["entries"]} == {"mapped", "unmapped"}
    for entry in document["entries"]:
        assert {"target", "status", "sources", "ops", "evidence", "rivals"} <= set(entry)
    assert document["unused"] == ["classifier.weight", "classifier.bias"]
    assert document["proof"] is None
    assert document["output"] == "old.Net.pth"


def test_a_dry_run_writes_nothing(run: Run, folder: Path) -> None:
    before = sorted(folder.iterdir())
    assert run("transfer", "old.pth", "net.py", "-n").code == 0
    assert sorted(folder.iterdir()) == before


def test_an_output_that_exists_is_kept(run: Run, folder: Path) -> None:
    (folder / "old.Net.pth").write_text("mine")
    ran = run("transfer", "old.pth", "net.py")
    assert (ran.code, (folder / "old.Net.pth").read_text()) == (2, "mine")
    assert run("transfer", "old.pth", "net.py", "--overwrite").code == 0


def test_what_the_code_prints_is_no_part_of_the_report(run: Run, folder: Path) -> None:
    (folder / "loud.py").write_text("print('importing')\n" + dedent(NEW))
    ran = run("transfer", "old.pth", "loud.py:Net", "--json")
    assert json.loads(ran.out)["target"] == "Net"
    assert "importing" in ran.err


def test_a_page_to_look_at(run: Run, folder: Path) -> None:
    assert run("transfer", "old.pth", "net.py", "--kwargs", "classes=5", "--html", "port.html").code == 1
    page = (folder / "port.html").read_text()
    for word in ("features.0.weight", "stem.weight", "head.bias", "unmapped", "unused"):
        assert word in page


# --------------------------------------------------------------------------------------------------- the code

CODE: dict[str, tuple[str, list[str], str]] = {
    "raises": ("raise RuntimeError('no GPU here')\n", [], "RuntimeError: no GPU here"),
    "leaves": ("import sys\nsys.exit(3)\n", [], "SystemExit"),
    "no syntax": ("def broken(:\n", [], "SyntaxError"),
    "imports what is missing": ("import not_installed_anywhere\n", [], "not_installed_anywhere"),
    "no model": ("x = 1\n", [], "defines no model"),
    "several": (
        "from torch import nn\nclass A(nn.Linear): pass\nclass B(nn.Linear): pass\n",
        [],
        "defines 2 models; say which",
    ),
    "needs arguments": (
        "from torch import nn\nclass A(nn.Linear):\n    def __init__(self, width, depth):\n        pass\n",
        [],
        "needs width, depth",
    ),
    "a name that is not there": ("from torch import nn\nclass A(nn.Linear): pass\n", [":B"], "no 'B'"),
    "raises when built": (
        "from torch import nn\nclass A(nn.Linear):\n    def __init__(self):\n        1 / 0\n",
        [],
        "ZeroDivisionError",
    ),
    "a factory of something else": ("def build_model():\n    return 3\n", [], "gives a int"),
}


@pytest.mark.parametrize("name", CODE)
def test_code_without_a_usable_model_is_explained_in_one_message(run: Run, folder: Path, name: str) -> None:
    text, suffix, says = CODE[name]
    (folder / "m.py").write_text(text)
    ran = run("transfer", "old.pth", "m.py" + "".join(suffix))
    assert ran.code == 2
    assert says in ran.err
    assert "Traceback" not in ran.err
    assert [line.startswith("Error: ") for line in ran.err.splitlines()].count(True) == 1
    assert not list(folder.glob("old.*.pth"))


def test_several_models_are_listed_and_the_hint_chooses_one(run: Run, folder: Path) -> None:
    (folder / "m.py").write_text(dedent(NEW) + dedent(NEW).replace("class Net(", "class Other("))
    ran = run("transfer", "old.pth", "m.py")
    assert ran.code == 2
    assert "Net (class)" in ran.err
    assert "Other (class)" in ran.err
    assert run("transfer", "old.pth", "m.py:Net").code == 0


def test_a_name_that_is_nearly_right_is_corrected(run: Run, folder: Path) -> None:
    (folder / "m.py").write_text("from torch import nn\nclass Block(nn.Module):\n    pass\n" + dedent(NEW))
    ran = run("transfer", "old.pth", "m.py:net")
    assert (ran.code, ran.err.splitlines()[-1]) == (2, "Hint: ckptool transfer old.pth m.py:Net")
    ran = run("transfer", "old.pth", "net.py", "--kwargs", "clases=10")
    assert (ran.code, ran.err.splitlines()[-1]) == (2, "Hint: ckptool transfer old.pth net.py --kwargs classes=10")


def test_code_in_the_place_of_the_weights_is_noticed(run: Run, folder: Path) -> None:
    ran = run("transfer", "net.py", "old.pth", "-q")
    assert ran.code == 2
    hint = ran.err.splitlines()[-1].removeprefix("Hint: ")
    assert hint == "ckptool transfer old.pth net.py -q"
    assert run(*shlex.split(hint)[1:]).code == 0


@pytest.mark.parametrize("target", ["net.py:Net", "net:Net", "made.py:make", "made.py:ready", "made.py"])
def test_a_model_is_a_class_a_factory_or_an_instance(
    run: Run, folder: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "net", raising=False)
    (folder / "made.py").write_text("from net import Net\ndef make():\n    return Net()\nready = Net()\n")
    assert run("transfer", "old.pth", target, "-o", "out.pth").code == 0
    assert same(torch.load(folder / "out.pth"), expected(folder))
    sys.modules.pop("net", None)


def test_a_source_of_another_family_is_refused_with_the_nearest_misses(run: Run, folder: Path) -> None:
    torch.save({f"block.{n}.weight": torch.zeros(n + 31, 7, 5, 5) for n in range(6)}, folder / "other.pth")
    ran = run("transfer", "other.pth", "net.py")
    assert ran.code == 2
    assert "nothing fits" in ran.err
    assert "stem.weight wants [8, 3, 3, 3]" in ran.err


def test_sizes_that_are_off_by_a_factor_are_named(run: Run, folder: Path) -> None:
    ran = run("transfer", "old.pth", "net.py", "--kwargs", "width=16")
    assert ran.code == 2
    assert "dimension 0 is 8, not 16 (0.5 times)" in ran.err
    assert "--kwargs" in ran.err
    hint = ran.err.splitlines()[-1].removeprefix("Hint: ")
    assert run(*shlex.split(hint)[1:]).code == 0


@pytest.mark.parametrize(
    ("kwargs", "says"), [("clases=5", "takes no 'clases'"), ("classes", "is not NAME=VALUE"), ("classes=two", "raised")]
)
def test_wrong_arguments_are_named(run: Run, folder: Path, kwargs: str, says: str) -> None:
    ran = run("transfer", "old.pth", "net.py", "--kwargs", kwargs)
    assert (ran.code, says in ran.err) == (2, True)


def test_only_a_model_whose_own_values_stay_is_built_with_memory(run: Run, folder: Path) -> None:
    """Built on the meta device, and once more for real only when something keeps its initial values."""
    (folder / "counting.py").write_text(
        dedent(NEW).replace("        super().__init__()", "        super().__init__()\n        self.note()")
        + "\n    def note(self):\n        import torch\n        with open('built.txt', 'a') as out:\n"
        "            out.write(torch.empty(1).device.type + ' ')\n"
    )
    assert run("transfer", "old.pth", "counting.py", "-o", "a.pth").code == 0
    assert (folder / "built.txt").read_text() == "meta "
    assert run("transfer", "old.pth", "counting.py", "--kwargs", "classes=5", "--partial", "-o", "b.pth").code == 0
    assert (folder / "built.txt").read_text() == "meta meta meta cpu "


def test_of_a_model_that_keeps_some_values_only_those_get_memory(folder: Path) -> None:
    from ckptool.model_code.building import _partly_real, find_model, initial_values

    found = find_model(f"{folder / 'net.py'}:Net", {"classes": 5})
    partly = _partly_real(found, {"head.weight", "head.bias"})
    assert partly is not None
    assert {name for name, p in partly.named_parameters() if not p.is_meta} == {"head.weight", "head.bias"}
    values = initial_values(found, ["head.weight", "norm.running_var"])
    assert 0 < float(abs(values["head.weight"].numpy()).max()) <= 0.25  # as nn.Linear(16, …) begins
    assert values["norm.running_var"].numpy().tolist() == [1.0] * 8


def test_a_model_that_looks_at_its_values_while_it_is_built_is_built_whole(folder: Path) -> None:
    from ckptool.model_code.building import find_model, initial_values

    (folder / "looks.py").write_text(
        "import torch\nfrom torch import nn\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)\n"
        "        self.largest = float(self.a.weight.abs().max()) if not self.a.weight.is_meta or torch.empty(1).device"
        ".type == 'cpu' else 0.0\n"
    )
    assert initial_values(find_model(str(folder / "looks.py")), ["b.weight"])["b.weight"].shape == (3, 3)


# -------------------------------------------------------------------------------------------------- the proof


def test_equal_outputs_are_a_proof(run: Run, folder: Path) -> None:
    ran = run("transfer", "old.pth", "net.py", "--source-model", "old.py", "--prove", "--json")
    document = json.loads(ran.out)
    assert ran.code == 0
    assert document["proof"]["equal"] is True
    assert "float32[" in document["proof"]["text"]


def test_proof_settles_what_nothing_else_does(run: Run, twins: Path) -> None:
    text = TWINS.replace("Twins", "Source").replace("self.left", "self.a").replace("self.right", "self.b")
    (twins / "source.py").write_text(dedent(text))
    ran = run("transfer", "twins.safetensors", "twins.py", "--source-model", "source.py", "--prove", "--json")
    assert (ran.code, json.loads(ran.out)["proof"]["equal"]) == (0, True)
    from safetensors.torch import load_file

    source, made = load_file(twins / "twins.safetensors"), torch.load(twins / "twins.Twins.pth")
    assert torch.equal(made["left.weight"], source["a.weight"])


def test_saved_outputs_serve_as_a_proof(run: Run, twins: Path) -> None:
    from safetensors.torch import load_file, save_file

    source = load_file(twins / "twins.safetensors")
    x = torch.randn(5, 4)
    y = nn.functional.linear(x, source["b.weight"], source["b.bias"]) * torch.sigmoid(
        nn.functional.linear(x, source["a.weight"], source["a.bias"])
    )
    save_file({"input": x, "output": y}, twins / "io.safetensors")
    ran = run("transfer", "twins.safetensors", "twins.py", "--reference", "io.safetensors", "--json")
    assert (ran.code, json.loads(ran.out)["proof"]["equal"]) == (0, True)
    assert torch.equal(torch.load(twins / "twins.Twins.pth")["left.weight"], source["a.weight"])


def test_outputs_that_differ_are_a_refusal_with_the_first_divergence(run: Run, folder: Path) -> None:
    wrong = dedent(NEW).replace("self.norm2(self.body(x)).relu()", "self.norm2(self.body(x)).tanh()")
    (folder / "wrong.py").write_text(wrong)
    ran = run("transfer", "old.pth", "wrong.py", "--source-model", "old.py", "--prove")
    assert ran.code == 1
    assert "not proved" in ran.err
    assert "first divergence is at head" in ran.err
    assert not (folder / "old.Net.pth").exists()
    hint = ran.err.splitlines()[-1].removeprefix("Hint: ")
    assert hint == "ckptool transfer old.pth wrong.py --source-model old.py -n --save-mapping old-mapping.yaml"
    assert run(*shlex.split(hint)[1:]).code == 0
    assert (folder / "old-mapping.yaml").exists()
    assert not list(folder.glob("old.*.pth"))  # what the proof refused is not written by the next command either


@pytest.mark.parametrize("option", [["--reference", "io.safetensors"], ["--reference=io.safetensors"]])
def test_outputs_that_were_saved_and_differ_are_a_refusal_too(run: Run, folder: Path, option: list[str]) -> None:
    from safetensors.torch import save_file

    save_file({"input": torch.zeros(2, 3, 8, 8), "output": torch.ones(2, 10)}, folder / "io.safetensors")
    ran = run("transfer", "old.pth", "net.py", *option, "-q")
    assert (ran.code, "not proved" in ran.err) == (1, True)
    hint = ran.err.splitlines()[-1].removeprefix("Hint: ")
    assert hint == "ckptool transfer old.pth net.py -q -n --save-mapping old-mapping.yaml"
    assert run(*shlex.split(hint)[1:]).code == 0


def test_a_proof_needs_something_to_compare_with(run: Run, folder: Path) -> None:
    assert run("transfer", "old.pth", "net.py", "--prove").code == 2


@pytest.mark.parametrize("spec", ["float32", "float32[2,x]", "floot32[2]", "[2,3]"])
def test_an_input_that_cannot_be_read_is_named(run: Run, folder: Path, spec: str) -> None:
    ran = run("transfer", "old.pth", "net.py", "--input", spec)
    assert (ran.code, "is not an input" in ran.err) == (2, True)


@pytest.mark.parametrize(
    ("spec", "said"), [("uint8[2,3]<1000", "up to 255"), ("int64[99999999999]", "1,073,741,824 elements")]
)
def test_an_input_that_cannot_be_made_is_refused(run: Run, folder: Path, spec: str, said: str) -> None:
    ran = run("transfer", "old.pth", "net.py", "--input", spec)
    assert (ran.code, said in ran.err) == (2, True)


@pytest.mark.parametrize("kind", ["safetensors", "bin"])
def test_a_mapping_is_replayed_on_a_sharded_source(run: Run, folder: Path, kind: str) -> None:
    whole = run("transfer", "old.pth", "net.py", "--save-mapping", "m.yaml", "-o", "whole.pth")
    pattern = f"sharded-{kind}"
    cut = run("convert", "old.pth", "shards", "-t", pattern, "--max-shard-size", "2KB")
    assert (whole.code, cut.code) == (0, 0), whole.err + cut.err
    assert len(list((folder / "shards").glob(f"*.{kind}"))) > 1
    for source in ("shards", f"shards/{next((folder / 'shards').glob('*.index.json')).name}"):
        ran = run("transfer", source, "net.py", "--mapping", "m.yaml", "-o", "made.pth", "--overwrite")
        assert ran.code == 0, ran.err
        made, wanted = torch.load(folder / "made.pth"), torch.load(folder / "whole.pth")
        assert list(made) == list(wanted)
        assert all(torch.equal(made[key], wanted[key]) for key in wanted)


def test_a_sharded_source_is_matched_and_proved_like_any_other(run: Run, folder: Path) -> None:
    assert run("convert", "old.pth", "shards", "-t", "sharded-safetensors", "--max-shard-size", "2KB").code == 0
    ran = run("transfer", "shards", "net.py", "--source-model", "old.py", "--prove", "--json")
    assert ran.code == 0, ran.err
    assert json.loads(ran.out)["proof"]["equal"] is True
