"""Every call of the system that writes fails once, with each reason that a disk can give."""

import errno
import os

import pytest
from faulty import COMMANDS, Bench, interrupted

from ckptool.disk import writing

pytestmark = pytest.mark.same_without_torch

#: What is called while something is written. Reading goes through os.pread and os.preadv.
CALLS = ["open", "mkdir", "write", "pwrite", "copy_file_range", "fsync", "link", "rename", "replace", "unlink", "rmdir"]
WITHOUT_TORCH = {name: command for name, command in COMMANDS.items() if name != "transfer"}


class Failing:
    """Lets the N-th call that writes fail with an error; counts the calls."""

    def __init__(self, monkeypatch, work):
        self.count, self.at, self.error, self.work = 0, -1, 0, os.fspath(work)
        for name in CALLS:
            if hasattr(os, name):
                monkeypatch.setattr(os, name, self.wrapped(name, getattr(os, name)))

    def wrapped(self, name, real):
        def call(*args, **options):
            reads = name == "open" and not args[1] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            streams = name == "write" and args[0] in (1, 2)
            if reads or streams or not os.getcwd().startswith(self.work):
                return real(*args, **options)
            self.count += 1
            if self.count == self.at:
                raise OSError(self.error, os.strerror(self.error))
            return real(*args, **options)

        return call


@pytest.mark.parametrize("old", [False, True], ids=["new", "old"])
@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_whatever_call_fails_the_target_is_whole_or_untouched(tmp_path, monkeypatch, capfd, name, old):
    if COMMANDS[name].in_place and not old:
        pytest.skip("there is always an old one")
    every_call_fails(Bench(tmp_path, COMMANDS[name], old=old), monkeypatch, capfd)


@pytest.mark.parametrize("name", ["safetensors", "legacy", "shards"])
def test_the_same_where_a_thread_writes_full_buffers(tmp_path, monkeypatch, capfd, name):
    threads, begun = [], writing._FullBuffers._run
    monkeypatch.setattr(writing._FullBuffers, "_run", lambda self, fd: threads.append(fd) or begun(self, fd))
    for limit, few in {"_MUCH": 0, "_STEP": 2048, "_BUFFER": 4096}.items():
        monkeypatch.setattr(writing, limit, few)
    every_call_fails(Bench(tmp_path, COMMANDS[name], old=True), monkeypatch, capfd)
    assert threads


def every_call_fails(bench, monkeypatch, capfd):
    with monkeypatch.context() as patch:
        failing = Failing(patch, bench.work)
        bench.begin()
        failing.count = 0
        assert bench.run() == 0
        calls = failing.count
        assert calls > 8
        for number, error in enumerate([errno.EIO, errno.ENOSPC, errno.EDQUOT]):
            for at in range(1 + number % 2, calls + 1, 1 if number == 0 else 2):
                bench.begin()
                failing.count, failing.at, failing.error = 0, at, error
                status = bench.run()
                failing.at = -1
                told = capfd.readouterr().err
                assert "unexpectedly" not in told, told
                assert status in (0, 2), (at, told)
                assert not bench.judge(status, killed=True), (at, error, told)


@pytest.mark.parametrize("name", WITHOUT_TORCH)
def test_a_file_that_may_not_grow_leaves_the_target_untouched(tmp_path, name):
    resource = pytest.importorskip("resource")
    import signal

    command = COMMANDS[name]
    bench = Bench(tmp_path, command, old=True, kilobytes=64)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        for most in (0, 1, 4096, 100_000):
            bench.begin()
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, before[1]))
            status, _ = interrupted(bench, 0, 0)
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            assert status == 2
            assert not bench.judge(status, killed=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
