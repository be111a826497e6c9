"""What unpickling a file would import and call, as a value. Nothing is imported or called to find out.

The verdict follows from an allow-list of exact names (`ckptool.inert.allowed`): whatever is not on it counts as able
to run code. How the rest is grouped is an aid for the eye and decides nothing.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any, Literal

from ...disk.files import File, StrPath
from ...disk.journals import Journaled, as_it_was
from ...errors import printable
from ...inert.allowed import COMPUTED, HARMLESS, PLAIN, called_name
from ...tree import ByteString, Dict, Global, List, Object, Set
from .pickles import LOADS, Contents, find_pickles
from .programs import PROGRAMS

Group = Literal["code execution", "custom classes", "plain data", "tensors"]
#: From the worst to the most harmless.
GROUPS: tuple[Group, ...] = ("code execution", "custom classes", "plain data", "tensors")

#: Bytes of a file that is read whole: a scan looks at each byte some two times, in parts of a hundred.
_SMALL = 1 << 18
_MOST_EXAMPLES = 3
_MOST_PLACES = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """A class or function that the pickles of a file name.

    Attributes:
        group: "tensors", "plain data", "custom classes" or "code execution".
        name: its dotted name, as Python 3 has it; or that what is called is itself computed; or what a program is.
        calls: how often it would be called.
        places: the pickles that name it, the first twenty of them.
        examples: the first calls, as text.
    """

    group: Group
    name: str
    calls: int
    places: list[str]
    examples: list[str]

    @property
    def program(self) -> bool:
        """Whether it is code beside the pickles, which none of them names."""
        return self.name in PROGRAMS

    @property
    def plain(self) -> bool:
        """Whether `torch.load(weights_only=True)` of torch 2.13 allows the name."""
        return self.name in PLAIN


@dataclass(frozen=True, slots=True)
class Scan:
    """What unpickling a file would do.

    Attributes:
        path: the file.
        bytes: its size.
        kind: what it is ("torch-zip", "pickle", "safetensors").
        pickles: the places of all pickles in it.
        findings: what they name, the worst first.
        weights_only: no name in it is beyond what `torch.load(weights_only=True)` of torch 2.13 allows.
        problems: why it cannot be said that this is all; empty if it is.
        notes: what else is worth knowing.
        checkpoint: it is of a kind that could hold a pickle or a checkpoint; a text or a picture is not.
    """

    path: str
    bytes: int
    kind: str
    pickles: list[str]
    findings: list[Finding]
    weights_only: bool
    problems: list[str]
    notes: list[str]
    checkpoint: bool

    @property
    def unsafe(self) -> list[Finding]:
        """The findings beyond tensors and plain data."""
        return [one for one in self.findings if one.group in GROUPS[:2]]

    @property
    def verdict(self) -> Literal["safe", "unsafe", "unknown"]:
        """Safe: tensors and plain data only. Unsafe: more than that. Unknown: what was seen is safe, but there is more.

        What was found counts, also where the rest could not be read.
        """
        if self.unsafe:
            return "unsafe"
        return "unknown" if self.problems else "safe"

    def as_json(self) -> dict[str, Any]:
        """The document that `ckptool scan --json` prints for one file."""
        return {"verdict": self.verdict, **asdict(self)}


def _opened(path: StrPath) -> File:
    if "://" not in str(path):
        return as_it_was(File(path))
    from ...disk.urls import open_file  # here, since starting is most of what scanning a file takes

    return open_file(path)


def scan(path: StrPath, *, opened: bool = False) -> Scan:
    """Find every pickle in a file and say what unpickling it would import and call, without doing any of it.

    Archives within archives, several pickles in a row, pickles behind the end of another and under names that hide
    them are found by what they hold.

    Args:
        path: the file.
        opened: it was opened as a checkpoint, so that its structure need not be checked again.

    Raises:
        Unreadable: the file cannot be opened. Whatever else is wrong with it is in `problems`.
    """
    file = _opened(path)
    try:
        file.hold(_SMALL)
        found = find_pickles(file, opened=opened)
    finally:
        file.close()
    findings = _findings(found)
    if isinstance(file, Journaled):  # a loader sees what the patch has changed by now
        found.problems.extend(file.notes)
    else:
        found.notes.extend(file.notes)
    return Scan(
        str(path),
        file.size,
        found.kind,
        [pickle.place for pickle in found.pickles],
        findings,
        all(one.plain for one in findings),
        found.problems,
        found.notes,
        found.checkpoint or bool(found.pickles),
    )


def _findings(found: Contents) -> list[Finding]:
    calls: Counter[str] = Counter()
    places: dict[str, list[str]] = {}
    examples: dict[str, list[str]] = {}

    def at(name: str, place: str) -> None:
        known = places.setdefault(name, [])
        if len(known) < _MOST_PLACES and (not known or known[-1] != place):
            known.append(place)

    closed = {str(one) for pickle in found.pickles if not pickle.opened for one in pickle.named}
    for what, place in found.programs:
        at(what, place)
    for pickle in found.pickles:
        for one in pickle.named:
            at(str(one), pickle.place)
        for made in pickle.made:
            if made.callee is None:
                continue
            name = called_name(made)
            calls[name] += 1
            if name not in PLAIN:
                at(name, pickle.place)
                shown = examples.setdefault(name, [])
                if len(shown) < _MOST_EXAMPLES:
                    shown.append(call_text(made))

    def group(name: str) -> Group:
        if name in PROGRAMS:
            return "code execution"
        return "tensors" if name == LOADS and name not in closed else group_of(name, calls[name])

    findings = [
        Finding(group(name), name, calls[name], where, examples.get(name, [])) for name, where in places.items()
    ]
    return sorted(findings, key=lambda one: (GROUPS.index(one.group), -one.calls, one.name))


def group_of(name: str, calls: int) -> Group:
    """The group of a name. Between the two unsafe ones, its look decides.

    No module of Python itself that is not on the list has a place in a checkpoint; and a function that is called, other
    than a class, does what its author and the file's author want.
    """
    if name in PLAIN:
        return "tensors" if name.startswith("torch.") else "plain data"
    if name in HARMLESS:
        return "plain data"
    module, _, last = name.rpartition(".")
    standard = module.partition(".")[0] in sys.stdlib_module_names or module == "__builtin__"
    function = calls and not re.match(r"_*[A-Z]", last)
    return "code execution" if name == COMPUTED or standard or function else "custom classes"


def call_text(made: Object, depth: int = 3) -> str:
    """A call as Python would spell it, cut short: `os.system('id')`."""
    callee = printable(str(made.callee), 80) if isinstance(made.callee, Global) else _value_text(made.callee, depth - 1)
    args = made.args if isinstance(made.args, tuple) else (made.args,)
    shown = [_value_text(arg, depth - 1) for arg in args[:4]]
    return printable(f"{callee}({', '.join(shown)}{', …' if len(args) > 4 else ''})", 160)


def _value_text(value: Any, depth: int) -> str:
    if isinstance(value, ByteString):
        value = str(value)
    if isinstance(value, str | bytes | bytearray):
        cut = value[:100]
        return printable(repr(cut), 100)
    if value is None or isinstance(value, bool | int | float):
        return repr(value)[:40]
    if isinstance(value, Global):
        return printable(str(value), 80)
    if depth <= 0:
        return "…"
    if isinstance(value, Object):
        return call_text(value, depth)
    if isinstance(value, tuple):
        inner = ", ".join(_value_text(item, depth - 1) for item in value[:4])
        return f"({inner}{', …' if len(value) > 4 else ',' if len(value) == 1 else ''})"
    if isinstance(value, List):
        inner = ", ".join(_value_text(item, depth - 1) for item in value.items[:4])
        return f"[{inner}{', …' if len(value.items) > 4 else ''}]"
    return "{…}" if isinstance(value, Dict | Set) else "…"
