"""Parsers in C, run apart: a child process with limits on its time and memory reads a file and answers in JSON.

Libraries such as HDF5 parse in C what anybody may have written. Where that crashes, hangs or takes all memory, it is
the child that does, and the answer is one line. What the child answers is data from the file, and is checked like it.

Importing the library takes a hundred times as long as reading a small file. Where there is fork, one child imports it,
and forks a process for each file. It ends when its parent does, or when nobody has asked for a while.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any, NoReturn

from ...disk.documents import read_json
from ...disk.door import unnamed_file
from ...disk.files import File
from ...errors import CannotCarry, Malformed, not_installed, printable

#: Seconds that a child may take, its memory in bytes, and the bytes that it may answer.
SECONDS, MEMORY, ANSWER = 60, 3 << 30, 256 << 20
#: Seconds after which a child that nobody asks ends.
_IDLE = 30

_START = (
    "import os, sys\n"
    "sys.path[:] = sys.argv[1].split(os.pathsep)\n"
    "from importlib import import_module\n"
    "getattr(import_module(sys.argv[2]), sys.argv[3])(*sys.argv[4:])\n"
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
    size = file.size - offset if size is None else size
    with unnamed_file() as out:
        if hasattr(os, "fork"):
            status = _forked(module, package, file, out.fileno(), f"{offset} {size}")
        else:
            words = [str(file.path), str(offset), str(size)]
            with _started([module, "answer", *words], stdout=out) as child:
                try:
                    status = child.wait(timeout=SECONDS + 10)
                except subprocess.TimeoutExpired:
                    status = None
                finally:
                    child.kill()
        if status is None:
            raise _failed(file, what, f"took more than {SECONDS} seconds")
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


def _started(words: list[str], **options: Any) -> subprocess.Popen[bytes]:
    """A child that calls a function of a module, which WORDS name, with the other words."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HDF5_")}
    environment.update(
        OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1", HDF5_USE_FILE_LOCKING="FALSE", HDF5_PLUGIN_PATH=""
    )
    command = [sys.executable, "-I", "-c", _START, os.pathsep.join(sys.path), *words]
    silent = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen(command, env=environment, **{**silent, **options})


# -- where there is fork: a child that has imported the library, and a process of its own for each file


def _forked(module: str, package: str, file: File, out: int, part: str) -> int | None:
    """The status with which a process ended that answered about a PART of FILE into the descriptor OUT; None if it took
    too long.
    """
    with _LOCK:
        for _ in range(2):
            server = _SERVERS.get(module)
            if server is None or server.known != (os.getpid(), sys.path):
                if server is not None:
                    server.end()
                server = _SERVERS[module] = _Server(module, package)
            try:
                return server.ask(part, file.fd, out)
            except TimeoutError:
                server.end()
                return None
            except ConnectionError:
                if (status := server.end()) not in (0, -signal.SIGKILL):  # as it imported the library
                    return status
            except BaseException:
                server.end()
                raise
            finally:
                if server.ended:
                    del _SERVERS[module]
    return status


class _Server:
    """The child that has imported the library.

    Attributes:
        known: the process that started it, and where that found modules.
        ended: it was ended.
    """

    def __init__(self, module: str, package: str) -> None:
        self.known = os.getpid(), list(sys.path)
        self.ended = False
        self._link, its = socket.socketpair()
        with its:
            self._child = _started(
                [__name__, "serve", str(its.fileno()), module, package],
                pass_fds=(its.fileno(),),
                start_new_session=True,  # so that it ends together with the process that it has forked
            )

    def ask(self, part: str, *descriptors: int) -> int:
        """The status of the process that answers about a part of a file.

        Raises:
            TimeoutError: it takes too long.
            ConnectionError: the child has ended.
        """
        self._link.settimeout(SECONDS + 10)
        socket.send_fds(self._link, [part.encode()], descriptors)
        said = self._link.recv(64)
        if not said:
            raise ConnectionResetError
        return os.waitstatus_to_exitcode(int(said))

    def end(self) -> int:
        """End the child, and what it has forked. Returns the status with which it ended, or had ended."""
        self._link.close()
        if self.known[0] != os.getpid():  # it is that of a process from which this one was forked
            self._child.returncode = 0
        elif not self.ended:  # also if the child itself has ended, whose number is its own until it is waited for
            with contextlib.suppress(OSError):
                os.killpg(self._child.pid, signal.SIGKILL)
        self.ended = True
        return self._child.wait()


@atexit.register
def _end_all() -> None:
    for server in _SERVERS.values():
        server.end()


_SERVERS: dict[str, _Server] = {}
_LOCK = threading.Lock()


def _after_fork() -> None:
    """Begin anew in a forked process: another thread may have held the lock, and the child answers its parent alone."""
    global _LOCK
    _LOCK = threading.Lock()
    for server in _SERVERS.values():
        server.end()
    _SERVERS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def serve(link: str, module: str, package: str) -> None:
    """Fork a process for each file that is asked about; called by the child. A parser that one file led astray is not
    the one that reads the next.
    """
    with contextlib.suppress(ImportError):
        import_module(package)
    answer = import_module(module).answer
    gc.disable()  # a process that reads one file ends before that pays, and would copy what it shares with this one
    with socket.socket(fileno=int(link)) as asked:
        while True:
            asked.settimeout(_IDLE)  # not `select`, which takes no descriptor above 1,023
            try:
                part, descriptors, _, _ = socket.recv_fds(asked, 256, 2)
            except TimeoutError:
                return
            if not part:
                return
            asked.settimeout(None)
            pid = os.fork()
            if not pid:
                asked.close()
                _answer_and_end(answer, descriptors[0], descriptors[1], part.decode().split())
            for one in descriptors:
                os.close(one)
            asked.sendall(str(os.waitpid(pid, 0)[1]).encode())


def _answer_and_end(answer: Callable[..., None], file: int, out: int, part: Iterable[str]) -> NoReturn:
    status = 1
    try:
        signal.alarm(SECONDS + 10)  # also if nobody is left to end it
        os.dup2(out, 1)
        answer(str(file), *part)
        sys.stdout.flush()
        status = 0
    finally:
        os._exit(status)


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
