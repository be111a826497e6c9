"""The commands that change values, and recipes, as a person types them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import yaml
from samples import Files, Run, state_dict, tensor

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.errors import CheckpointError
from ckptool.passes.recipes import PASSES, Step
from ckptool.passes.recipes import run as run_passes
from ckptool.tree import Dict


def dtypes(path: Path | str) -> dict[str, str]:
    return {key: value.dtype.name for key, value in ckptool.open(path).state_dict().tensors.items()}


#: A value of each kind of pass that leaves tensors in the file, and changes keys if the pass is about keys.
VALUES = {"flag": True, "which": True, "text": "module.", "texts": "module=net", "cast": "bf16", "ties": "keep"}


@pytest.mark.parametrize("name", PASSES)
def test_the_row_of_a_pass_tells_whether_it_changes_keys(name: str) -> None:
    before = Checkpoint(Dict([("module.Conv.weight", tensor(2)), ("module.fc.weight", tensor(2))]))
    step = Step(name, VALUES[PASSES[name].kind])
    try:
        after, changed = run_passes(before, [step])
    except CheckpointError:  # there is nothing for it to do, as for `dequantize`
        assert not PASSES[name].renames
        return
    assert (after.state_dict().keys() != before.state_dict().keys()) == PASSES[name].renames
    assert len(changed) == (2 if PASSES[name].renames else 0)


def test_a_cast_says_what_it_cast_and_kept(run: Run, files: Files) -> None:
    ran = run("convert", "plain.pth", "out.pth", "--cast", "bf16", "--cast-keep", "fc")
    assert ran.code == 0, ran.err
    assert "  cast to bfloat16: 2 of 3 tensors, 112 bytes -> 72; 1 kept" in ran.err
    assert dtypes("out.pth") == {"conv1.weight": "bfloat16", "conv1.bias": "bfloat16", "fc.weight": "float32"}


def test_values_that_overflow_are_in_the_receipt(run: Run) -> None:
    ckptool.save(Checkpoint(Dict([("w", tensor(3, fill=0x7E))])), "huge.pth")
    ran = run("convert", "huge.pth", "out.pth", "--cast", "fp16")
    assert "  note: 3 values beyond the range of the new type" in ran.err
    ran = run("convert", "huge.pth", "out2.pth", "--cast", "fp16", "--json")
    assert json.loads(ran.out)["notes"] == ["3 values beyond the range of the new type: w (3)"]


def test_a_type_that_is_none_is_refused(run: Run, files: Files) -> None:
    ran = run("convert", "plain.pth", "out.pth", "--cast", "int8")
    assert ran.code == 2
    assert "--cast: 'int8' is not a floating point dtype of torch; choose from float64, float32" in ran.err
    assert "Hint: ckptool convert plain.pth out.pth --cast bf16" in ran.err
    assert run("convert", "plain.pth", "out.pth", "--cast-keep", "fc").code == 2
    assert not Path("out.pth").exists()


def test_slim_says_which_weights_there_are(run: Run) -> None:
    root = Dict([("state_dict", state_dict()), ("state_dict_ema", state_dict()), ("epoch", 3)])
    ckptool.save(Checkpoint(root), "timm.pth")
    ran = run("slim", "timm.pth", "out.pth")
    assert ran.code == 2
    assert (
        "    ema: state_dict_ema\n    raw: state_dict\nHint: ckptool slim timm.pth out.pth --weights ema\n" in ran.err
    )
    ran = run("slim", "timm.pth", "out.pth", "--weights", "ema")
    assert ran.code == 0, ran.err
    assert "  slim: moving average at state_dict_ema, not state_dict" in ran.err
    assert "  note: the moving average and the raw weights are equal" in ran.err
    assert list(ckptool.open("out.pth").state_dict()) == ["conv1.weight", "conv1.bias", "fc.weight"]


def test_average_takes_several_files_and_an_output(run: Run, files: Files) -> None:
    ran = run("average", "plain.pth", "plain.safetensors", "-o", "mean.pth")
    assert ran.code == 0, ran.err
    assert "  average of 2 checkpoints: 3 of 3 tensors" in ran.err
    ran = run("average", "plain.pth", "plain.pth", "-o", "mean2.pth", "--ratios", "3,1")
    assert "  average of 2 checkpoints weighted 0.75, 0.25: 3 of 3 tensors" in ran.err
    assert run("average", "plain.pth", "dp.pth", "-o", "mean3.pth").code == 2
    assert run("average", "plain.pth", "--ratios", "x", "-o", "mean3.pth").code == 2
    assert "Missing OUT" in run("average", "plain.pth", "plain.pth").err


# -- recipes


def test_a_command_is_written_down_and_run_again(run: Run, files: Files) -> None:
    options = [
        "--strip-prefix",
        "module.",
        "--rename",
        "conv1=stem",
        "--cast",
        "bf16",
        "--cast-keep",
        "fc",
        "-m",
        "cpu",
    ]
    assert run("convert", "dp.pth", "one.pth", *options, "--save-recipe", "recipe.yaml").code == 0
    assert yaml.safe_load(Path("recipe.yaml").read_text()) == {
        "ckptool": 1,
        "passes": [
            {"strip-prefix": "module."},
            {"rename": ["conv1=stem"]},
            {"cast": {"to": "bf16", "keep": ["fc"]}},
            {"map-location": ["cpu"]},
        ],
    }
    ran = run("convert", "dp.pth", "two.pth", "--recipe", "recipe.yaml")
    assert ran.code == 0, ran.err
    assert Path("one.pth").read_bytes() == Path("two.pth").read_bytes()
    assert run("convert", "dp.pth", "x.pth", "--save-recipe", "recipe.yaml").code == 2  # it is there already


def test_the_passes_of_a_recipe_run_in_its_own_order(run: Run, files: Files) -> None:
    Path("r.yaml").write_text("ckptool: 1\npasses: [{rename: conv1=a}, {add-prefix: p.}, {drop: p.a}, unwrap]\n")
    ran = run("convert", "plain.pth", "out.pth", "--recipe", "r.yaml", "--if-present", "-v")
    assert ran.code == 0, ran.err
    assert list(ckptool.open("out.pth").state_dict()) == ["p.fc.weight"]
    assert "fc.weight -> p.fc.weight" in ran.err.replace("  ", " ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[", "is not YAML"),
        ("passes: []", "is not a recipe"),
        ("ckptool: 2\npasses: []", "is not a recipe"),
        (
            "ckptool: 1\npasses: [{quantize: 4}]",
            "names the pass 'quantize'; there are scalars-to-metadata, extract, slim",
        ),
        ("ckptool: 1\npasses: [{cast: 4}]", "gives cast the value '4'; it takes a type, or {to: TYPE"),
        ("ckptool: 1\npasses: [{untie: no}]", "gives untie the value 'False'; it takes true, or nothing"),
        ("ckptool: 1\npasses: [[unwrap]]", "which is none: one name a line"),
        ("ckptool: 1\npasses: [{rename: []}]", "it takes a text or a list of texts"),
        ("!!python/object/apply:os.system [id]", "is not YAML"),
        ("ckptool: 1\npasses: [{select: [[a], {b: c}]}]", "gives select the value a list of 2 items; it takes a text"),
        ("ckptool: 1\npasses: [{[unwrap]: true}]", "has a list or a dict for a key"),
        ("ckptool: 1\npasses:\n- drop: &a [x]\n- drop: *a", "line 3 has the anchor &a"),
        ("ckptool: 1\npasses:\n- strip-prefix: 1:30", "line 3 has 1:30, which YAML takes for a number"),
        ("ckptool: 1\npasses: [" + "unwrap, " * 101 + "]", "lists 101 passes; 100 is the limit"),
    ],
)
def test_a_recipe_that_is_none_is_refused(run: Run, files: Files, text: str, message: str) -> None:
    Path("r.yaml").write_text(text)
    ran = run("convert", "plain.pth", "out.pth", "--recipe", "r.yaml")
    assert ran.code == 2
    assert ran.err.startswith("Error: r.yaml: ")
    assert message in ran.err
    assert not Path("out.pth").exists()


@pytest.mark.skipif(not Path("/dev/fd").is_dir(), reason="a name for an open file is needed")
@pytest.mark.parametrize(
    ("option", "text"), [("--recipe", b"ckptool: 1\npasses:\n- rename: fc=head\n"), ("--rules", b"fc=head\n")]
)
def test_what_a_command_prints_can_be_a_recipe_or_rules(run: Run, files: Files, option: str, text: bytes) -> None:
    reading, writing = os.pipe()
    os.write(writing, text)
    os.close(writing)
    ran = run("convert", "plain.pth", "out.pth", option, f"/dev/fd/{reading}")
    os.close(reading)
    assert ran.code == 0, ran.err
    assert "head.weight" in ckptool.open("out.pth").state_dict()


@pytest.mark.parametrize("option", ["--recipe", "--rules"])
def test_a_file_without_end_is_refused(run: Run, files: Files, option: str) -> None:
    Path("endless").symlink_to("/dev/zero")
    ran = run("convert", "plain.pth", "out.pth", option, "endless")
    assert ran.code == 2
    assert ran.err == "Error: endless: has more than 1,048,576 characters.\n"
    assert not Path("out.pth").exists()


@pytest.mark.same_without_torch
def test_keys_that_grow_from_pass_to_pass_are_refused(run: Run, files: Files) -> None:
    Path("r.yaml").write_text("ckptool: 1\npasses:\n" + "- rename: '{...}={1}.{1}'\n" * 40)
    ran = run("convert", "plain.pth", "out.pth", "--recipe", "r.yaml")
    assert ran.code == 2
    assert "makes keys too long" in ran.err
    assert "131,072 characters for a key" in ran.err
    assert not Path("out.pth").exists()
