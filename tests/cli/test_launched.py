"""Commands under torchrun: what people type, with real processes."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
from programs import unwatched

from ckptool.cli import launched, main

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def start(ranks, *words, cwd):
    command = [*TORCHRUN, "--nproc-per-node", str(ranks), "-m", "ckptool", *map(str, words)]
    environment = {**unwatched(), "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, cwd=cwd, env=environment, text=True, **pipes)


def finished(process):
    out, err = process.communicate(timeout=100)
    return process.returncode, out, err


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("launched") / "in.pth"
    torch.save({f"module.{n}.weight": torch.randn(1 << 20) for n in range(40)}, path)
    return path


def run(*words):
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, words)))
    return ended.value.code


def test_one_document_comes_from_rank_0_and_the_bytes_are_those_of_one_process(source, tmp_path):
    code, out, err = finished(start(3, "convert", source, "out.safetensors", "--unwrap", "--json", cwd=tmp_path))
    assert code == 0, err
    receipt = json.loads(out)
    assert receipt["format"] == "safetensors"
    assert any(note.startswith("3 ranks: ") for note in receipt["notes"])
    assert run("convert", source, tmp_path / "alone.safetensors", "--unwrap", "-q") == 0
    assert (tmp_path / "out.safetensors").read_bytes() == (tmp_path / "alone.safetensors").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["alone.safetensors", "out.safetensors"]


def test_a_rank_that_is_killed_leaves_no_target_and_the_same_command_goes_on(source, tmp_path):
    words = ["convert", source, "out.pth", "--cast", "bf16", "-q"]
    process = start(2, *words, cwd=tmp_path)
    try:
        while not any(name.endswith(".ckptool-tmp") for name in os.listdir(tmp_path)):
            assert process.poll() is None
            time.sleep(0.002)
        children = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=True)
        os.kill(max(map(int, children.stdout.split())), signal.SIGKILL)
        code, _, _ = finished(process)
    finally:
        process.kill()
    assert code != 0
    assert not (tmp_path / "out.pth").exists()
    code, _, err = finished(start(2, *words, cwd=tmp_path))
    assert code == 0, err
    assert run("convert", source, tmp_path / "alone.pth", "--cast", "bf16", "-q") == 0
    assert (tmp_path / "out.pth").read_bytes() == (tmp_path / "alone.pth").read_bytes()
    assert sorted(os.listdir(tmp_path)) == ["alone.pth", "out.pth"]


def test_what_goes_wrong_is_said_once(source, tmp_path):
    code, out, err = finished(start(2, "verify", "nothing.pth", source, cwd=tmp_path))
    assert code != 0
    assert err.count("Error: nothing.pth: no such file or directory.") == 1
    assert f"{source}: sound" in out  # the other file was looked at, by all


def test_a_command_that_one_process_does_is_done_by_rank_0(source, tmp_path):
    code, out, _ = finished(start(2, "inspect", source, cwd=tmp_path))
    assert code == 0
    assert out.count("torch-zip") == 1


def test_a_process_that_waits_for_ranks_in_vain_is_told_how_to_work_alone(source, tmp_path, monkeypatch, capsys):
    """A script on rank 0 that calls the command line: the other ranks never come."""
    from ckptool.ranks import group

    monkeypatch.setattr(group, "MEETING", 1.0)
    environment = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    for name, value in {**environment, "TORCHELASTIC_RUN_ID": "x"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("MASTER_PORT", str(free_port()))
    assert run("convert", source, tmp_path / "out.safetensors") == 2
    said = capsys.readouterr().err
    assert "rank 0 of 2 does not find the others at 127.0.0.1:" in said
    assert "env -u TORCHELASTIC_RUN_ID ckptool convert" in said
    assert os.listdir(tmp_path) == []
    assert launched.ranks() is None


def free_port():
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
