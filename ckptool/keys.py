r"""Names of tensors: patterns, renaming rules, prefixes, wrappers, and lists of keys short enough to read.

A *key* is one dotted name inside a state dict (`layers.0.attn.weight`); what stands between the dots are its
*components*. Everything here works on whole components unless a rule is a regular expression: cutting text
out of the middle of names is how `module.mlp_module.weight` becomes `mlp_weight`.

A *pattern* names the head of a key, up to a dot or the end:

    fc                 fc, fc.weight, but not fc2.weight           (`fc.` means the same)
    layer{}.conv       {} is one component, or a part of one:      layer1.conv.weight
    {...}.gamma        {...} is one or more whole components, as many as fit
    re:\.bias$         a regular expression, found anywhere in the key

A *rename* is `OLD=NEW`, where OLD is a pattern and NEW takes the place of what it matched:
`layer{}=blocks.{}`, `backbone=` (remove), `=backbone` (add), `{}.{}={2}.{1}` (reorder), `re:gamma$=weight`.
"""

from __future__ import annotations

import difflib
import heapq
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, groupby, takewhile, zip_longest
from operator import itemgetter
from typing import Literal, TypeAlias

from ckptool.errors import RuleError, counted, printable

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

# --------------------------------------------------------------------------------------- patterns and rules


@dataclass(frozen=True, slots=True)
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

    @property
    def is_regex(self) -> bool:
        """Whether this is a regular expression, written `re:...`."""
        return self.text.startswith(_REGEX)

    def matches(self, key: str) -> bool:
        """Return whether the head of KEY matches, or for an expression any part of it."""
        return (self.regex.search(key) if self.is_regex else self.regex.match(key)) is not None


@dataclass(frozen=True, slots=True)
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


# ------------------------------------------------------------------------------------------------- prefixes


def strip_prefix(key: str, prefix: str) -> str | None:
    """Return KEY without the leading components PREFIX, or None if it does not have them.

    `module` and `module.` are the same prefix. A key that is the prefix and nothing more does not have it.
    """
    head = prefix.removesuffix(".")
    if not head:
        return key
    return key[len(head) + 1 :] or None if key.startswith(head + ".") else None


def add_prefix(key: str, prefix: str) -> str:
    """Return KEY below the components PREFIX, which may be written with or without its last dot."""
    head = prefix.removesuffix(".")
    return f"{head}.{key}" if head else key


def first_component(key: str) -> str:
    """Return what stands before the first dot."""
    return key.partition(".")[0]


def drop_first(key: str) -> str | None:
    """Return KEY without its first component, whatever that is, or None if nothing would be left."""
    return key.partition(".")[2] or None


def common_prefix(keys: Iterable[str]) -> str:
    """Return the components that all KEYS begin with, without a last dot; never the whole of a key."""
    listed = list(keys)
    if not listed:
        return ""
    # What the least and the greatest share, all that sort between them share too.
    low, high = min(listed), max(listed)
    return low[: _agreeing(low, high)].rpartition(".")[0]


def leading(keys: Iterable[str]) -> list[tuple[str, int]]:
    """Return the first components of KEYS and how many keys have each, most frequent first."""
    return Counter(map(first_component, keys)).most_common()


