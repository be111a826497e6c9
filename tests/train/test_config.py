"""What is refused before anything starts, and what a run without options is. None of this needs torch."""

import pytest

from ckptool.errors import RuleError
from ckptool.train import Config, Save
from ckptool.train.config import CONTAINERS, SAVES, TASKS, split_saves
from ckptool.train.ways import WAYS

REFUSED = {
    "a task that is not there": ({"task": "huosing"}, "--task", "--task housing"),
    "a strategy that is not there": ({"strategy": "dpp"}, "--strategy", "--strategy ddp"),
    "an optimizer that is not there": ({"optimizer": "adma"}, "--optimizer", "--optimizer adam"),
    "a scheme that is not there": ({"init": "xaviar"}, "--init", "--init xavier"),
    "a scheme with a number that it has not": ({"init": "xavier:3"}, "--init", "--init xavier"),
    "a scheme with a word for a number": ({"init": "constant:some"}, "--init", "--init constant:0.01"),
    "a schedule that is not there": ({"schedule": "stepp:3"}, "--schedule", "--schedule step"),
    "a schedule with a word for a number": ({"schedule": "step:x"}, "--schedule", "--schedule step:10:0.1"),
    "a schedule with too many numbers": ({"schedule": "exponential:1:2"}, "--schedule", "--schedule exponential:0.9"),
    "a schedule with no number": ({"schedule": "exponential:nan"}, "--schedule", "--schedule exponential:0.9"),
    "a step of nothing": ({"schedule": "step:0"}, "--schedule", "--schedule step:10:0.1"),
    "a wave of nothing": ({"schedule": "cosine:0.5"}, "--schedule", "--schedule step:10:0.1"),
    "a factor of nothing": ({"schedule": "exponential:0"}, "--schedule", "--schedule step:10:0.1"),
    "a precision that is not there": ({"amp": "bf61"}, "--amp", "--amp bf16"),
    "a backend that is not there": ({"backend": "glo"}, "--backend", "--backend gloo"),
    "no epoch": ({"epochs": 0}, "--epochs", None),
    "an empty batch": ({"batch_size": 0}, "--batch-size", None),
    "no pass in a step": ({"accumulate": 0}, "--accumulate", None),
    "no class": ({"classes": 0}, "--classes", None),
    "images without pixels": ({"image_size": 0}, "--image-size", None),
    "less than no worker": ({"workers": -1}, "--workers", None),
    "a rhythm of less than nothing": ({"save_every": -1}, "--save-every", None),
    "a seed below zero": ({"seed": -1}, "--seed", None),
    "a seed that torch does not take": ({"seed": 1 << 32}, "--seed", None),
    "no sample": ({"samples": 0}, "--samples", None),
    "no process": ({"nproc": 0}, "--nproc", None),
    "a depth that VGG has not": ({"depth": 12}, "--depth", None),
    "no rate": ({"lr": 0.0}, "--lr", None),
    "a rate that is not a number": ({"lr": float("nan")}, "--lr", None),
    "a rate without end": ({"lr": float("inf")}, "--lr", None),
    "no rate for a group": ({"lr_groups": {"fc1": 0.0}}, "--lr-group", None),
    "no width": ({"width": -1.0}, "--width", None),
    "a momentum that grows": ({"momentum": 1.0}, "--momentum", "--momentum 0.9"),
    "a push of the weights": ({"weight_decay": -0.1}, "--weight-decay", None),
    "no device": ({"devices": ()}, "--devices", "--devices cpu"),
    "nothing to test with": ({"test_fraction": 0.0}, "--test-fraction", "--test-fraction 0.2"),
    "nothing to train with": ({"test_fraction": 1.0}, "--test-fraction", "--test-fraction 0.2"),
    "a kind that is not there": ({"save": ("wraped",)}, "--save", "--save wrapped"),
    "a container that is not there": ({"save": ("full:zap",)}, "--save", "--save zip"),
    "a directory in a container": ({"save": ("dcp:zip",)}, "--save dcp:zip", "--save dcp"),
    "more than tensors in safetensors": (
        {"save": ("full:safetensors",)},
        "--save full:safetensors",
        "--save full, or --save wrapped:safetensors",
    ),
    "a model in safetensors": (
        {"save": ("model:safetensors",)},
        "--save model:safetensors",
        "--save model, or --save wrapped:safetensors",
    ),
    "the empty optimizer without its wrapper": ({"save": ("full-2018",)}, "--save full-2018", "--save full"),
    "a wrapped optimizer without DataParallel": ({"wrap_optimizer": True}, "--wrap-optimizer", None),
    "a whole model of fsdp": (
        {"strategy": "fsdp", "save": ("model",)},
        "--save model with fsdp",
        "--save wrapped,full,dcp",
    ),
    "a moving average of fsdp": (
        {"strategy": "fsdp", "save": ("ema",)},
        "--save ema with fsdp",
        "--save wrapped,full,dcp",
    ),
    "fsdp in fp16": ({"strategy": "fsdp", "amp": "fp16"}, "--amp fp16", "--amp bf16"),
    "a rendezvous of no kind": (
        {"rendezvous": "localhost:29500"},
        "--rendezvous",
        "--rendezvous env://, tcp://127.0.0.1:PORT or file:///PATH",
    ),
    "no folder of images": ({"task": "imagefolder"}, "--task imagefolder", "add --data FOLDER"),
    "data for a task that makes its own": ({"task": "cnn", "data": "x"}, "--data", None),
    "a number of samples of a table": ({"data": "x.csv", "samples": 5}, "--samples", None),
    "a column of images": ({"task": "cnn", "target": "price"}, "--target", None),
    "a column of no table": ({"target": "price"}, "--target", None),
    "labels of a table": ({"data": "x.csv", "labels": "labels.json"}, "--labels", None),
}


