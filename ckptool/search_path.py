"""`python -m ckptool` imports nothing from the folder that it is started in.

Python puts that folder before all others, so a `click.py` or `typing.py` that came with a download would be run. The
script `ckptool` has no such folder; neither has a program that imports the package, whose business its path is.

`ckptool/__init__.py` calls this before it imports anything else. Modules that no Python has loaded by then must not be
imported here; `__future__` is one of them.
"""

import os
import sys


def leave_current_folder() -> None:
    """Take the current folder from the front of `sys.path`, if this is `python -m ckptool`."""
    if sys.flags.isolated or getattr(sys.flags, "safe_path", False):
        return  # it is not there
    named = sys.orig_argv[-len(sys.argv)].partition(".")[0]  # while Python looks for it, argv[0] is "-m"
    if named != "ckptool" and not (named.startswith("-") and named.endswith("mckptool")):
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
