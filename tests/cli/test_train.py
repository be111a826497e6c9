"""`ckptool train` as a person and a program see it."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest
from samples import Run

HAS_TORCH = importlib.util.find_spec("torch") is not None
needs_torch = pytest.mark.skipif(not HAS_TORCH, reason="needs torch")
SMALL = "train --devices cpu --samples 20 --epochs 2 --no-curves --out out".split()


@needs_torch
def test_a_line_for_each_epoch_and_each_file(run: Run) -> None:
    ran = run(*SMALL)
    assert (ran.code, ran.out) == (0, "")
    assert [re.sub(r"-?\d+\.\d+", "N", line) for line in ran.err.splitlines()] == [
        "epoch 1/2  loss   N  test   N  rate N  N s",
        "epoch 2/2  loss   N  test   N  rate N  N s",
        "wrote out/housing-single-wrapped.pth",
        "wrote out/housing-single-full.pth",
    ]


@needs_torch
def test_quiet_says_nothing(run: Run) -> None:
    assert run(*SMALL, "--strategy", "data-parallel", "-q") == (0, "", "")
    assert Path("out/housing-data-parallel-wrapped.pth").exists()


@needs_torch
def test_json_is_all_that_goes_to_stdout(run: Run) -> None:
    ran = run(*SMALL, "--task", "cnn", "--classes", "2", "--strategy", "functional", "--json")
    shown = json.loads(ran.out)
    assert list(shown) == ["ckptool", "command", "task", "strategy", "history", "files", "remarks", "errors"]
    assert (shown["command"], shown["task"], shown["strategy"]) == ("train", "cnn", "functional")
    assert [epoch["number"] for epoch in shown["history"]] == [1, 2]
    assert set(shown["history"][0]) == {"number", "loss", "test_loss", "accuracy", "rate", "seconds"}
    assert shown["files"] == ["out/cnn-functional-wrapped.pth", "out/cnn-functional-full.pth"]
    assert "called directly" in shown["remarks"][0]
    assert "epoch 2/2" in ran.err
    assert json.loads(run(*SMALL, "--overwrite", "--json", "-q").out)["task"] == "housing"


@needs_torch
def test_verbose_shows_devices_and_sizes_of_batches(run: Run) -> None:
    ran = run(*SMALL, "--strategy", "manual", "--nproc", "2", "--batch-size", "5", "-v")
    assert re.search(r"^cpu: \d+ cores?, .* GiB free, torch uses \d+$", ran.err, re.MULTILINE)
    assert "a batch of 5\n  inside the model: 3 samples on cpu\n  inside the model: 2 samples on cpu\n" in ran.err


@needs_torch
def test_options_reach_the_run(run: Run) -> None:
    words = "--lr 0.1 --lr-group fc1.=0.02 --lr-group fc2.weight=0.03 --schedule step:1:0.5 --optimizer adam --seed 7"
    ran = run(*SMALL, *words.split(), "--save", "full:legacy,wrapped:safetensors", "--save", "dcp", "--init", "xavier")
    assert ran.code == 0
    assert ran.err.splitlines()[-3:] == [
        "wrote out/housing-single-full.legacy.pth",
        "wrote out/housing-single-wrapped.safetensors",
        "wrote out/housing-single-dcp",
    ]
    import ckptool

    root = ckptool.load("out/housing-single-full.legacy.pth")
    rates = [(group["initial_lr"], group["lr"]) for group in root["optimizer"]["param_groups"]]
    assert rates == [(0.1, 0.025), (0.02, 0.005), (0.03, 0.0075)]
    assert root["args"].state["seed"] == 7


REFUSED = {
    "--strategy dpp": "Error: --strategy: there is no 'dpp'.\n    known: single, data-parallel, functional, manual, "
    "average-gradients, ddp, fsdp\nHint: --strategy ddp\n",
    "--batch-size 0": "Error: --batch-size: must be 1 or more, not 0.\n",
    "--save model:safetensors": "Error: --save model:safetensors: safetensors holds tensors and nothing else, and "
    "'model' is more than that.\nHint: --save model, or --save wrapped:safetensors\n",
    "--lr-group fc1": "Error: --lr-group: 'fc1' is not PATTERN=RATE.\nHint: --lr-group classifier.=0.001\n",
    "--wrap-optimizer": "Error: --wrap-optimizer: belongs to --strategy data-parallel.\n",
}


def without_command(text: str) -> str:
    """A message whose hint is the option alone, without the command that was typed, in which it takes its place."""
    return re.sub(r"^Hint: ckptool train --devices cpu .* (--\S+ \S+)$", r"Hint: \1", text, flags=re.MULTILINE)


@pytest.mark.parametrize("words", REFUSED)
def test_what_cannot_work_is_refused_in_a_line_before_anything_is_made(run: Run, words: str) -> None:
    ran = run(*SMALL, *words.split())
    assert (ran.code, ran.out, without_command(ran.err)) == (2, "", REFUSED[words])
    assert not Path("out").exists()


@needs_torch
@pytest.mark.parametrize(
    ("words", "error"),
    [
        (
            "--strategy ddp --backend mpi",
            "Error: --backend mpi: this torch was built without MPI (no binary release has it); it must be built from "
            "source on a machine with MPI.\nHint: --backend gloo\n",
        ),
        (
            "--strategy manual --nproc 8 --batch-size 3",
            "Error: --batch-size: a batch of 3 is smaller than the 8 devices that share it.\nHint: --batch-size 8\n",
        ),
        ("--lr-group fc9=0.1", "Error: --lr-group: no parameter matches 'fc9'.\n"),
    ],
)
def test_what_only_torch_or_the_model_can_tell_is_refused_too(run: Run, words: str, error: str) -> None:
    ran = run(*SMALL, *words.split())
    assert (ran.code, ran.out) == (2, "")
    assert without_command(ran.err).startswith(error)
    assert not Path("out").exists() or not list(Path("out").iterdir())


@pytest.mark.skipif(HAS_TORCH, reason="torch is installed")
def test_without_torch_it_says_how_to_get_it(run: Run) -> None:
    assert run(*SMALL)[:3] == (
        2,
        "",
        "Error: training needs torch, which is not installed.\nHint: pip install 'ckptool[train]'\n",
    )
