"""What `ckptool doctor --error` advises where the file is not all there is to it: it happens, is explained, repaired.

Every message is that of the program that says it, made here. What cannot be made here is in `ELSEWHERE`, with the
reason; its text is in `messages.py`, and what is advised is followed all the same where there is something to type.
"""

import copy
import os
import shlex
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import torch
from messages import MESSAGES
from safetensors.torch import load_file, safe_open, save_file
from troubles import SITUATIONS, TROUBLES, Net, load_plain, resume, typed, weights, with_gpu_states

import ckptool
from ckptool.reports.diagnosis.lessons import LESSONS

#: Lesson -> why its message cannot be had here.
ELSEWHERE = {
    "gpu-memory": "needs a GPU, and to fill it",
    "adam-step": "needs a GPU, and a torch that still says it",
    "old-torch-zip": "torch before 1.6 says it; its successor is read with the reader of that time below",
    "cve-2025-32434": "transformers says it, with torch before 2.6",
    "no-format": "transformers says it",
    "partly-loaded": "transformers, mmcv and mmengine say it",
    "zero-numels": "DeepSpeed says it",
    "mps-float64": "needs a Mac",
    "not-gzip": "gzip says it, in the language of the machine",
    "killed": "the kernel kills what takes all memory, this machine's too; the shell's word for it is had below",
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(
        "import torch\n\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.body = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5))\n"
        "        self.fc = torch.nn.Linear(5, 3)\n"
    )


def explained(happen, lesson, path=None):
    """What is said about the error that HAPPEN ends with; it has to be LESSON."""
    with pytest.raises(Exception) as failed:  # noqa: PT011 - of many classes; its text is what counts
        happen()
    return known(f"{type(failed.value).__name__}: {failed.value}", lesson, path)


def known(text, lesson, path=None):
    (first, *_) = ckptool.explain(text, path)
    assert first.name == lesson, text
    return first


def followed(command):
    code, words = typed(command)
    assert code == 0, command
    return words


MADE = (
    {trouble.lesson for trouble in TROUBLES.values()}
    | {name.partition(",")[0] for name in SITUATIONS}
    | {"two-devices", "mapped", "protocol-4", "dtensor", "nothing-missing", "complex128"}  # below
)


def test_every_message_is_had_from_the_program_that_says_it_or_there_is_a_reason():
    assert sorted(MADE | ELSEWHERE.keys()) == sorted(lesson.name for lesson in LESSONS)
    assert not MADE & ELSEWHERE.keys()
    assert ELSEWHERE.keys() <= MESSAGES.keys()


# -- names and shapes


def test_a_wrapped_model_loads_what_was_given_the_prefix():
    torch.save(weights(), "a.pth")
    wrapped = torch.nn.DataParallel(Net())
    first = explained(lambda: wrapped.load_state_dict(torch.load("a.pth")), "module-missing", "a.pth")
    wrapped.load_state_dict(torch.load(followed(first.commands[0][0])[3]))
    wrapped.module.load_state_dict(torch.load("a.pth"))  # the other way


def test_names_of_another_model_are_made_to_fit():
    torch.save(weights("backbone."), "a.pth")
    first = explained(lambda: load_plain("a.pth"), "missing-and-unexpected", "a.pth")
    assert first.commands[0][0] == "ckptool verify a.pth --fits MODEL.py"
    fit = ckptool.fits("a.pth", "net.py")
    load_plain(followed(fit.commands[0][0])[3])
    assert followed(first.commands[1][0].replace("MODEL.py", "net.py").replace("a-fixed.pth", "b.pth"))
    load_plain("b.pth")


def test_another_head_is_left_out_by_its_names():
    torch.save(Net(9).state_dict(), "a.pth")
    first = explained(lambda: load_plain("a.pth"), "size-mismatch", "a.pth")
    command = first.commands[1][0]
    assert command == "ckptool convert a.pth a-fixed.pth --drop fc.weight --drop fc.bias"
    left = Net().load_state_dict(torch.load(followed(command)[3]), strict=False)
    assert left.missing_keys == ["fc.weight", "fc.bias"]
    assert not left.unexpected_keys


def test_a_script_that_wants_an_envelope_takes_both():
    torch.save(weights(), "a.pth")
    first = explained(lambda: torch.load("a.pth")["state_dict"], "no-envelope", "a.pth")
    assert followed(first.commands[0][0])
    checkpoint = torch.load("a.pth")
    assert "checkpoint.get('state_dict', checkpoint)" in first.actions[0]
    Net().load_state_dict(checkpoint.get("state_dict", checkpoint))


@pytest.mark.parametrize("asked", ["eval", "cuda", "parameters"])
def test_weights_are_put_into_a_model(asked):
    torch.save(weights(), "a.pth")
    path = "a.pth"
    first = explained(lambda: getattr(torch.load(path), asked)(), "weights-are-no-model", path)
    names = {"torch": torch, "Net": Net, "path": path}
    exec(first.actions[0], names)  # the line is what is advised
    assert not names["model"].training


def test_the_optimizer_of_another_model_is_left_behind():
    old = torch.optim.SGD([torch.zeros(1)], lr=1, momentum=0.9)
    torch.save({"state_dict": weights(), "optimizer": old.state_dict()}, "a.pth")
    new = torch.optim.SGD(Net().parameters(), lr=1)
    first = explained(lambda: new.load_state_dict(torch.load("a.pth")["optimizer"]), "optimizer-groups", "a.pth")
    load_plain(followed(first.commands[1][0])[3])


def test_a_total_miss_that_is_only_a_warning_elsewhere_is_made_a_fit():
    torch.save(weights("encoder."), "a.pth")
    left = Net().load_state_dict(torch.load("a.pth"), strict=False)
    assert len(left.unexpected_keys) == 9  # and nobody prints it
    for text in MESSAGES["partly-loaded"]:
        first = known(text, "partly-loaded", "a.pth")
        assert typed(first.commands[0][0].replace("MODEL.py", "net.py"))[0] == 1
    load_plain(
        followed(first.commands[1][0].replace("MODEL.py", "net.py"))[5 - 1 + first.commands[1][0].count(" -o") - 1 + 1]
    )


def test_nothing_missing_is_nothing_wrong():
    assert not known(str(Net().load_state_dict(weights())), "nothing-missing").trouble


# -- devices and memory


def test_what_fills_a_gpu_when_it_is_loaded_is_put_on_the_cpu():
    torch.save(weights(), "a.pth")
    ckptool.save(ckptool.map_location(ckptool.open("a.pth"), "cpu=cuda:0"), "b.pth")
    first = known(MESSAGES["gpu-memory"][0], "gpu-memory", "b.pth")
    load_plain(followed(first.commands[0][0])[3])


def test_an_optimizer_is_made_and_filled_after_its_model_was_moved():
    def step(model, optimizer):
        model.fc(torch.ones(1, 5, device=model.fc.weight.device)).sum().backward()
        optimizer.step()

    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    step(model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    for state in optimizer.state.values():
        state["exp_avg"] = state["exp_avg"].to("meta")  # on another device than the model
    first = explained(lambda: step(model, optimizer), "two-devices")
    assert first.actions == ["move the model first, then make the optimizer, then load its state"]
    model = Net().to("cpu")
    optimizer = torch.optim.Adam(model.parameters())
    optimizer.load_state_dict(saved)
    step(model, optimizer)


def test_a_model_without_memory_is_given_that_of_the_file():
    with torch.device("meta"):
        model = Net()
    first = explained(lambda: model.to("cpu"), "meta")
    assert "assign=True" in first.actions[0]
    model.load_state_dict(weights(), assign=True)
    assert model.to("cpu").fc.weight.device.type == "cpu"
    with torch.device("meta"):
        other = Net()
    other.to_empty(device="cpu").load_state_dict(weights())


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_fsdp_has_divided_takes_a_plain_file_through_its_own_door():
    distributed = pytest.importorskip("torch.distributed")
    if not distributed.is_available() or not distributed.is_gloo_available():
        pytest.skip("torch is built without gloo")
    from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        model = Net()
        fully_shard(model, mesh=init_device_mesh("cpu", (1,)))
        first = explained(lambda: model.load_state_dict(weights()), "dtensor")
        assert "set_model_state_dict" in first.actions[0]
        set_model_state_dict(model, weights(), options=StateDictOptions(full_state_dict=True))
        assert torch.equal(model.fc.weight.full_tensor(), weights()["fc.weight"])
    finally:
        distributed.destroy_process_group()


def test_what_was_killed_for_its_memory_is_read_in_pieces():
    shell = ["bash", "-c", f"{shlex.quote(sys.executable)} -c 'import os; os.kill(os.getpid(), 9)'; true"]
    said = subprocess.run(shell, capture_output=True, text=True, check=False).stderr
    torch.save({"state_dict": weights()}, "a.pth")
    for text in ("Killed\n", "Loading checkpoint shards:  50%\nKilled\n", said):
        first = known(text, "killed", "a.pth")
    Net().load_state_dict(load_file(followed(first.commands[0][0])[3]))
    assert torch.load("a.pth", mmap=True)["state_dict"]["fc.weight"].shape == (3, 5)


# -- writing


def test_a_file_that_was_written_over_while_it_was_mapped_is_lost_and_ckptool_does_it_safely():
    torch.save({"w": torch.zeros(1_000_000)}, "a.pth")
    Path("b.pth").write_bytes(Path("a.pth").read_bytes())
    script = "import torch; torch.save(torch.load('a.pth', mmap=True), 'a.pth')"
    shell = ["bash", "-c", f"ulimit -c 0; {shlex.quote(sys.executable)} -c {shlex.quote(script)}; true"]
    said = subprocess.run(shell, capture_output=True, text=True, check=False).stderr
    first = known(said, "mapped", "a.pth")
    assert not ckptool.doctor("a.pth").healthy
    assert "ckptool does this when OUT is IN" in first.actions[0]
    assert followed("ckptool add-prefix b.pth --in-place")
    assert torch.load("b.pth", mmap=True)["module.w"].shape == (1_000_000,)


def test_what_a_full_disk_left_is_saved_as_far_as_it_goes():
    script = """
import resource, torch
resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
torch.save({f"w{n}": torch.full((10_000,), float(n)) for n in range(20)}, "a.pth")
"""
    said = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False).stderr
    first = known(said, "disk-full", "a.pth")
    assert [one.name for one in ckptool.doctor("a.pth").findings] == ["damaged"]
    left = torch.load(followed(first.commands[0][0])[3])
    assert len(left) >= 6
    assert all(torch.equal(value, torch.full((10_000,), float(key[1:]))) for key, value in left.items())


def test_a_folder_that_is_not_there_is_made():
    first = explained(lambda: torch.save(weights(), "runs/7/a.pth"), "no-parent")
    assert "os.makedirs(folder, exist_ok=True)" in first.actions[0]
    os.makedirs("runs/7", exist_ok=True)
    torch.save(weights(), "runs/7/a.pth")
    load_plain("runs/7/a.pth")


def test_four_gibibytes_of_text_are_stored_as_a_tensor():
    try:
        large = bytes(1 << 32)  # of zeros, which take no memory
    except MemoryError:
        pytest.skip("no room for 4 GiB of addresses")
    first = explained(lambda: torch.save({"index": large}, "a.pth", pickle_protocol=3), "protocol-4")
    assert "as a tensor of uint8" in first.actions[0]
    torch.save({"index": torch.frombuffer(bytearray(b"index"), dtype=torch.uint8)}, "a.pth")
    assert bytes(torch.load("a.pth")["index"].numpy()) == b"index"
    torch.save({"index": b"index"}, "b.pth", pickle_protocol=4)
    assert torch.load("b.pth", weights_only=False) == {"index": b"index"}


# -- safetensors and old readers


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("value", "option"),
    [
        (lambda: torch.eye(3).to_sparse(), "--to-dense"),
        (lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "--dequantize"),
        (lambda: torch.ones(2, 3).t(), ""),
    ],
    ids=["sparse", "quantized", "strided"],
)
def test_tensors_that_safetensors_does_not_take_are_made_such_as_it_does(value, option):
    torch.save(OrderedDict(w=value()), "a.pth")
    first = explained(lambda: save_file({"w": value()}, "b.safetensors"), "not-carried", "a.pth")
    assert option in first.actions[0]
    followed(f"{first.commands[0][0]} {option}")
    expected = value().dequantize() if option == "--dequantize" else value().to_dense()
    assert torch.equal(load_file("OUT.safetensors")["w"], expected)


