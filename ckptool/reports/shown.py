"""The reports of the library: data that prints as the text of the command line, and shows itself in a notebook.

Below these classes a report is data, and the modules that make text of it import it; so the two are joined here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from html import escape
from typing import Any, ParamSpec, TypeVar

from ..errors import printable
from .comparing import diff as comparing
from .comparing.diff_text import diff_text
from .diagnosis import doctor as diagnosing
from .diagnosis import finding
from .diagnosis.doctor_text import doctor_text
from .inspect import Inspection as _Inspection
from .inspect import inspect as _inspect
from .inspect_text import inspect_text
from .scanning import scan as scanning
from .scanning.scan_text import scan_text
from .verify import Verification as _Verification
from .verify import verify as _verify
from .verify_text import verify_text

_Options = ParamSpec("_Options")
_Shown = TypeVar("_Shown")


class _Printed:
    """What all reports have in common: `print(report)` is what the command prints, a repr is short."""

    __slots__ = ()

    def _text(self) -> str:
        raise NotImplementedError

    def __str__(self) -> str:
        return self._text()

    def __repr__(self) -> str:
        first = self._text().split("\n", 1)[0]
        return f"<{type(self).__name__} {printable(first, 160)}>"

    def _repr_html_(self) -> str:
        return f"<pre>{escape(self._text())}</pre>"


class Inspection(_Printed, _Inspection):
    """What is in one file."""

    __slots__ = ()
    __doc__ = _Inspection.__doc__

    def _text(self) -> str:
        return inspect_text(self)


class Diff(_Printed, comparing.Diff):
    """How two files differ."""

    __slots__ = ()
    __doc__ = comparing.Diff.__doc__

    def _text(self) -> str:
        return diff_text(self)


class Verification(_Printed, _Verification):
    """Whether a file is whole."""

    __slots__ = ()
    __doc__ = _Verification.__doc__

    def _text(self) -> str:
        return verify_text(self)


class Scan(_Printed, scanning.Scan):
    """What unpickling a file would import and call."""

    __slots__ = ()
    __doc__ = scanning.Scan.__doc__

    def _text(self) -> str:
        return scan_text(self)


class Diagnosis(_Printed, finding.Diagnosis):
    """What a file is, what is wrong with it, and what repairs it."""

    __slots__ = ()
    __doc__ = finding.Diagnosis.__doc__

    def _text(self) -> str:
        return doctor_text(self)


def _giving(kind: type[_Shown], make: Callable[_Options, Any]) -> Callable[_Options, _Shown]:
    """MAKE with its report as KIND, which adds nothing but its looks."""

    @wraps(make)
    def made(*args: _Options.args, **options: _Options.kwargs) -> _Shown:
        report = make(*args, **options)
        return kind(**{one.name: getattr(report, one.name) for one in fields(report) if one.init})

    return made


inspect = _giving(Inspection, _inspect)
diff = _giving(Diff, comparing.diff)
verify = _giving(Verification, _verify)
scan = _giving(Scan, scanning.scan)
doctor = _giving(Diagnosis, diagnosing.doctor)
