"""Everything that can go wrong, as one tree. The command line turns these into text; the library raises them.

    CheckpointError
      UnknownFormat   (ValueError)          not a checkpoint that can be read; says what it looks like
      Malformed       (ValueError)          a checkpoint that contradicts itself, or is cut short
      Unreadable      (OSError)             the file cannot be opened or read at all
        NoSuchFile    (FileNotFoundError)   ... because it is not there
      Unwritable      (OSError)             the target cannot be written; it is as it was
      OutputExists    (FileExistsError)     the target is there and overwriting was not asked for
      NotFound        (LookupError)         no state dict, or nothing at a path of the tree
      Ambiguous       (LookupError)         several state dicts, and nothing says which
      RuleError       (ValueError)          a rule (prefix, rename, pattern, location) that cannot be applied
        NoMatch                             ... because nothing matches it
        PartialMatch                        ... because only some keys have the prefix
        KeyCollision                        ... because two keys would become one
      CannotCarry     (ValueError)          the target format would lose content, or an object must not be written
      Doubtful        (ValueError)          a port holds guesses or gaps that nobody accepted
      NotInstalled    (ModuleNotFoundError) a package that this work needs is not installed
      TrainingFailed  (RuntimeError)        a training run that broke off: a rank died, or the loss is no number

An error reads `where: what.`, then a few lines of evidence, then `Hint:` with a command that works. Each class
also derives from the builtin that a caller would catch.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

#: Longest text taken from a file that one message shows.
_SHOWN = 200


def printable(text: str, limit: int = _SHOWN) -> str:
    """Return TEXT safe for a terminal: control, bidirectional and surrogate characters escaped, cut at LIMIT.

    Everything that comes out of a file (keys, class names, locations) passes through here before a person sees it.
    """
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    if cut.isascii() and cut.isprintable():
        return cut
    return "".join(
        c if c.isprintable() or c == " " else f"\\x{ord(c):02x}" if ord(c) < 256 else f"\\u{ord(c):04x}" for c in cut
    )


#: What gives access, in a URL: a login before the host, and the values of these parameters. Of Azure, what stands there
#: without a colon is the name of a container.
_LOGIN = re.compile(
    r"(?<=://)(?<!\babfs://)(?<!\babfss://)(?<!\baz://)[^/?#@\s]*@|(?<=://)[^/?#@\s]*:[^/?#@\s]*@", re.IGNORECASE
)
_SIGNED = re.compile(
    r"(?<=[?&;])([\w.-]*(?:signature|credential|token|secret|passw(?:or)?d|authorization|api-?_?key|policy|key-pair-id"
    r"|accesskeyid|googleaccessid)|sig|key|auth|jwt)=[^&;#\s'\"]+",
    re.IGNORECASE,
)


def without_secrets(text: str) -> str:
    """Return TEXT with what gives access taken out of the URLs in it: logins, signatures, tokens."""
    return _SIGNED.sub(r"\1=…", _LOGIN.sub("", text)) if "://" in text else text


def in_words(value: object, limit: int = 60) -> str:
    """VALUE for a message: a scalar in quotes, a container as what it is, whatever is in it and however much."""
    if isinstance(value, str):
        return f"'{printable(value, limit)}'"
    if value is None or isinstance(value, bool | float) or (isinstance(value, int) and value.bit_length() < 256):
        return f"'{value}'"
    if isinstance(value, dict):
        return f"a dict of {counted(len(value), 'entry', 'entries')}"
    if isinstance(value, list | tuple):
        return f"a {type(value).__name__} of {counted(len(value), 'item')}"
    return "a number of many digits" if isinstance(value, int) else f"a {type(value).__name__.lower()}"


def counted(number: int, noun: str, several: str = "") -> str:
    """NUMBER of NOUN, in the plural (SEVERAL) where there is not one: "1 key", "1,024 keys"."""
    return f"{number:,} {noun if number == 1 else several or f'{noun}s'}"


class CheckpointError(Exception):
    """Base of all errors that ckptool raises on purpose.

    Attributes:
        where: the file (or option) concerned, or "" when a pass works on a dict in memory.
        what: one sentence without a full stop, lower case.
        evidence: further lines, each already fit to be shown.
        hint: a command or an action that helps, or None.
        on_all_ranks: of several processes that do one piece of work, all raise it.
    """

    on_all_ranks = False

    def __init__(self, what: str, *, where: object = "", evidence: Sequence[str] = (), hint: str | None = None) -> None:
        super().__init__(what)
        self.where = without_secrets(str(where))
        self.what = what
        self.evidence = tuple(evidence)
        self.hint = hint

    def __str__(self) -> str:
        head = f"{printable(without_secrets(self.where))}: {self.what}" if self.where else self.what
        lines = [head + ("" if head.endswith((":", ".", "?")) else ".")]
        lines += [f"    {line}" for line in self.evidence]
        if self.hint:
            lines.append(f"Hint: {self.hint}")
        return "\n".join(lines)


class UnknownFormat(CheckpointError, ValueError):
    """The file is not a checkpoint that can be read; the message says what it is instead."""


class Malformed(CheckpointError, ValueError):
    """The file is a checkpoint but contradicts itself, or a part of it is missing."""


class Unreadable(CheckpointError, OSError):
    """The file cannot be opened: absent, a folder, a device, no permission."""


class NoSuchFile(Unreadable, FileNotFoundError):
    """There is no file of that name."""


class Unwritable(CheckpointError, OSError):
    """The target cannot be written. What was there before is untouched."""


class OutputExists(CheckpointError, FileExistsError):
    """The target exists and overwriting was not asked for."""


class NotFound(CheckpointError, LookupError):
    """There is no state dict in the file, or nothing at the path that was named."""


class Ambiguous(CheckpointError, LookupError):
    """Several state dicts could be meant; the message lists them."""


class RuleError(CheckpointError, ValueError):
    """A rule that was given cannot be applied."""


class NoMatch(RuleError):
    """A rule matches nothing in this checkpoint."""


class PartialMatch(RuleError):
    """Only some of the keys have the prefix that should be removed from all of them.

    Attributes:
        instead: options of `convert` that remove it from these and leave the others out, if there are any.
    """

    instead: tuple[str, ...] = ()


class KeyCollision(RuleError):
    """Two keys would become the same key."""


class CannotCarry(CheckpointError, ValueError):
    """Writing would lose content, or would write an object that runs code when somebody unpickles it."""


class Doubtful(CheckpointError, ValueError):
    """A port holds guesses or gaps that were not accepted. Nothing was written or loaded."""


class NotInstalled(CheckpointError, ModuleNotFoundError):
    """A package that this work needs is not installed; the hint is the command that installs it."""


def not_installed(work: str, package: str, *, extra: str = "", where: object = "") -> NotInstalled:
    """The error that WORK needs PACKAGE, which comes with EXTRA of ckptool, or else by its own name."""
    wanted = f"'ckptool[{extra}]'" if extra else package
    error = NotInstalled(f"{work} needs {package}, which is not installed", where=where, hint=f"pip install {wanted}")
    error.name = package
    return error


def require(work: str, package: str, *, extra: str = "", where: object = "") -> None:
    """Raise `NotInstalled` if PACKAGE, which WORK needs, is not installed. Nothing is imported."""
    import sys
    from importlib.util import find_spec

    if sys.modules.get(package) is None and find_spec(package) is None:
        raise not_installed(work, package, extra=extra, where=where)


class TrainingFailed(CheckpointError, RuntimeError):
    """A training run broke off. What it saved before is whole."""
