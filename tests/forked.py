"""Modules run as programs in forks of one process that has imported torch: `python forked.py`.

`import torch` takes two seconds, what its optimizers import takes two more, and most commands of the documentation take
a tenth of one. Here each has a process, streams and an exit status as if a shell had started it, and what it would
import is there already; so it is in the ranks of a run of training, which are forked, too, where there is no GPU. Where
the claim is about how a program or its ranks start, they have to be started.
"""

import contextlib
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import runpy
import signal
import subprocess
import sys
from pathlib import Path


class Forks:
    """Starts the process that is forked, and asks it to fork."""

    def __init__(self):
        self._server = None

    def run(self, module, words, folder, said):
        """Run `python -m MODULE WORDS` in FOLDER, with what it prints in the new file SAID. Returns its exit status."""
        if self._server is None:
            self._server = subprocess.Popen(
                [sys.executable, __file__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
        asked = {"path": sys.path, "module": module, "words": list(map(str, words)), "environment": {**os.environ}}
        try:
            print(json.dumps(asked | {"folder": str(folder), "said": str(said)}), file=self._server.stdin, flush=True)
            return int(self._server.stdout.readline())
        except BaseException:  # such as that the time of the test is over
            os.killpg(self._server.pid, signal.SIGKILL)
            self.end()
            raise

    def left(self):
        """The processes that forks have started and left behind, as {number: command line}."""
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # it has just ended
                number, command = int(folder.name), (folder / "cmdline").read_bytes()
                # What has ended has no command; Python's resource tracker ends when it notices that nobody is left.
                of_forks = os.getsid(number) == self._server.pid != number
                if of_forks and command and b"resource_tracker" not in command:
                    found[number] = command.replace(b"\0", b" ").decode()
        return found

    def end(self):
        server, self._server = self._server, None
        if server is not None:
            server.stdin.close()
            server.wait(60)
            server.stdout.close()


def serve():
    """Fork for each line of standard input, and answer with a line that is the exit status."""
    import ckptool.cli

    for module in pkgutil.iter_modules(ckptool.cli.__path__, "ckptool.cli."):
        importlib.import_module(module.name)
    if importlib.util.find_spec("torch"):
        for name in ("torch._dynamo", "torch.distributed.launcher.api", "ckptool.train.launch"):
            importlib.import_module(name)
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if not child:
            _become(**json.loads(line))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


def _become(path, module, words, folder, said, environment):
    """Be the program, with files for streams that are buffered as those of a pipe are; never return."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    new = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND)
    for number, opened in enumerate((os.open(os.devnull, os.O_RDONLY), new, new)):
        os.dup2(opened, number)
    sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.path[:], sys.argv = path, [module, *words]
    status = 1
    try:
        fork_ranks()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as left:
        status = left.code if isinstance(left.code, int) else 0 if left.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError):
            sys.stdout.flush()
        os._exit(status)


def fork_ranks():
    """Let torch's launcher fork the ranks of a run of training. CUDA does not survive that."""
    torch = sys.modules.get("torch")
    if torch is None or torch.cuda.is_available():
        return
    from torch.distributed.launcher import api

    config = api.LaunchConfig

    def forking(**options):
        torch._dynamo.reset()  # a rank that was started would know nothing of what was compiled before
        if _can_train_in_forks(torch):
            options["start_method"] = "fork"
        return config(**options)

    api.LaunchConfig = forking


def _can_train_in_forks(torch):
    """Whether a fork of this process may ask for gradients: a torch with CUDA has threads from the first time on."""
    child = os.fork()
    if not child:
        try:
            torch.ones((), requires_grad=True).backward()
        except RuntimeError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1] == 0


if __name__ == "__main__":
    serve()
