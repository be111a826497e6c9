"""Runs of the pipeline, each made once and shared, since processes take seconds to start."""

from __future__ import annotations

import os
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
from runs import HOW, SAME, Keeper, free_port, run_in_forks


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Sums in one order; and nets as small as these are slower on several threads."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def trained(tmp_path_factory, forks):
    """A strategy -> the folder of its run on SAME, with everything that it saved at the end and after two epochs."""
    done = {}

    def trained(strategy):
        if strategy not in done:
            out = tmp_path_factory.mktemp(strategy)
            options = dict(HOW[strategy])
            if options.get("rendezvous") == "tcp://":
                options["rendezvous"] = f"tcp://127.0.0.1:{free_port()}"
            elif options.get("rendezvous") == "file://":
                options["rendezvous"] = f"file://{out.parent}/meeting-{uuid.uuid4().hex}"
            config = replace(SAME, strategy=strategy, out=out, save=("wrapped", "unwrapped", "full", "dcp"), **options)
            run_in_forks(forks, config, Keeper(out))
            done[strategy] = out
        return done[strategy]

    return trained


@pytest.fixture
def nothing_left(monkeypatch):
    """Processes that are started in a test have a mark in their environment; call this to see that none is left."""
    if not Path("/proc/self/environ").exists():
        pytest.skip("needs /proc to see processes")
    mark = f"CKPTOOL_TEST_MARK={uuid.uuid4().hex}"
    monkeypatch.setenv(*mark.split("="))

    def alive():
        found = {}
        for folder in Path("/proc").iterdir():
            try:
                if folder.name.isdecimal() and int(folder.name) != os.getpid():
                    command = (folder / "cmdline").read_bytes()
                    if mark.encode() in (folder / "environ").read_bytes() and b"resource_tracker" not in command:
                        found[int(folder.name)] = command.replace(b"\0", b" ").decode()
            except OSError:  # it has just ended
                continue
        return found

    def nothing_left(within=0.0):
        end = time.monotonic() + within
        while alive() and time.monotonic() < end:
            time.sleep(0.05)
        assert alive() == {}

    return nothing_left
