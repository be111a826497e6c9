"""Ports as Python: what is written does what `apply` does, reads well, and says what is wrong with another file."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

sys.path.append(str(Path(__file__).resolve().parents[2]))
import ckptool
from benchmarks.emitted import compared, emitted
from benchmarks.zoo import PAIRS
from benchmarks.zoo.__main__ import built
from ckptool.errors import OutputExists
from ckptool.porting import Mapping
from ckptool.porting import expression as ex
from ckptool.porting.emitting import python_of
from ckptool.porting.mapping import Entry
from ckptool.porting.questions import Reason, ask

#: `make emitted` does all of them.
SAMPLE = sorted(PAIRS)[::4]


@pytest.fixture(scope="module")
def written() -> dict[str, str]:
    """Pair of the sample -> the code of its port."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {name: emitted(name) for name in SAMPLE}


@pytest.mark.no_cover
@pytest.mark.parametrize("name", SAMPLE)
def test_the_code_makes_what_apply_makes(written: dict[str, str], name: str) -> None:
    assert compared(name, written[name]) == ""


def test_the_code_is_as_linters_and_formatters_want_it(written: dict[str, str], tmp_path: Path) -> None:
    ruff = shutil.which("ruff") or shutil.which("ruff", path=str(Path(sys.executable).parent))
    if ruff is None:
        pytest.skip("ruff is not installed")
    for name, text in written.items():
        (tmp_path / f"{name}.py").write_text(text)
    rules = "E4,E7,E9,F,I,UP,B,SIM,C4,RUF,PIE,RET,W,N,PL,TRY,ANN,D1,D2,D3,D4"
    ignored = (
        "D203,D213,RUF001,RUF002,RUF003,TRY003,PLR2004,PLR0915,PLR0912,ANN401,N812,PLR0913,PLR0917,D407,D413,D406,D401"
    )
    for words in (["check", "--select", rules, "--ignore", ignored], ["format", "--diff"]):
        told = subprocess.run(
            [ruff, words[0], "--isolated", "--no-cache", *words[1:], str(tmp_path)], capture_output=True, text=True
        )
        assert told.returncode == 0, told.stdout[-3000:] + told.stderr[-500:]


