"""Processes: how they start and meet, and that all of them have ended when a run has, however it ends."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from functools import partial

import pytest

torch = pytest.importorskip("torch")

from doomed import doom
from runs import run_in_forks

from ckptool import load
from ckptool.disk.interrupts import put_off_signals
from ckptool.errors import RuleError, TrainingFailed
from ckptool.train import Config, devices, run

TWO = Config(strategy="ddp", nproc=2, samples=40, epochs=2, devices=("cpu",), curves=False)
CKPTOOL = [sys.executable, "-m", "ckptool"]


def test_one_rank_that_fails_ends_all_and_is_named(tmp_path, forks):
    with pytest.raises(TrainingFailed) as caught:
        run_in_forks(forks, replace(TWO, out=tmp_path), first=partial(doom, "raise"))
    assert (caught.value.what, caught.value.evidence) == ("rank 1 failed: ValueError: no more", ("than this",))
    assert caught.value.hint is None
    assert list(tmp_path.iterdir()) == []


def test_one_rank_that_is_killed_ends_all_and_is_named(tmp_path, monkeypatch, nothing_left):
    monkeypatch.setattr(devices, "places", devices.places)  # put back afterwards
    doom("SIGKILL")
    with pytest.raises(TrainingFailed) as caught:
        run(replace(TWO, out=tmp_path))
    nothing_left()
    assert caught.value.what == "rank 1 was killed by SIGKILL; the other ranks were ended"
    assert caught.value.hint == "too little memory is the usual reason; try a smaller --batch-size"
    assert list(tmp_path.iterdir()) == []


LONG = """
import sys
from pathlib import Path
from runs import Slow
import ckptool.cli, ckptool.cli.train
ckptool.cli.train.Console = lambda bars: Slow(Path(sys.argv[1]))
words = "train --epochs 1000 --devices cpu --save full,dcp --no-curves --out"
ckptool.cli.main([*words.split(), *sys.argv[1:]])
"""


#: The same with ranks that are forks, which need not import torch.
LONG_IN_FORKS = "import forked, torch._dynamo, ckptool.train.launch\nforked.fork_ranks()" + LONG

RANKS = "--strategy ddp --nproc 2"
LOADERS = "--strategy manual --workers 2"


@pytest.mark.parametrize(
    ("name", "code", "what", "program", "processes"),
    [
        ("SIGINT", 130, "interrupted", LONG, RANKS),
        ("SIGTERM", 143, "terminated", LONG_IN_FORKS, RANKS),
        ("SIGKILL", -9, None, LONG, RANKS),
        ("SIGINT", 130, "interrupted", LONG, LOADERS),  # SIGTERM ends the run in the same way, which ends them
    ],
    ids=lambda value: value if isinstance(value, str) and "\n" not in value else "",
)
def test_a_signal_ends_all_processes_of_a_run(tmp_path, nothing_left, name, code, what, program, processes):
    started = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), *processes.split()],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        await_step(started, tmp_path / "told")
        if name == "SIGINT":  # Ctrl-C reaches every process of a terminal
            os.killpg(started.pid, signal.SIGINT)
        else:
            started.send_signal(getattr(signal, name))
        _, err = started.communicate(timeout=60)
    finally:
        started.kill()
        started.wait()
    nothing_left(within=10 if name == "SIGKILL" else 0)  # nobody tells the ranks; they look
    assert started.returncode == code
    if what:
        assert err == f"Error: {what}; what was saved before is whole\n"
        kept = {"-".join(path.name.split("-")[2:]) for path in tmp_path.iterdir() if path.name != "told"}
        assert kept <= {"full.pth", "dcp"}


def _start_interrupted(done):
    with put_off_signals():
        signal.raise_signal(signal.SIGINT)
        done.append("started")


def test_an_interrupt_waits_until_a_process_has_been_started():
    done = []
    of_suite = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            _start_interrupted(done)
        assert done == ["started"]
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, of_suite)


def await_step(started, told):
    end = time.monotonic() + 120
    while not (told.exists() and "a step" in told.read_text()):
        assert started.poll() is None, started.stderr.read()
        assert time.monotonic() < end
        time.sleep(0.05)


def test_under_the_users_own_torchrun_it_is_one_of_the_ranks(tmp_path, nothing_left):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "ckptool"]
    command += ["train", "--strategy", "average-gradients", "--samples", "40", "--epochs", "2", "--devices", "cpu"]
    command += ["--no-curves", "--out", str(tmp_path)]
    done = subprocess.run(
        command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=200, check=False
    )
    nothing_left()
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith(("epoch", "no GPU", "wrote"))]
    assert [re.sub(r"  loss.*", "", line) for line in lines] == [
        "no GPU: 2 processes on the CPU, joined by gloo",
        "epoch 1/2",
        "epoch 2/2",
        f"wrote {tmp_path}/housing-average-gradients-wrapped.pth",
        f"wrote {tmp_path}/housing-average-gradients-full.pth",
    ]
    root = load(tmp_path / "housing-average-gradients-full.pth")
    assert len(root["rng"]) == 2


def test_torchrun_does_not_start_what_is_one_process(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuleError, match="single is one process, and torchrun has started 2"):
        run(Config(strategy="single", out=tmp_path))
    with pytest.raises(RuleError, match="torchrun has started 2 processes"):
        run(replace(TWO, nproc=3, out=tmp_path))


def test_a_port_that_is_taken_is_refused_before_anything_starts(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RuleError) as caught:
            run(replace(TWO, rendezvous=f"tcp://127.0.0.1:{port}", out=tmp_path / "run"))
    assert caught.value.what == f"port {port} of 127.0.0.1 cannot be used: address already in use"
    assert caught.value.hint == "another port, or leave out --rendezvous: then a free one is found"
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("url", ["tcp://127.0.0.1", "tcp://:29500", "tcp://127.0.0.1:many", "tcp://127.0.0.1:99999"])
def test_a_rendezvous_without_host_and_port_is_refused(tmp_path, url):
    with pytest.raises(RuleError) as caught:
        run(replace(TWO, rendezvous=url, out=tmp_path))
    assert caught.value.what == f"{url} names no host and port"


def test_a_file_to_meet_in_must_be_new_and_have_a_folder(tmp_path):
    meeting = tmp_path / "meeting"
    meeting.touch()
    with pytest.raises(RuleError, match="is there already; ranks of another run may have met in it"):
        run(replace(TWO, rendezvous=f"file://{meeting}", out=tmp_path / "run"))
    with pytest.raises(RuleError, match="its folder does not exist"):
        run(replace(TWO, rendezvous=f"file://{tmp_path}/none/meeting", out=tmp_path / "run"))
    assert not (tmp_path / "run").exists()


def test_the_file_to_meet_in_is_removed_after_a_run(trained):
    out = trained("average-gradients")
    assert not list(out.parent.glob("meeting-*"))


@pytest.mark.parametrize("strategy", ["average-gradients", "ddp", "fsdp"])
def test_mpi_is_refused_with_the_reason(tmp_path, strategy):
    if torch.distributed.is_mpi_available():
        pytest.skip("this torch has MPI")
    with pytest.raises(RuleError) as caught:
        run(replace(TWO, strategy=strategy, backend="mpi", out=tmp_path / "run"))
    assert caught.value.where == "--backend mpi"
    assert "built without MPI" in caught.value.what
    assert caught.value.hint == "--backend gloo"
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_nccl_is_refused_without_a_gpu(tmp_path):
    with pytest.raises(RuleError, match="nccl joins GPUs, and there is none to be seen"):
        run(replace(TWO, backend="nccl", out=tmp_path / "run"))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize("names", [("cuda",), ("cuda:0",), ("cuda:0", "cuda:1"), ("1",)])
def test_more_devices_than_there_are_is_refused(tmp_path, names):
    for strategy in ("single", "data-parallel", "ddp"):
        with pytest.raises(RuleError) as caught:
            run(Config(strategy=strategy, devices=names, out=tmp_path / "run"))
        assert "this machine shows 0 GPUs" in caught.value.what
        assert caught.value.hint == "--devices cpu"
    assert not (tmp_path / "run").exists()


GPUS = [torch.device("cuda", number) for number in range(2)]


@pytest.fixture
def two_gpus(monkeypatch):
    """A machine that says that it has two GPUs, for what is asked before anything starts."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.parametrize(
    ("strategy", "nproc", "given", "expected"),
    [
        ("single", None, ("auto",), [[GPUS[0]]]),
        ("data-parallel", None, ("auto",), [GPUS]),
        ("data-parallel", None, ("cuda:1",), [[GPUS[1]]]),
        ("functional", None, ("1", "0"), [GPUS[::-1]]),
        ("manual", None, ("cuda",), [GPUS]),
        ("manual", 1, ("cuda",), [GPUS[:1]]),
        ("ddp", None, ("auto",), [GPUS[:1], GPUS[1:]]),
        ("fsdp", 1, ("auto",), [GPUS[:1]]),
        ("ddp", 3, ("cpu",), [[torch.device("cpu")]] * 3),
    ],
)
def test_gpus_are_given_to_the_processes_of_a_strategy(two_gpus, strategy, nproc, given, expected):
    places = devices.places(Config(strategy=strategy, devices=given, nproc=nproc))
    assert [list(place.devices) for place in places] == expected
    assert [(place.rank, place.world) for place in places] == [(rank, len(places)) for rank in range(len(places))]