def heads(left: Iterable[str], others: Iterable[str]) -> list[str]:
    """Return patterns that fit all keys LEFT and none of the OTHERS: the shortest heads that do."""
    taken: set[str] = set()
    for other in others:
        parts = other.split(".")
        taken.update(".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
    found: dict[str, None] = {}
    for key in left:
        parts = key.split(".")
        each = (".".join(parts[:depth]) for depth in range(1, len(parts) + 1))
        found[next((head for head in each if head not in taken), key)] = None
    return list(found)


# ------------------------------------------------------------------------------------------------- wrappers


@dataclass(frozen=True, slots=True)
class Wrapper:
    """A component that a wrapper around a module puts into the names of everything below it.

    Attributes:
        component: the component.
        producer: who puts it there.
        where: "anywhere" if no model has an attribute of that name, so that it goes wherever it stands;
            "sole" if one might, so that it goes only where its parent has no other child.
    """

    component: str
    producer: str
    where: Literal["anywhere", "sole"]


#: The wrappers that `unwrap` removes.
WRAPPERS: tuple[Wrapper, ...] = (
    Wrapper("_orig_mod", "torch.compile", "anywhere"),
    Wrapper("_fsdp_wrapped_module", "FullyShardedDataParallel", "anywhere"),
    Wrapper("_checkpoint_wrapped_module", "activation checkpointing", "anywhere"),
    Wrapper("_forward_module", "Lightning with DeepSpeed or FSDP", "sole"),
    Wrapper("_module", "Opacus GradSampleModule", "sole"),
    Wrapper("module", "DataParallel, DistributedDataParallel, AveragedModel, DeepSpeed", "sole"),
)
_ANYWHERE = frozenset(w.component for w in WRAPPERS if w.where == "anywhere")
_SOLE = frozenset(w.component for w in WRAPPERS if w.where == "sole")

#: The counter that AveragedModel keeps beside `module.`, which is the only child of the root all the same.
AVERAGED_COUNTER = "n_averaged"

# A tree of components. A node where a key ends has the entry ".", which no component can be.
_Node: TypeAlias = "dict[str, _Node]"
_END = "."
_LEAF: _Node = {_END: {}}


def find_wrappers(keys: Iterable[str]) -> dict[str, int]:
    """Return what `unwrap` would remove and from how many keys: `{"module.": 161, "_orig_mod.": 3}`."""
    keys = list(keys)
    outer, others = _around_all(keys)
    if not others:
        return {f"{component}.": len(keys) for component in outer.split(".")[:-1]}
    counts: Counter[str] = Counter()
    for _, _, removed in _unwrapped_one_by_one(keys):
        for component in removed:
            counts[component] += 1
    return {f"{component}.": count for component, count in counts.most_common()}


def unwrap(keys: Iterable[str]) -> dict[str, str]:
    """Return the name of each key without wrappers: `_orig_mod.module.w` becomes `w`, `b._orig_mod.w` `b.w`.

    All keys are in the result, in their order, changed or not. The last component of a key always stays. Two
    keys may get the same name (`b._orig_mod.w` beside `b.w`): that is for the caller to refuse, as it is for
    the caller to say what becomes of `n_averaged`, which is no weight.
    """
    return {key: new for key, new, _ in _unwrapped(keys)}


def _unwrapped(keys: Iterable[str]) -> Iterator[tuple[str, str, set[str]]]:
    """Yield each key, its name without wrappers, and the components that were removed."""
    keys = list(keys)
    outer, others = _around_all(keys)
    if not others:
        gone = set(outer.split(".")[:-1])
        yield from ((key, key[len(outer) :], gone) for key in keys)
        return
    yield from _unwrapped_one_by_one(keys)


def _around_all(keys: list[str]) -> tuple[str, bool]:
    """The wrappers that all keys begin with, and whether there may be others. In most files there are none."""
    components = takewhile((_ANYWHERE | _SOLE).__contains__, common_prefix(keys).split("."))
    outer = "".join(f"{component}." for component in components)
    text = "\n".join([key[len(outer) :] for key in keys])
    return outer, any(wrapper.component in text for wrapper in WRAPPERS)


def _unwrapped_one_by_one(keys: list[str]) -> Iterator[tuple[str, str, set[str]]]:
    """As `_unwrapped`, where some keys have wrappers of their own."""
    split = {key: key.split(".") for key in keys}
    # The certain ones go first, so that the others are judged by the children that a parent has without them.
    short = {key: [c for c in parts[:-1] if c not in _ANYWHERE] + parts[-1:] for key, parts in split.items()}
    tree: _Node = {}
    wrappers: set[int] = set()
    if not all(_SOLE.isdisjoint(parts[:-1]) for parts in short.values()):
        for parts in short.values():
            node = tree
            for component in parts[:-1]:
                below = node.get(component)
                if below is None or below is _LEAF:
                    below = node[component] = dict(below or {})
                node = below
            last = node.setdefault(parts[-1], _LEAF)
            if last is not _LEAF:
                last[_END] = {}
        wrappers = _sole_wrappers(tree)
    for key, parts in short.items():
        kept = parts
        removed = set() if len(parts) == len(split[key]) else {c for c in split[key][:-1] if c in _ANYWHERE}
        if wrappers and not _SOLE.isdisjoint(parts):
            kept, node = [], tree
            for component in parts:
                node = node[component]
                if id(node) in wrappers:
                    removed.add(component)
                else:
                    kept.append(component)
        yield key, ".".join(kept) if removed else key, removed


def _sole_wrappers(tree: _Node) -> set[int]:
    """Return the ids of the nodes of TREE that are wrappers because their parent has no other child."""
    found: set[int] = set()
    todo = [tree]
    while todo:
        parent = todo.pop()
        at_root = parent is tree
        # A wrapper that goes hands its children to the parent, where the next may now be the only one.
        while True:
            others = [
                (name, child)
                for name, child in parent.items()
                if name != _END and not (at_root and name == AVERAGED_COUNTER and child.keys() == {_END})
            ]
            if len(others) != 1 or others[0][0] not in _SOLE or _END in others[0][1]:
                break
            parent = others[0][1]
            found.add(id(parent))
        todo.extend(child for _, child in others)
    return found


# ----------------------------------------------------------------------------------------------- for people


@dataclass(frozen=True, slots=True)
class Collapsed:
    """Keys that differ only in numbers, as one line: `layers.{0..31}.attn.weight`.

    Attributes:
        pattern: the line; the key itself when it stands alone.
        keys: the keys, in the order in which they were given.
        signature: what was given for each of them.
    """

    pattern: str
    keys: tuple[str, ...]
    signature: Hashable


# A component that is a number. "007" is a name, for as a number it would be "7"; so is what is too long for an index.
_NUMBER = re.compile(r"(?<![^.])(0|[1-9][0-9]{0,8})(?![^.])")

# A box is one set of numbers for each place where a name has a number, and the keys (by number) that it stands for.
_Box: TypeAlias = tuple[tuple[frozenset[int], ...], list[int]]

# Numbers of one key that are folded. Each costs one more look at every key, and names come out of files.
_MOST_NUMBERS = 8


def collapse(items: Iterable[tuple[str, Hashable]]) -> list[Collapsed]:
    """Fold keys that differ only in components that are numbers and have equal signatures.

    Each item is a key and whatever tells it from its neighbours, such as (dtype, shape). Several numbers fold
    together where every combination is there; a layer that is unlike the others gets a line of its own. Every
    key is in exactly one result, and results come in the order in which their first keys came.
    """
    signatures = dict(items)
    keys = list(signatures)
    groups: dict[tuple[Hashable, ...], list[tuple[list[str], int]]] = {}
    for index, (key, signature) in enumerate(signatures.items()):
        pieces = _NUMBER.split(key, _MOST_NUMBERS)
        groups.setdefault((signature, *pieces[::2]), []).append((pieces[1::2], index))
    found: list[tuple[int, Collapsed]] = []
    for group in groups.values():
        around = _NUMBER.split(keys[group[0][1]], _MOST_NUMBERS)[::2]
        for ranges, members in _joined(group):
            pattern = "".join(chain(*zip_longest(around, map(_ranges, ranges), fillvalue="")))
            members.sort()
            folded = Collapsed(pattern, tuple([keys[index] for index in members]), signatures[keys[members[0]]])
            found.append((members[0], folded))
    return [folded for _, folded in sorted(found, key=itemgetter(0))]


def _joined(group: list[tuple[list[str], int]]) -> list[_Box]:
    """Join keys with the same number of numbers into boxes, each with every combination of its numbers.

    From the last place to the first, boxes that differ in that place alone become one: first the experts of
    each layer, then the layers that have the same experts.
    """
    if len(group[0][0]) == 1:  # then they all do
        return [((frozenset([int(numbers[0]) for numbers, _ in group]),), [key for _, key in group])]
    boxes: list[_Box] = [(tuple(frozenset((int(n),)) for n in numbers), [key]) for numbers, key in group]
    for place in reversed(range(len(boxes[0][0]))):
        found: dict[tuple[frozenset[int], ...], tuple[list[frozenset[int]], list[int]]] = {}
        for ranges, keys in boxes:
            here, all_keys = found.setdefault(ranges[:place] + ranges[place + 1 :], ([], []))
            here.append(ranges[place])
            all_keys.extend(keys)
        boxes = [
            ((*rest[:place], frozenset().union(*here), *rest[place:]), keys) for rest, (here, keys) in found.items()
        ]
    return boxes


def _ranges(numbers: frozenset[int]) -> str:
    """Return `3` for one number, otherwise `{0..31}` or `{0,2,5..7}`."""
    if len(numbers) == 1:
        return str(*numbers)
    texts: list[str] = []
    # Along a run of neighbours, a number and its place in the list keep their distance.
    for _, run in groupby(enumerate(sorted(numbers)), lambda item: item[1] - item[0]):
        values = [n for _, n in run]
        texts += [f"{values[0]}..{values[-1]}"] if len(values) > 2 else map(str, values)
    return "{" + ",".join(texts) + "}"


# Comparing costs up to the square of the length, and names come out of files.
_LONGEST, _MOST_NAMES = 200, 100


def closest(name: str, names: Iterable[str], n: int = 3) -> list[str]:
    """Return up to N of NAMES that look most like NAME, best first, for "did you mean"."""
    name = name[:_LONGEST]
    short = (other for other in names if len(other) <= _LONGEST)
    # Only those are compared in full that begin and end most like it.
    likely = heapq.nlargest(
        _MOST_NAMES, short, key=lambda other: _agreeing(name, other) + _agreeing(name[::-1], other[::-1])
    )
    return difflib.get_close_matches(name, likely, n)


def _agreeing(a: str, b: str) -> int:
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
