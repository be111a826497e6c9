"""What the program does before it imports anything else: it leaves the current folder, and answers signals.

`python -m ckptool` puts the folder that it is started in before all others, so a `click.py` or `typing.py` that came
with a download would be run. The script `ckptool` has no such folder; neither has a program that imports the package,
whose business its path and its signals are.

`ckptool/__init__.py` calls `begin` before it imports anything else. Modules that Python has not loaded by then must not
be imported above it; `__future__` is one of them.
"""

import os
import sys

#: Signals that end the program. One that is ignored (by nohup, by a shell in the background) stays ignored.
ENDING = ("SIGINT", "SIGTERM", "SIGHUP")


def begin() -> None:
    """Begin as a program, if this is `python -m ckptool` or the script `ckptool`."""
    typed = os.path.basename(sys.argv[0]) if getattr(sys, "argv", None) else ""
    if typed.partition(".")[0] == "ckptool":
        prepare()
    if typed == "-m":  # as long as Python looks for the module; its name is
        named = sys.orig_argv[-len(sys.argv)].partition(".")[0]
        if named == "ckptool" or (named.startswith("-") and named.endswith("mckptool")):
            _leave_current_folder()
            prepare()


def _leave_current_folder() -> None:
    """Take the current folder from the front of `sys.path`, unless Python was told not to put it there."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return
    try:
        here = os.getcwd()
    except OSError:  # it was deleted, and Python left it out
        return
    if sys.path[:1] not in ([""], [here]):
        return
    del sys.path[0]
    home = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if home == here and home not in sys.path:
        sys.path.append(home)  # a source tree that is not installed: processes of `train` have to find it


def prepare() -> None:
    """See to the streams and signals of the program."""
    _open_streams()
    _answer_signals()


def _open_streams() -> None:
    """Open streams that are closed as /dev/null. The files that are opened next would have their numbers: what is said
    to nobody would be written into a checkpoint.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            if opened != number:
                os.dup2(opened, number)
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115


def _answer_signals() -> None:
    """End at once when a signal arrives, with one line. While modules are imported, there is nothing to take back."""
    import signal

    for name in ENDING:
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, end_at_once)


def end_at_once(number: int, _: object) -> None:
    """Say that a signal arrived, and end."""
    word, code = ("interrupted", 130) if number == 2 else ("terminated", 143)
    try:
        os.write(2, f"Error: {word}; nothing was changed\n".encode())
    finally:
        os._exit(code)
