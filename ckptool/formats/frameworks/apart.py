"""Parsers in C, run apart: a child process with limits on its time and memory reads a file and answers in JSON.

Libraries such as HDF5 parse in C what anybody may have written. Where that crashes, hangs or takes all memory, it is
the child that does, and the answer is one line. What the child answers is data from the file, and is checked like it.
"""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
from typing import Any

from ...disk.documents import read_json
from ...disk.door import unnamed_file
from ...disk.files import File
from ...errors import CannotCarry, Malformed, not_installed, printable

#: Seconds that a child may take, its memory in bytes, and the bytes that it may answer.
SECONDS, MEMORY, ANSWER = 60, 3 << 30, 256 << 20

_START = (
    "import os, sys\n"
    "sys.path[:] = sys.argv[1].split(os.pathsep)\n"
    "from importlib import import_module\n"
    "import_module(sys.argv[2]).answer(*sys.argv[3:])\n"
)


def asked(module: str, package: str, what: str, file: File, offset: int = 0, size: int | None = None) -> Any:
    """What `answer` of a module, run in a child process, prints about a part of FILE.

    Args:
        module: full name of the module.
        package: the package that it needs, as pip calls it.
        what: what the child reads, for messages: "an HDF5 file".
        file: the file.
        offset, size: the part.

    Raises:
        NotInstalled: the package is not installed.
        Malformed: the library refuses the file, crashes on it, or takes too long.
    """
    if file.fd < 0:
        raise CannotCarry(
            f"is {what} on a server; such files are read here only",
            where=file.path,
            hint="fetch it first, and name the file here",
        )
    inherited = os.name == "posix"
    place = str(file.fd) if inherited else str(file.path)
    size = file.size - offset if size is None else size
    command = [sys.executable, "-I", "-c", _START, os.pathsep.join(sys.path), module, place, str(offset), str(size)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HDF5_")}
    environment.update(
        OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", HDF5_USE_FILE_LOCKING="FALSE", HDF5_PLUGIN_PATH=""
    )
    with unnamed_file() as out, _Ended() as ended:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.DEVNULL,
            env=environment,
            pass_fds=(file.fd, ended.told) if inherited else (),
        )
        try:
            ended.wait(SECONDS + 10)
            status = child.wait(timeout=1 if inherited else SECONDS + 10)
        except subprocess.TimeoutExpired:
            raise _failed(file, what, f"took more than {SECONDS} seconds") from None
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
        out.seek(0)
        raw = out.read(ANSWER + 1)
    if status:
        number = -status
        if number == getattr(signal, "SIGXCPU", None):
            raise _failed(file, what, f"took more than {SECONDS} seconds")
        why = f"was ended by {signal.Signals(number).name}" if number > 0 else f"failed with status {status}"
        raise _failed(file, what, why)
    answer = read_json(raw, file.path, "the answer of the reader")
    if not isinstance(answer, dict):
        raise _failed(file, what, "gave no answer")
    if "missing" in answer:
        raise not_installed(f"reading {what}", package, where=file.path)
    if "refused" in answer:
        raise Malformed(f"cannot be read as {what}", where=file.path, evidence=[printable(str(answer["refused"]), 200)])
    return answer


class _Ended:
    """A pipe whose other end a child holds until it ends. Who waits for a child with a limit sleeps in between, up to
    50 ms a time, which is as long as a small file takes.
    """

    def __enter__(self) -> _Ended:
        self._seen, self.told = os.pipe() if os.name == "posix" else (-1, -1)
        return self

    def wait(self, seconds: float) -> None:
        """Wait until the child has ended, but no longer than SECONDS."""
        if self.told < 0:
            return
        self._close_ours()
        with selectors.DefaultSelector() as selector:
            selector.register(self._seen, selectors.EVENT_READ)
            selector.select(seconds)

    def _close_ours(self) -> None:
        os.close(self.told)
        self.told = -1

    def __exit__(self, *_: object) -> None:
        for end in (self._seen, self.told):
            if end >= 0:
                os.close(end)


def _failed(file: File, what: str, why: str) -> Malformed:
    return Malformed(
        f"cannot be read as {what}: the process that reads it {why}",
        where=file.path,
        evidence=[f"it had {SECONDS} seconds and {MEMORY:,} bytes of memory, apart from this process"],
    )


def limit() -> None:
    """Called by the child: limit its time, its memory and what it writes."""
    try:
        import resource
    except ImportError:  # Windows
        return
    for what, most in (
        (resource.RLIMIT_CPU, SECONDS),
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_FSIZE, ANSWER),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(what)[1]
        resource.setrlimit(what, (most if hard < 0 else min(most, hard), hard))
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
