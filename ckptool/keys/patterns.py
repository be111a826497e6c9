"""Patterns of keys, and the rules that rename what they match; `ckptool.keys` says how they are written."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import field

from ..errors import RuleError, counted, printable
from ..records import record
from .prefixes import add_prefix

_REGEX = "re:"
_HOLES = {"{}": r"([^.]+)", "{...}": r"([^.]+(?:\.[^.]+)*)"}
_BRACES = re.compile(r"(\{[^{}]*\})")
_PARTIAL_MANY = re.compile(r"[^.]\{\.{3}\}|\{\.{3}\}[^.]")

#: Characters of a key that a rule makes, and of all keys together, unless there were more before. Rules run one after
#: the other in a recipe, and forty that double a key would fill any memory.
LONGEST_KEY = 1 << 17
MOST_CHARACTERS = 1 << 26
#: Characters that a regular expression is replaced by, and holes that a new name repeats.
_LONGEST_REPLACEMENT = 4096
_MOST_HOLES = 100
#: Rules of one file. Every key is compared with each.
_MOST_RULES = 10_000


@record(frozen=True, slots=True)
class Pattern:
    """A set of keys, as it is written on the command line. Make one with `Pattern.parse`.

    Attributes:
        text: the pattern as it was given.
        regex: what it means. If the pattern is not itself an expression, the key must match from its start.
        holes: its holes in order, each "{}" or "{...}"; none for an expression.
    """

    text: str
    regex: re.Pattern[str]
    holes: tuple[str, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Pattern:
        """Return the pattern that TEXT describes, or raise RuleError."""
        if text.startswith(_REGEX):
            return cls(text, _expression(text))
        body = "" if text == "*" else text.removesuffix("*").removesuffix(".") if text.endswith(".*") else text
        body = body.removesuffix(".")
        if "*" in body:
            anywhere = ".*".join(re.escape(part) for part in body.strip("*").split("*"))
            raise RuleError(
                f"'*' in the pattern {_quoted(text)} is not at its end, after a dot",
                hint=f"write 're:{printable(anywhere)}' for what is anywhere in a key"
                if anywhere
                else "write {} for one component or a part of it, {...} for one or more components",
            )
        if not body:
            return cls(text, re.compile(""))
        holes, source = [], ""
        for is_hole, piece in _pieces(body):
            if is_hole and piece not in _HOLES:
                raise RuleError(
                    f"{printable(piece)} in the pattern {_quoted(text)} is not a hole",
                    hint="write {} for one component or a part of it, {...} for one or more components",
                )
            holes += [piece] if is_hole else []
            source += _HOLES[piece] if is_hole else re.escape(piece)
        if "}{" in body:
            # Nothing says where the first ends; and one long component would take very long to match.
            raise RuleError(f"two holes touch each other in the pattern {_quoted(text)}")
        if _PARTIAL_MANY.search(body):
            raise RuleError(f"{{...}} in the pattern {_quoted(text)} is whole components, set off by dots")
        # \Z and not $, which would also match before a line feed that ends the key.
        return cls(text, re.compile(source + r"(?=\.|\Z)"), tuple(holes))

    def anywhere(self, keys: Iterable[str]) -> str:
        """The expression that finds the text of this pattern inside KEYS; "" if none has it, or there are holes."""
        text = self.text.removesuffix("*").strip(".")
        if self.is_regex or not text or "{" in text or not any(text in key for key in keys):
            return ""
        return f"{_REGEX}{re.escape(text)}"

    @property
    def is_regex(self) -> bool:
        """Whether this is a regular expression, written `re:...`."""
        return self.text.startswith(_REGEX)

    def matches(self, key: str) -> bool:
        """Return whether the head of KEY matches, or for an expression any part of it."""
        return (self.regex.search(key) if self.is_regex else self.regex.match(key)) is not None


@record(frozen=True, slots=True)
class Rename:
    r"""One renaming rule: `Rename("layer{}", "blocks.{}")` is `Rename.parse("layer{}=blocks.{}")`.

    The part of a key that OLD matches is replaced by NEW and the rest is kept. NEW repeats the holes of OLD,
    or numbers them (`{2}`, `{1}`) to reorder, leave out or repeat some. An empty NEW removes the part with
    its dot, an empty OLD puts NEW in front. When OLD is an expression (`re:`), every occurrence is replaced
    and NEW may contain `\1`, as in `re.sub`.
    """

    old: str
    new: str
    pattern: Pattern = field(init=False, repr=False, compare=False)
    _head: tuple[str | int, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        pattern = Pattern.parse(self.old)
        if not pattern.is_regex and "*" in self.new:
            raise RuleError(
                f"the rule {_quoted(self)} puts a '*' into keys",
                hint="what the left side does not fit is kept: a=b renames all below a",
            )
        object.__setattr__(self, "pattern", pattern)
        object.__setattr__(self, "_head", () if pattern.is_regex else _replacement(self.new, pattern))
        if pattern.is_regex:
            if len(self.new) > _LONGEST_REPLACEMENT:
                raise RuleError(f"{_quoted(self.new)} has more than {_LONGEST_REPLACEMENT:,} characters")
            try:
                pattern.regex.sub(self.new, "")  # reads NEW whether or not something matches
            except (re.error, IndexError) as e:
                raise RuleError(f"{_quoted(self.new)} cannot replace {_quoted(self.old)}: {e}") from None

    @classmethod
    def parse(cls, text: str) -> Rename:
        """Return the rule written as `OLD=NEW`. Spaces around the two count only if OLD is an expression."""
        # An expression may contain '=', as in (?=...); its replacement hardly ever does.
        regex = text.startswith(_REGEX)
        old, equals, new = text.rpartition("=") if regex else text.partition("=")
        if not equals:
            raise RuleError(f"the rule {_quoted(text)} has no '='", hint="--rename OLD=NEW")
        return cls(old, new) if regex else cls(old.strip(), new.strip())

    def apply(self, key: str) -> str | None:
        """Return the new name of KEY, or None if the rule does not concern it."""
        regex = self.pattern.regex
        if self.pattern.is_regex:
            renamed, count = regex.subn(self._filling(key), key)
            if not count:
                return None
        else:
            found = regex.match(key)
            if found is None:
                return None
            head = "".join(piece if isinstance(piece, str) else found.group(piece) for piece in self._head)
            if not found.end():
                renamed = add_prefix(key, head)
            else:
                rest = key[found.end() :]
                renamed = head + rest if head else rest.removeprefix(".")
        if not renamed:
            raise RuleError(f"the rule {_quoted(self)} leaves nothing of the key {_quoted(key)}")
        if _has_gap(renamed) and not _has_gap(key):
            raise RuleError(
                f"the rule {_quoted(self)} leaves an empty component in {_quoted(key)}: {_quoted(renamed)}",
                hint="let the rule take the dot as well, for example 're:^backbone\\.='",
            )
        return renamed

    def _filling(self, key: str) -> Callable[[re.Match[str]], str]:
        """What gives the replacement of each occurrence in KEY, as long as all of them together are no absurd name."""
        room = max(LONGEST_KEY, len(key))

        def filled(found: re.Match[str]) -> str:
            nonlocal room
            text = found.expand(self.new)
            room -= len(text)
            if room < 0:
                raise too_long(self)
            return text

        return filled

    def __str__(self) -> str:
        return f"{self.old}={self.new}"


def too_long(rule: object) -> RuleError:
    """The error for a rule that makes absurd names."""
    return RuleError(
        f"the rule {_quoted(rule)} makes keys too long",
        evidence=[f"the limits: {LONGEST_KEY:,} characters for a key, {MOST_CHARACTERS:,} for all of them"],
    )


def parse_rules(text: str, where: object) -> list[Rename]:
    """Return the rules of a rules file, one `OLD=NEW` a line.

    Blank lines and lines that begin with # are skipped. WHERE is the name of the file; errors add the number
    of the line to it.
    """
    rules = []
    for number, line in enumerate(text.removeprefix("\ufeff").split("\n"), 1):
        rule = line.strip()
        if rule and not rule.startswith("#"):
            try:
                rules.append(Rename.parse(rule))
            except RuleError as e:
                raise RuleError(e.what, where=f"{where} line {number}", hint=e.hint) from None
            if len(rules) > _MOST_RULES:
                raise RuleError(f"has more than {counted(_MOST_RULES, 'rule')}", where=where)
    return rules


def _expression(text: str) -> re.Pattern[str]:
    if text == _REGEX:
        raise RuleError("the regular expression after 're:' is empty")
    try:
        return re.compile(text.removeprefix(_REGEX))
    except (re.error, OverflowError, RecursionError) as e:
        raise RuleError(f"{_quoted(text)} is not a valid regular expression: {e}") from None


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the pieces of TEXT, each with whether it is a hole."""
    for i, piece in enumerate(_BRACES.split(text)):
        if i % 2 == 0 and ("{" in piece or "}" in piece):
            raise RuleError(
                f"the braces in {_quoted(text)} do not pair up",
                hint="for a name that contains a brace, write an expression: re:...",
            )
        if piece:
            yield i % 2 == 1, piece