def test_the_first_function_is_convert_and_nothing_but_the_command_names_ckptool(written: dict[str, str]) -> None:
    for text in written.values():
        tree = ast.parse(text)
        assert next(node.name for node in tree.body if isinstance(node, ast.FunctionDef)) == "convert"
        assert text.count("ckptool") == 1
        modules = {
            name.split(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in ([node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
        }
        assert modules <= {"torch", *sys.stdlib_module_names}


def run(text: str, state: dict[str, Any]) -> dict[str, Any]:
    told: dict[str, Any] = {"__name__": "port"}
    exec(compile(text, "port.py", "exec"), told)
    return told["convert"](state)


def from_torch(state: dict[str, Any]) -> Any:
    return ckptool.from_torch(state).state_dict().tensors


def mapping(*pairs: tuple[str, str], unused: tuple[str, ...] = (), shapes: tuple[str, ...] = ()) -> Mapping:
    entries = tuple(Entry(key, (), ex.parse(text)) for key, text in pairs)
    own = dict.fromkeys([*(key for e in entries for key in e.sources), *unused, *shapes], ())
    return Mapping(entries, unused, own, "old.pth", "Net")


def test_a_tensor_that_is_missing_or_unknown_is_named() -> None:
    text = python_of(mapping(("a.weight", "x.weight"), ("a.bias", "x.bias"), unused=("aux.0.w", "aux.1.w")))
    state = {"x.weight": torch.ones(2), "x.bias": torch.ones(2)}
    assert run(text, {**state, "aux.7.w": torch.ones(1)}).keys() == {"a.weight", "a.bias"}
    with pytest.raises(KeyError, match=r"the checkpoint has no 'x\.bias'"):
        run(text, {"x.weight": torch.ones(2)})
    with pytest.raises(ValueError, match=r"nothing is known of 1 tensors: \['y'\]"):
        run(text, {**state, "y": torch.ones(1)})
    with pytest.raises(ValueError, match="nothing is known of 1 tensors"):
        run(text, {**state, "auxiliary": torch.ones(1)})


def test_layers_become_loops_whose_length_is_the_only_difference() -> None:
    texts = []
    for depth in (3, 30):
        found = []
        for n in range(depth):
            found += [(f"h.{n}.q.weight", f"slice(l.{n}.qkv.weight, 0, 0, 4)"), (f"h.{n}.n.weight", f"l.{n}.ln.weight")]
        texts.append(python_of(mapping(*found)).splitlines())
    assert [(a, b) for a, b in zip(*texts, strict=True) if a != b] == [
        ("    for n in range(3):", "    for n in range(30):")
    ]


@pytest.mark.parametrize(
    ("pairs", "line"),
    [
        ([(f"b.{n}.w", f"f.{n + 1}.w") for n in range(4)], 'out[f"b.{n}.w"] = take(f"f.{n + 1}.w")'),
        ([(f"b.{n}.w", f"f.{3 * n + 2}.w") for n in range(4)], 'out[f"b.{n}.w"] = take(f"f.{3 * n + 2}.w")'),
        (
            [(f"b.{i}.{j}.w", f"f.{3 * i + j}.w") for i in range(2) for j in range(3)],
            'out[f"b.{i}.{j}.w"] = take(f"f.{3 * i + j}.w")',
        ),
        ([(f"b.{i}.{j}.w", f"f.{j}.{i}.w") for i in range(2) for j in range(3)], 'take(f"f.{j}.{i}.w")'),
        (
            [(f"layer{i}.{j}.w", f"s.{i}.{j}.w") for i, n in ((1, 3), (2, 4), (3, 6)) for j in range(n)],
            "for i, count in enumerate((3, 4, 6), start=1):",
        ),
        ([(f"b.{n}.w", f"f.{m}.w") for n, m in ((0, 0), (2, 3), (5, 4))], "for n, m in ((0, 0), (2, 3), (5, 4)):"),
        ([(f"b.{n}.w", f"f.{n}.w") for n in (0, 2, 3)], "for n in (0, 2, 3):"),
        (
            [(f"b.{n}.w", f"select(f.w, 0, {n})") for n in range(2)],
            'out[f"b.{n}.w"] = take("f.w")[n]',
        ),
        (
            [(f"b.{n}.w", f"slice(f.w, 0, {8 * n}, {8 * n + 8})") for n in range(3)],
            'out[f"b.{n}.w"] = take("f.w")[8 * n : 8 * n + 8]',
        ),
        ([(f"b.{n}.w", f"slice(f.{n}.w, 0, {8 * n}, {8 * n + 8})") for n in range(2)], 'take("f.1.w")[8:16]'),
        ([(f"b.{n}.w", f"f.{n}.w") for n in (1, 3, 5)], "for n in range(1, 6, 2):"),
    ],
)
def test_numbers_of_layers_are_counted_as_a_person_would(pairs: list[tuple[str, str]], line: str) -> None:
    found = mapping(*pairs)
    found = replace(found, source_shapes=dict.fromkeys(found.source_shapes, (24,)))
    text = python_of(found)
    assert line in text
    keys = dict.fromkeys(key for entry in found.entries for key in entry.sources)
    state = {key: torch.arange(float(at), at + 24) for at, key in enumerate(keys)}
    wanted = {e.target: ex.lazy(e.expr, from_torch(state)) for e in found.entries if e.expr is not None}
    assert {key: value.tolist() for key, value in run(text, state).items()} == {
        key: tensor.numpy().tolist() for key, tensor in wanted.items()
    }


def test_what_is_not_certain_is_a_comment() -> None:
    asked = ask(Reason.ROTARY)
    guess = Entry("q.weight", (4, 4), ex.parse("rotary(wq.weight, 2, half)")).asking(asked)
    left = (guess, Entry("head.weight", (3,)))
    text = python_of(Mapping(left, (), {"wq.weight": (4, 4)}, "old.pth", "Net"))
    assert f" A guess: {asked}" in re.sub(r"\n +#", "", text)
    assert "Not certain: 1 tensor" in text
    assert "the model keeps its own values of: head.weight." in " ".join(text.split())


def test_parts_of_a_tensor_do_not_drag_the_whole_along() -> None:
    found = replace(mapping(("a", "slice(x, 0, 0, 1)"), ("b", "transpose(x)")), source_shapes={"x": (4, 2)})
    made = run(python_of(found), {"x": torch.ones(4, 2)})
    assert made["a"].untyped_storage().nbytes() == 8
    assert made["b"].is_contiguous()


def test_tensors_of_a_larger_model_are_refused_if_they_are_cut_or_rearranged() -> None:
    """Rows 0 to 2 of twice as many are half of the queries, whose sizes say nothing of that."""
    pairs = [
        (f"h.{n}.{part}", f"slice(l.{n}.qkv, 0, {at}, {at + 2})") for n in range(2) for at, part in ((0, "q"), (2, "k"))
    ]
    pairs += [
        (f"h.{n}.{part}", f"slice(l.{n}.kv, 0, {at}, {at + 2})") for n in range(2) for at, part in ((0, "a"), (2, "b"))
    ]
    found = mapping(*pairs, ("out", "transpose(proj)"))
    sizes = {"l.0.qkv": (4, 2), "l.1.qkv": (8, 2), "l.0.kv": (4, 2), "l.1.kv": (4, 2), "proj": (2, 2)}
    text = python_of(replace(found, source_shapes=sizes))
    state = {key: torch.ones(size) for key, size in sizes.items()} | {"proj": torch.ones(6, 6)}
    assert run(text, state)["h.1.q"].shape == (2, 2)
    assert '"l.*.kv": (4, 2)' in text
    for key, size in (("l.0.qkv", (8, 2)), ("l.1.qkv", (16, 4)), ("l.1.kv", (8, 4))):
        with pytest.raises(
            ValueError, match=rf"{key} is \({size[0]}, {size[1]}\), and this code is for \({sizes[key][0]}, 2\)"
        ):
            run(text, state | {key: torch.ones(size)})


NAMES = st.text(st.sampled_from("ab.01_- :#{}\"'\\é\n/"), min_size=1, max_size=8)


@given(st.dictionaries(NAMES, NAMES, max_size=5), st.lists(NAMES, max_size=3), NAMES, NAMES)
def test_odd_names_survive(names: dict[str, str], unused: list[str], source: str, target: str) -> None:
    read = set(names.values())
    left = tuple(dict.fromkeys(key for key in unused if key not in read))
    entries = tuple(Entry(key, (), ex.of(value)) for key, value in names.items())
    found = Mapping(entries, left, dict.fromkeys([*read, *left], ()), source, target)
    state = {key: torch.full((), float(n)) for n, key in enumerate([*sorted(read), *left])}
    made = run(python_of(found, f"ckptool transfer '{source}'"), state)
    assert made == {key: state[value] for key, value in names.items()}


def test_a_mapping_is_emitted_from_python(tmp_path: Path) -> None:
    pair = PAIRS["fused_to_heads_apart"]
    _, target, state = built(pair)
    found = ckptool.transfer(state, target)
    found.emit(tmp_path / "port.py")
    found.emit(tmp_path / "port.py")
    assert run((tmp_path / "port.py").read_text(), state).keys() == {e.target for e in found.entries}
    (tmp_path / "port.py").write_text("mine")
    with pytest.raises(OutputExists):
        found.emit(tmp_path / "port.py")