@pytest.mark.parametrize("case", REFUSED)
def test_an_option_that_cannot_work_is_refused_by_its_name(case):
    options, where, hint = REFUSED[case]
    with pytest.raises(RuleError) as caught:
        Config(**options).check()
    assert (caught.value.where, caught.value.hint) == (where, hint)
    assert "\n" not in caught.value.what


def test_what_is_known_is_listed_where_a_name_is_not():
    with pytest.raises(RuleError) as caught:
        Config(strategy="quantum").check()
    assert caught.value.evidence == (f"known: {', '.join(WAYS)}",)
    assert caught.value.hint is None


@pytest.mark.parametrize("strategy", WAYS)
@pytest.mark.parametrize("task", [task for task in TASKS if task != "imagefolder"])
def test_every_strategy_goes_with_every_task(task, strategy):
    Config(task=task, strategy=strategy).check()


def test_the_default_is_what_a_script_saves_and_what_a_run_is_resumed_from():
    assert [str(save) for save in Config(strategy="ddp").saves] == ["wrapped", "full"]
    assert [str(save) for save in Config(strategy="fsdp").saves] == ["wrapped", "full", "dcp"]


def test_what_is_asked_for_twice_is_saved_once():
    assert [str(save) for save in Config(save=("full", "full:zip", "full:legacy")).saves] == ["full", "full:legacy"]


@pytest.mark.parametrize("kind", SAVES)
def test_a_file_is_named_for_its_task_strategy_and_kind(kind):
    names = {Save(kind, container).name("cnn", "ddp") for container in CONTAINERS}
    if kind == "dcp":
        assert names == {"cnn-ddp-dcp"}
    else:
        assert names == {f"cnn-ddp-{kind}{suffix}" for suffix in (".pth", ".legacy.pth", ".safetensors")}


@pytest.mark.parametrize("text", ["wrapped,full", "wrapped full", " wrapped, full,", "wrapped\tfull"])
def test_saves_are_separated_by_commas_or_spaces(text):
    assert split_saves(text) == ("wrapped", "full")


def test_the_namespace_of_a_checkpoint_says_nothing_about_the_machine():
    config = Config(out="/home/me/run", data="/home/me/x.csv", resume="/home/me/y.pth", labels="/home/me/z.json")
    kept = vars(config.as_namespace())
    assert "/home/me" not in repr(kept)
    assert (kept["task"], kept["lr"], kept["devices"]) == ("housing", 0.01, ["auto"])


def test_only_strategies_that_need_processes_are_launched():
    launched = [name for name in WAYS if Config(strategy=name).way.in_processes]
    assert launched == ["average-gradients", "ddp", "fsdp"]