def test_complex128_stays_in_a_torch_file_or_gives_up_half_of_its_digits():
    value = torch.ones(2, dtype=torch.complex128)
    first = explained(lambda: save_file({"w": value}, "b.safetensors"), "complex128")
    torch.save({"w": value, "v": value}, "a.pth")
    followed(first.commands[0][0].replace("FILE", "a.pth"))
    assert torch.equal(load_file("OUT.safetensors")["w"], value.to(torch.complex64))


def test_a_safetensors_file_without_its_format_is_given_it():
    save_file(dict(weights()), "a.safetensors")
    assert safe_open("a.safetensors", "pt").metadata() is None
    first = known(MESSAGES["no-format"][0], "no-format", "a.safetensors")
    out = followed(first.commands[0][0])[3]
    assert safe_open(out, "pt").metadata()["format"] == "pt"
    Net().load_state_dict(load_file(out))


def test_a_pickle_that_transformers_refuses_becomes_safetensors():
    torch.save({"state_dict": weights()}, "a.pth")
    first = known(MESSAGES["cve-2025-32434"][0], "cve-2025-32434", "a.pth")
    followed(first.commands[0][0])
    Net().load_state_dict(load_file("OUT.safetensors"))


@pytest.mark.parametrize("lesson", ["old-torch-zip", "old-torch-version"])
def test_an_old_torch_reads_what_was_written_for_it(lesson):
    import pickle

    torch.save(weights(), "a.pth")
    first = known(MESSAGES[lesson][0], lesson, "a.pth")
    with open(followed(first.commands[0][0])[3], "rb") as file:
        Net().load_state_dict(torch.serialization._legacy_load(file, None, pickle, encoding="utf-8"))


def test_a_step_of_adam_that_was_moved_to_a_gpu_is_moved_back():
    with_gpu_states(Path("a.pth"))
    first = known(MESSAGES["adam-step"][0], "adam-step", "a.pth")
    resume(followed(first.commands[0][0])[3])