def _replacement(new: str, old: Pattern) -> tuple[str | int, ...]:
    """Return NEW as literal texts and numbers of holes of OLD."""
    text = new.removesuffix(".")
    head: list[str | int] = []
    plain: list[str] = []
    numbers = {f"{{{n}}}": n for n in range(1, len(old.holes) + 1)}
    numbered = False
    for is_hole, piece in _pieces(text):
        if not is_hole:
            head.append(piece)
        elif piece in _HOLES:
            plain.append(piece)
            head.append(len(plain))
        elif piece in numbers:
            numbered = True
            head.append(numbers[piece])
        else:
            raise RuleError(
                f"{printable(piece)} in {_quoted(new)} is not a hole of {_quoted(old.text)}, which has {len(old.holes)}"
            )
    if len(head) > 2 * _MOST_HOLES:
        raise RuleError(f"{_quoted(new)} has more than {_MOST_HOLES} holes")
    if numbered and plain:
        raise RuleError(f"{_quoted(new)} numbers some holes and not others", hint="number all of them")
    # An empty NEW removes the head, whatever its holes took.
    if text and not numbered and tuple(plain) != old.holes:
        raise RuleError(
            f"the holes of {_quoted(new)} are not those of {_quoted(old.text)}",
            hint="repeat them in the same order, or number them: {1}, {2}",
        )
    if text and _has_gap(text.replace("{...}", "{}")):
        raise RuleError(f"the new name {_quoted(new)} has an empty component")
    return tuple(head)


def _quoted(text: object) -> str:
    return f"'{printable(str(text))}'"


def _has_gap(key: str) -> bool:
    return ".." in key or key.startswith(".") or key.endswith(".")