def test_what_two_gpus_cannot_give_is_refused(two_gpus):
    for options, what in (
        ({"nproc": 3}, "3 are more than the 2 GPUs that may be used"),
        ({"devices": ("cuda:2",)}, "there is no cuda:2; this machine shows 2 GPUs"),
        ({"devices": ("cuda:0", "cpu")}, "GPUs and a CPU cannot share the work"),
        ({"devices": ("cuda:0", "0")}, "the same device is named twice"),
        ({"devices": ("gpu",)}, "'gpu' is not a device"),
    ):
        with pytest.raises(RuleError) as caught:
            devices.places(Config(strategy="ddp", **options))
        assert what in caught.value.what


def test_with_one_gpu_the_optimizer_is_not_wrapped_and_why_is_said(two_gpus):
    (place,) = devices.places(Config(strategy="data-parallel", devices=("cuda:1",)))
    lines = devices.remarks(Config(strategy="data-parallel", wrap_optimizer=True), place)
    assert any("one GPU: DataParallel does not split the batch" in line for line in lines)
    assert any("calls .to(device) on what it wraps" in line and "is not wrapped" in line for line in lines)


def test_data_parallel_on_the_cpu_of_a_machine_with_gpus_is_refused(two_gpus, tmp_path):
    with pytest.raises(RuleError, match="takes every GPU that it sees"):
        run(Config(strategy="data-parallel", devices=("cpu",), out=tmp_path))


@pytest.mark.parametrize(
    ("options", "what", "hint"),
    [
        (
            {"strategy": "ddp", "nproc": 4, "batch_size": 3},
            "a batch of 3 is smaller than the 4 devices that share it",
            "--batch-size 4",
        ),
        (
            {"strategy": "manual", "nproc": 4, "batch_size": 3},
            "a batch of 3 is smaller than the 4 devices",
            "--batch-size 4",
        ),
        ({"strategy": "ddp", "nproc": 2, "batch_size": 7}, "7 cannot be divided by 2", "--batch-size 8"),
        (
            {"strategy": "single", "accumulate": 5, "batch_size": 4},
            "is smaller than the 1 device that share it in 5 steps",
            "--batch-size 5",
        ),
    ],
)
def test_a_batch_that_cannot_be_shared_is_refused(tmp_path, options, what, hint):
    with pytest.raises(RuleError) as caught:
        run(Config(**options, devices=("cpu",), out=tmp_path / "run"))
    assert what in caught.value.what
    assert (caught.value.where, caught.value.hint) == ("--batch-size", hint)
    assert not (tmp_path / "run").exists()
