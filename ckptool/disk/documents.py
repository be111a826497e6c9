"""Documents: YAML that people write and JSON that programs write, read as plain data of bounded size.

Both can say much in few bytes: an alias that stands for ten aliases, ten times over, a list within a list within a
list. What is read here is lists, dicts and scalars, a few levels deep and no larger than its text. What is more is
refused while the text is read, before anything is made of it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from typing import Any

from ..errors import CheckpointError, Malformed, RuleError, Unreadable, counted, in_words, printable
from .files import StrPath, reason

#: Characters of a text that a person writes, of a list of tensors that a program wrote, and of one line.
LARGEST = 1 << 20
LARGEST_LIST = 1 << 24
LONGEST_LINE = 1 << 20
#: Lists and dicts within each other: a recipe needs four, JSON that torch and others write five.
DEEPEST_YAML = 8
DEEPEST_JSON = 64
#: Scalars, lists and dicts of one YAML document, and of what is written as JSON.
MOST_NODES = 1 << 20


def read_text(path: StrPath, refused: type[CheckpointError] = RuleError, *, largest: int = LARGEST) -> str:
    """The text of a file or of a pipe, as `<(command)` makes one.

    Args:
        path: the file.
        refused: what is raised for a text that is too large.
        largest: how many characters it may have.

    Raises:
        Unreadable: it cannot be read, or is no text.
    """
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read(largest + 1)
    except (OSError, ValueError) as error:
        what = "is not a text file (UTF-8)" if isinstance(error, UnicodeDecodeError) else reason(error)
        raise Unreadable(what, where=path) from None
    check_size(text, path, refused, largest=largest)
    return text


def check_size(text: str, where: object, refused: type[CheckpointError] = RuleError, *, largest: int = LARGEST) -> None:
    """Refuse a text that `read_text` would not read, or a line that is too long."""
    if len(text) > largest:
        raise refused(f"has more than {largest:,} characters", where=where)
    for number, line in enumerate(text.split("\n"), 1):
        if len(line) > LONGEST_LINE:
            what = f"line {number} has {counted(len(line), 'character')}; {LONGEST_LINE:,} is the limit"
            raise refused(what, where=where)


# -------------------------------------------------------------------------------------------------------- YAML


def read_yaml(
    path: StrPath, refused: type[CheckpointError] = RuleError, *, largest: int = LARGEST, texts: bool = False
) -> Any:
    """The plain data in a YAML file: lists, dicts with texts for keys, and scalars.

    Anchors, aliases, merge keys, tags, directives, several documents and keys that stand twice are refused.

    Args:
        path: the file.
        refused: what is raised for a text that is no such YAML.
        largest: how many characters it may have.
        texts: every scalar is the text that stands there, as a `Placed`. Else a scalar without quotes may be true,
            false, null or a decimal number, and is refused where YAML 1.1 reads something else into it, such as a date
            or the number 5,025 into 1:23:45. With TEXTS, a dict below the root may also name a key twice; the last one
            counts.

    Raises:
        Unreadable: it cannot be read, or is no text.
    """
    import yaml

    text = read_text(path, refused, largest=largest)
    try:
        _check_characters(text)
        reader = _Reader(texts=texts)
        for event in yaml.parse(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # ten times as fast
            reader.take(event)
    except _NotPlain as problem:
        line, what, hint = problem.args
        raise refused(f"{_NO_YAML}: line {line} {what}", where=path, hint=hint) from None
    except yaml.YAMLError as problem:
        mark = getattr(problem, "problem_mark", None)
        line = f"line {mark.line + 1} " if mark is not None else ""
        said = getattr(problem, "problem", None)
        evidence = [printable(said, 120)] if isinstance(said, str) else []
        hint = "lines of one section begin in the same column"
        raise refused(f"{_NO_YAML}: {line}is not valid YAML", where=path, evidence=evidence, hint=hint) from None
    return reader.root


_NO_YAML = "is not YAML that ckptool reads"


class Placed(str):
    """A text of a document that knows the number of its line."""

    __slots__ = ("line",)
    line: int

    @classmethod
    def at(cls, text: str, line: int) -> Placed:
        """TEXT, which stands in this LINE, counted from 1."""
        made = cls(text)
        made.line = line
        return made


class _NotPlain(Exception):
    """What is not read: the number of its line, what it is, and what to write instead."""


def _not_plain(event: Any, what: str, hint: str | None = None) -> _NotPlain:
    return _NotPlain(event.start_mark.line + 1, what, hint)


def _check_characters(text: str) -> None:
    """Refuse what the two parsers of PyYAML do not treat alike, or not in linear time."""
    from yaml.reader import Reader

    for pattern, what, hint in (
        (Reader.NON_PRINTABLE, "has a character that YAML does not allow", 'write it as an escape: "\\x07"'),
        (_DIRECTIVE, "begins with '%', a directive", "leave it out"),
    ):
        found = pattern.search(text)
        if found is not None:
            raise _NotPlain(text.count("\n", 0, found.start()) + 1, what, hint)


_HALF = re.compile("[\ud800-\udfff]")
_DIRECTIVE = re.compile(r"^%", re.MULTILINE)
_NO_KEY = object()


class _Reader:
    """Makes plain data of the events of a YAML parser.

    Attributes:
        root: what the document holds; None for an empty one.
    """

    def __init__(self, *, texts: bool) -> None:
        import yaml

        self.root: Any = None
        self._texts = texts
        self._yaml = yaml
        self._resolver = yaml.resolver.Resolver()
        self._open: list[list[Any]] = []  # containers that have not ended, each with the key that waits for its value
        self._documents = self._nodes = 0

    def take(self, event: Any) -> None:
        """Read one event."""
        kind = type(event)
        if kind is self._yaml.ScalarEvent:
            self._check(event)
            self._put(self._scalar(event), event)
        elif kind is self._yaml.SequenceStartEvent or kind is self._yaml.MappingStartEvent:
            self._check(event)
            made: Any = [] if kind is self._yaml.SequenceStartEvent else {}
            self._put(made, event)
            self._open.append([made, _NO_KEY])
            if len(self._open) > DEEPEST_YAML:
                raise _not_plain(event, f"is more than {DEEPEST_YAML} lists and dicts deep")
        elif kind is self._yaml.SequenceEndEvent or kind is self._yaml.MappingEndEvent:
            self._open.pop()
        elif kind is self._yaml.AliasEvent:
            hint = "write out what it stands for; a text that begins with * goes in quotes"
            raise _not_plain(event, f"has the alias *{printable(str(event.anchor), 40)}", hint)
        elif kind is self._yaml.DocumentStartEvent:
            self._documents += 1
            if self._documents > 1:
                raise _not_plain(event, "begins a second document", "one document a file")

    def _check(self, event: Any) -> None:
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise _not_plain(event, f"holds value number {self._nodes:,}; {MOST_NODES:,} is the limit")
        if event.anchor is not None:
            hint = "leave it out; a text that begins with & goes in quotes"
            raise _not_plain(event, f"has the anchor &{printable(str(event.anchor), 40)}", hint)
        if event.tag is not None:
            hint = "leave it out; a text that begins with ! goes in quotes"
            raise _not_plain(event, f"has the tag {printable(event.tag, 80)}", hint)

    def _put(self, value: Any, event: Any) -> None:
        """Put a value where it belongs: into the innermost container, or a key in wait for its value."""
        if not self._open:
            self.root = value
            return
        container, key = self._open[-1]
        if isinstance(container, list):
            container.append(value)
        elif key is not _NO_KEY:
            container[key] = value
            self._open[-1][1] = _NO_KEY
        else:
            self._open[-1][1] = self._key(value, event, container)

    def _key(self, value: Any, event: Any, container: dict[str, Any]) -> str:
        if isinstance(value, list | dict):
            raise _not_plain(event, "has a list or a dict for a key", "a key is a text")
        if event.value == "<<" and event.implicit[0]:
            raise _not_plain(event, "has the merge key <<", "write out what it would merge")
        if not isinstance(value, str):
            raise _not_plain(event, f"has the key {printable(event.value, 40)}, which is not text", _in_quotes(event))
        # in a mapping file an uncommented rival stands below the line that it replaces
        if value in container and not (self._texts and len(self._open) > 1):
            raise _not_plain(event, f"has the key {printable(value, 40)} a second time", "one line for each key")
        return value

    def _scalar(self, event: Any) -> Any:
        """The value of a scalar: a text, unless it stands without quotes and is one of a few words and numbers."""
        text = event.value
        if not text.isascii() and _HALF.search(text):  # libyaml says so itself
            raise _not_plain(event, "has half a character in an escape", "write the whole character")
        if self._texts:
            return Placed.at(text, event.start_mark.line + 1)
        if not event.implicit[0]:
            return text
        kind = str(self._resolver.resolve(self._yaml.ScalarNode, text, (True, False))).rpartition(":")[2]  # type: ignore[no-untyped-call]
        if kind == "str" or (kind == "merge" and self._awaits_key()):
            return text
        if kind == "null":
            return None
        if kind == "bool":
            return self._yaml.constructor.SafeConstructor.bool_values[text.lower()]
        if kind == "int" and _INTEGER.fullmatch(text):
            return int(text)
        if kind == "float" and _FLOAT.fullmatch(text):
            return float(text)
        read = _READ_AS.get(kind, "something else")
        raise _not_plain(event, f"has {printable(text, 40)}, which YAML takes for {read}", _in_quotes(event))

    def _awaits_key(self) -> bool:
        return bool(self._open) and isinstance(self._open[-1][0], dict) and self._open[-1][1] is _NO_KEY


_INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]{0,17})")
_FLOAT = re.compile(r"[-+]?[0-9]{1,18}\.[0-9]{0,18}([eE][-+][0-9]{1,2})?")
_READ_AS = {
    "int": "a number that is not written like 12",
    "float": "a number that is not written like 1.5",
    "timestamp": "a date",
}


def _in_quotes(event: Any) -> str:
    return f"write it in quotes: '{printable(event.value, 40)}'"


def yaml_text(value: Any, where: object) -> str:
    """VALUE as YAML, as `read_yaml` reads it.

    Raises:
        RuleError: it would not be read: it is too large, or has half a character.
    """
    import yaml

    class Dumper(yaml.SafeDumper):
        """Writes what stands at two places twice, not as an alias, and what cannot be seen as an escape."""

        def ignore_aliases(self, data: Any) -> bool:
            return True

        def represent_str(self, data: str) -> yaml.ScalarNode:
            style = None if data.isprintable() else '"'
            return self.represent_scalar("tag:yaml.org,2002:str", data, style)

    Dumper.add_representer(str, Dumper.represent_str)
    _check_whole(json.dumps(value, ensure_ascii=False), where)
    made: str = yaml.dump(value, None, Dumper, sort_keys=False, allow_unicode=True, width=120)
    check_size(made, where)
    return made


def _check_whole(text: str, where: object) -> None:
    if _HALF.search(text):
        raise RuleError("has half a character in it, which no file of text can hold", where=where)


def quoted(text: str) -> str:
    """TEXT in double quotes, as YAML reads it; what a person could not see is an escape.

    Raises:
        RuleError: it has half a character.
    """
    _check_whole(text, text)
    return "".join(
        c if c.isascii() or c.isprintable() else f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}"
        for c in json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
    )


# -------------------------------------------------------------------------------------------------------- JSON


def read_json(
    raw: bytes | str,
    where: object = "",
    what: str = "",
    *,
    compact: Callable[[list[tuple[str, Any]]], Any] = lambda _: None,
) -> Any:
    """The plain data that JSON says.

    Names that stand twice, NaN and infinity, and lists and objects too deep within each other are refused.

    Args:
        raw: the JSON, in UTF-8.
        where: the file that holds it.
        what: what it is of the file ("its header"); nothing if it is the whole.
        compact: makes something smaller than a dict of the names and values of an object, or None to leave it a dict.

    Raises:
        Malformed: it is no such JSON.
    """
    said = f"{what} " if what else ""

    def once(pairs: list[tuple[str, Any]]) -> Any:
        small = compact(pairs)
        if small is not None:
            return small
        made = dict(pairs)
        if len(made) != len(pairs):
            twice = next(name for name, n in Counter(name for name, _ in pairs).items() if n > 1)
            raise Malformed(f"{said}names {in_words(twice, 120)} twice", where=where)
        return made

    def refuse(text: str) -> Any:
        raise ValueError(f"{text} is not a JSON number")

    try:
        text = raw if isinstance(raw, str) else raw.decode("utf-8")
        made = json.loads(text, object_pairs_hook=once, parse_constant=refuse)
        deep = _is_deep(made)
    except Malformed:
        raise
    except ValueError as error:
        raise Malformed(f"{said}is not JSON: {printable(str(error), 120)}", where=where) from None
    except RecursionError:
        deep = True
    if deep:
        what = f"is not JSON that ckptool reads: more than {DEEPEST_JSON} lists and objects deep"
        raise Malformed(f"{said}{what}", where=where)
    return made


_CONTAINERS = {list, dict}


def _is_deep(made: Any) -> bool:
    level: list[Any] = [[made]]
    for _ in range(DEEPEST_JSON + 1):
        items = (one.values() if type(one) is dict else one for one in level)
        with_more = [held for held in items if not _CONTAINERS.isdisjoint(map(type, held))]  # few of many numbers
        level = [item for held in with_more for item in held if type(item) in _CONTAINERS]
        if not level:
            return False
    return True


def through_json(value: Any) -> Any:
    """VALUE as JSON gives it back: tuples as lists, keys as texts.

    Raises:
        TypeError, ValueError: JSON cannot say it, or `read_json` would not read it. What stands at several places, as
            in lists of lists of lists, is written at each: a file of some hundred bytes can hold more than any memory.
    """
    known: dict[int, tuple[int, int]] = {}

    def measured(one: Any, depth: int) -> tuple[int, int]:
        """How many values are in ONE, and how deep it is."""
        if not isinstance(one, list | tuple | dict):
            return 1, 0
        if id(one) not in known:
            if depth > DEEPEST_JSON // 2:
                raise ValueError("too deep")
            inner = [measured(item, depth + 1) for item in (one.values() if isinstance(one, dict) else one)]
            known[id(one)] = 1 + sum(n for n, _ in inner), 1 + max((deep for _, deep in inner), default=0)
        return known[id(one)]

    many, deep = measured(value, 1)
    if many > MOST_NODES or deep > DEEPEST_JSON // 2:  # half of what is read: there is something around it
        raise ValueError("too large or too deep")
    return json.loads(json.dumps(value, allow_nan=False))
