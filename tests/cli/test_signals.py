"""A signal ends ckptool with one line and its exit code, at whatever moment it arrives."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from programs import unwatched
from samples import Files

from ckptool.cli import main

pytestmark = [
    pytest.mark.skipif(not hasattr(signal, "SIGHUP"), reason="signals of POSIX"),
    pytest.mark.same_without_torch,
]

SIGNALS = {"SIGINT": (130, "interrupted"), "SIGTERM": (143, "terminated"), "SIGHUP": (143, "terminated")}
COMMANDS = ["inspect dp.pth", "strip-prefix dp.pth out.pth"]

#: Runs ckptool, and sends a signal at the n-th event: a module that is looked for, or a function that is called.
SENDER = """
import os, runpy, sys
number, kind, left = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
sys.argv = ["ckptool", *sys.argv[4:]]
begun = False

def event():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), number)

class Finder:
    def find_spec(self, name, path=None, target=None):
        global begun
        if name == "ckptool.cli":
            begun = True
            if kind == "call":
                sys.setprofile(lambda frame, what, _: event() if what == "call" else None)
        if begun and kind == "import":
            event()

sys.meta_path.insert(0, Finder())
runpy.run_module("ckptool", run_name="__main__", alter_sys=True)
"""


def sent(folder: Path, name: str, kind: str, moment: int, command: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-c", SENDER, str(int(getattr(signal, name))), kind, str(moment), *command.split()]
    return subprocess.run(words, cwd=folder, env=unwatched(), capture_output=True, text=True, timeout=60, check=False)


def check(done: subprocess.CompletedProcess[str], name: str, folder: Path, before: set[str]) -> None:
    """It ended as it should: with its work done, or with nothing changed and one line that says so."""
    code, word = SIGNALS[name]
    made = set(os.listdir(folder)) - before
    assert made <= {"out.pth"}, done.stderr
    if done.returncode == 0:
        assert "Error" not in done.stderr
        assert "Traceback" not in done.stderr
        return
    assert done.returncode == code, done.stderr
    said = done.stderr.splitlines()
    assert said[-1] == f"Error: {word}; " + ("before that, out.pth was written" if made else "nothing was changed")
    assert len(said) == 1 or said[0].startswith("wrote out.pth"), done.stderr


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("moment", [1, 4, 17, 70, 120])
def test_while_modules_are_imported(files: Files, tmp_path: Path, name: str, command: str, moment: int) -> None:
    before = set(os.listdir(tmp_path))
    done = sent(tmp_path, name, "import", moment, command)
    check(done, name, tmp_path, before)
    if moment < 50:
        assert done.returncode == SIGNALS[name][0]
        assert not (tmp_path / "out.pth").exists()


@pytest.mark.parametrize("command", COMMANDS)
def test_while_it_works_and_ends(files: Files, tmp_path: Path, command: str) -> None:
    before = set(os.listdir(tmp_path))
    counting = SENDER.replace(
        "runpy.run", "end, os._exit = os._exit, lambda code: (print(-left, flush=True), end(code))\nrunpy.run"
    )
    words = [sys.executable, "-c", counting, "2", "call", "0", *command.split()]
    done = subprocess.run(words, cwd=tmp_path, env=unwatched(), capture_output=True, text=True, timeout=60, check=True)
    calls = int(done.stdout.splitlines()[-1])
    moments = [*(calls * part // 100 for part in (75, 95, 98)), calls - 40, calls - 12, calls - 3]
    for number, moment in enumerate(moments):
        (tmp_path / "out.pth").unlink(missing_ok=True)
        name = list(SIGNALS)[number % 3]
        check(sent(tmp_path, name, "call", moment, command), name, tmp_path, before)


@pytest.mark.parametrize("name", SIGNALS)
@pytest.mark.parametrize("module", [True, False], ids=["python -m ckptool", "ckptool"])
def test_in_the_first_milliseconds(files: Files, tmp_path: Path, name: str, module: bool) -> None:
    """Before Python has come to ckptool, the signal is Python's and the system's own."""
    script = tmp_path / "ckptool"
    script.write_text("import re\nimport sys\nfrom ckptool.__main__ import main\nsys.exit(main())\n")  # as pip makes it
    start = ["-m", "ckptool"] if module else [str(script)]
    before = set(os.listdir(tmp_path))
    for delay in (0, 0.02, 0.05, 0.1, 0.2, 0.3):
        (tmp_path / "out.pth").unlink(missing_ok=True)
        with subprocess.Popen(
            [sys.executable, *start, "strip-prefix", "dp.pth", "out.pth"],
            cwd=tmp_path, env=unwatched(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as child:  # fmt: skip
            time.sleep(delay)
            child.send_signal(getattr(signal, name))
            out, err = child.communicate(timeout=60)
        done = subprocess.CompletedProcess([], child.returncode, out, err)
        if child.returncode in (0, SIGNALS[name][0]) and "Traceback" not in err:
            check(done, name, tmp_path, before)
        else:
            assert not re.search(r"ckptool/(?!__init__|starting)", err), err
            assert child.returncode == -getattr(signal, name) or "Traceback" in err


@pytest.mark.parametrize("name", SIGNALS)
def test_one_that_is_ignored_stays_ignored(files: Files, tmp_path: Path, name: str) -> None:
    """By nohup, or by a shell that starts it in the background."""
    program = f"import signal, os; signal.signal(signal.{name}, signal.SIG_IGN)" + SENDER.replace(
        "import os, runpy, sys", "\nimport runpy, sys"
    )
    for moment in (1, 30, 100):
        words = [sys.executable, "-c", program, str(int(getattr(signal, name))), "import", str(moment)]
        words += ["inspect", "dp.pth"]
        done = subprocess.run(words, cwd=tmp_path, env=unwatched(), capture_output=True, text=True, check=False)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_second_signal_adds_nothing(files: Files, tmp_path: Path) -> None:
    program = SENDER.replace("left == 0", "left <= 0")
    words = [sys.executable, "-c", program, str(int(signal.SIGTERM)), "call", "2000", "inspect", "dp.pth"]
    done = subprocess.run(words, cwd=tmp_path, env=unwatched(), capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (143, "Error: terminated; nothing was changed\n")


def test_what_was_written_when_the_signal_came_is_said_to_be_whole(files: Files, tmp_path: Path) -> None:
    """Between the moment at which OUT gets its name and the end of the program."""
    program = (
        "import os, signal, ckptool.cli.rewrite as rewrite\n"
        "from ckptool.cli import main\n"
        "rewrite.print_receipt = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)\n"
        "main(['strip-prefix', 'dp.pth', 'out.pth'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (143, "Error: terminated; before that, out.pth was written\n")
    assert (tmp_path / "out.pth").exists()


def test_a_program_that_calls_the_command_line_keeps_its_own_answers(files: Files, tmp_path: Path) -> None:
    before = {name: signal.getsignal(getattr(signal, name)) for name in SIGNALS}
    with pytest.raises(SystemExit):
        main(["inspect", str(tmp_path / "dp.pth")])
    assert {name: signal.getsignal(getattr(signal, name)) for name in SIGNALS} == before


def test_a_thread_of_another_program_may_call_the_command_line(files: Files, tmp_path: Path) -> None:
    left: list[object] = []

    def work() -> None:
        try:
            main(["inspect", str(tmp_path / "dp.pth")])
        except SystemExit as error:
            left.append(error.code)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert left == [0]
