"""Mapping files for a family of models of all sizes: lines with letters, and the numbers that each letter takes.

    ckptool-mapping: 1
    source: "Llama, as Meta's files have it"
    target: "LlamaForCausalLM of transformers"
    numbers:
      heads: config("n_heads", "num_attention_heads")
      n: 0..count("layers.{}.attention.wq.weight", "model.layers.{}.self_attn.q_proj.weight") - 1
    mapping:
      model.layers.{n}.self_attn.q_proj.weight: rotary(layers.{n}.attention.wq.weight, {heads}, half)
      lm_head.weight: if_there(output.weight)
    beside: [rope.freqs]

The text in braces is a formula: whole numbers and names under `numbers`, joined by +, -, * and / (which may leave no
rest). Each name is computed from the file, for both directions, by such a formula, in which the functions below may
stand, too, unless `--number NAME=N` gives it. A number FIRST..LAST is a letter: a line is repeated for every value of
its letters.

    count("a.{}.b", …)     the highest number plus one, for the first pattern that fits a key; * is any number
    lowest("a.{}.b", …)    the lowest number; both are 0 if no pattern fits
    has("key", …)          1 if one of these keys exists, else 0
    size("key", …, dim)    the size of a dimension of the first of these keys that exists
    config("name", …)      the first of these entries in config.json or params.json beside the file that is a whole
                           number, or --number
    given(default)         --number, or the default

    below      the prefix of all keys of the source if a file also holds other parts (model.diffusion_model.)
    back       lines KEY: EXPRESSION for the opposite direction, if the inverse cannot be computed
    beside     patterns of tensors that are not part of the model, or that the other side computes
    needs      the meaning of a number, for the message if it is missing

No two lines, and no two values of a letter, may make one key. The file must have every key of a line, except inside of
`if_there( )`: then all of them or none. `{...}` is any text; such lines take the keys that no other line takes, and the
first line that fits counts.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import CheckpointError, Malformed, NotFound, RuleError, counted, printable
from ..keys import Pattern, unwrap
from . import expression as ex
from . import mapping_file, ranges
from .expression import Expr, Shape
from .mapping import Entry
from .mapping import Mapping as Port

_BRACES = re.compile(r"\{([^{}]*)\}")
ANY = "..."
#: Lines that a family stands for, in a file of any size, and what a number may be.
_MOST_LINES = 500_000
_LARGEST = 1 << 40
_NO_SUM = "is not a sum of numbers"


@dataclass(frozen=True, slots=True)
class FamilyLine:
    """A line of a family's mapping.

    Attributes:
        key, value: the key that it makes and the expression for it, both with text in braces.
        optional: whether the source may lack all tensors of the expression.
        number: its line number in the file, 0 if not known.
    """

    key: str
    value: str
    optional: bool = False
    number: int = 0

    @property
    def is_general(self) -> bool:
        """Return whether the line is for any key: its key has `{...}`, which stands for any text."""
        return f"{{{ANY}}}" in self.key


def _as_it_is(line: FamilyLine) -> tuple[str, str]:
    """Return (pattern of the keys that LINE reads, pattern of the keys that it makes)."""
    return line.value, line.key


def _turned(line: FamilyLine) -> tuple[str, str]:
    """Return the two patterns of LINE for the opposite direction."""
    return line.key, line.value


@dataclass(frozen=True, slots=True)
class Family:
    """A mapping for a family of models of all sizes.

    Attributes:
        name: the name of its file, without ".yaml".
        source, target: descriptions of the source and of the target.
        numbers: name -> how to compute it: a formula, or FIRST..LAST for a letter, whose lines are repeated.
        lines: the lines of the mapping.
        back: lines for the opposite direction, for keys whose inverse cannot be computed.
        below: a prefix that keys of the source may have, with a dot at its end, or "". In the opposite direction, every
            key that is made gets it.
        beside: patterns of tensors of the file (of either direction) that are not part of the model.
        needs: name of a number -> its meaning, for the message if it is missing.
    """

    name: str
    source: str
    target: str
    numbers: Mapping[str, str]
    lines: tuple[FamilyLine, ...]
    back: tuple[FamilyLine, ...] = ()
    below: str = ""
    beside: tuple[str, ...] = ()
    needs: Mapping[str, str] = field(default_factory=dict)

    def mapping(
        self,
        shapes: Mapping[str, Shape],
        *,
        invert: bool = False,
        given: Mapping[str, int] | None = None,
        config: Mapping[str, Any] | None = None,
        leave: bool = False,
    ) -> Port:
        """Return the mapping for a file with tensors of these SHAPES, or its inverse for a file of the target.

        Args:
            shapes: key -> sizes, for the file's tensors.
            invert: map in the opposite direction.
            given: name -> number from the user, which is used in place of the computed one.
            config: the contents of the configuration beside the file.
            leave: ignore tensors that the family does not know.
        Raises:
            RuleError: the file does not belong to the family, lacks a tensor or has other sizes than the lines need;
                two lines make one key of it; it has tensors that no line reads and `beside` does not name (without
                LEAVE); or the family has no number of a name in GIVEN.
            NotFound: a number is neither in the weights nor in the configuration.
            Malformed: a line or a number of the family cannot be read.
        """
        return _Instance(self, shapes, invert, dict(given or {}), config or {}).mapping(leave=leave)


class _Instance:
    """A family of mappings applied to one file: it computes the numbers of the file, and writes out the lines.

    Attributes:
        family, invert, given, config: as in `Family.mapping`.
        _sides: returns for a line (pattern of the keys that it reads, pattern of the keys that it makes).
        full: key as the lines write it -> key of the file.
        shapes: key as the lines write it -> sizes.
        values: (name of a number, letters with their values) -> the value computed for them.
    """

    def __init__(
        self,
        family: Family,
        shapes: Mapping[str, Shape],
        invert: bool,
        given: dict[str, int],
        config: Mapping[str, Any],
    ) -> None:
        self.family, self.invert = family, invert
        self._sides = _turned if invert else _as_it_is
        unknown = [name for name in given if name not in family.numbers]
        if unknown:
            known = [name for name in family.numbers if ".." not in family.numbers[name]]
            hint = f"it has {', '.join(known)}" if known else "it takes none"
            raise RuleError(f"{family.name} has no number {printable(unknown[0])!r}", where="--number", hint=hint)
        self.given, self.config = given, config
        self._is_other = False
        self.full = self._names(shapes)
        self.shapes = {name: tuple(shapes[key]) for name, key in self.full.items()}
        self.values: dict[tuple[Any, ...], int] = {}

    def _names(self, shapes: Mapping[str, Shape]) -> dict[str, str]:
        """Return key as the lines write it -> key of the file, for the keys of SHAPES.

        The lines write keys without wrappers (`module.`), unless two keys would then be equal. If a key begins with the
        prefix `below`, and the mapping is not inverted, they write the keys below that prefix without it, and all
        others are left out: they are of other parts of the file.
        """
        plain = unwrap(shapes)
        names = {name: key for key, name in plain.items()} if len(set(plain.values())) == len(plain) else {}
        names = names or {key: key for key in shapes}
        below = self.family.below
        if below and not self.invert and any(name.startswith(below) for name in names):
            return {name.removeprefix(below): key for name, key in names.items() if name.startswith(below)}
        return names

    # ------------------------------------------------------------------------------------------------ numbers

    def number(self, name: str, letters: Mapping[str, int]) -> int:
        """Return the value of the number NAME for LETTERS (letter of a line -> its value): that of the letter if NAME
        is one, else the one given by the user, else computed by its formula, once for the same letters (`values`).

        Raises:
            ValueError: the family does not define the number, or it is a letter that is not in LETTERS.
            Malformed, RuleError, NotFound: as in `evaluate`.
        """
        if name in letters:
            return letters[name]
        if name in self.given:
            return self.given[name]
        at = (name, *letters.items())
        if at not in self.values:
            text = self.family.numbers.get(name)
            if text is None or ".." in text:
                raise ValueError(f"names the number {printable(name)!r}, which it does not define")
            self.values[at] = self.evaluate(text, letters, ranges.number_of(text), name)
        return self.values[at]

    def evaluate(self, text: str, letters: Mapping[str, int], line: int, name: str = "") -> int:
        """Return the value of TEXT, a formula such as `2 * width` or `size("embed.weight", 1) / heads`, for LETTERS
        (letter of a line -> its value). LINE, its line number in the file, and NAME, the number that it defines, are
        for messages.

        Raises:
            Malformed: TEXT is no formula, it names a number that the family does not define, or its value is larger
                than 2**40 or smaller than -2**40.
            RuleError: the file lacks a tensor that the formula needs, or a division leaves a rest or is by 0.
            NotFound: a number of the configuration (`config`) is missing.
        """
        try:
            found = self._value(self._tree(text, line), letters, name)
        except CheckpointError:
            raise
        except ZeroDivisionError:  # a count of what is not there
            raise self._other_file([]) from None
        except RecursionError:
            raise self._malformed(text, line, _NO_SUM) from None
        except ValueError as error:
            raise self._malformed(text, line, str(error)) from None
        if abs(found) > _LARGEST:
            raise self._malformed(text, line, "gives a number beyond 2**40")
        return found

    def _tree(self, text: str, line: int) -> ast.expr:
        """Return the formula TEXT as Python's tree of an expression, which is never run. Raises Malformed, which names
        LINE, if it is none.
        """
        try:
            return ast.parse(text.strip(), mode="eval").body
        except (SyntaxError, RecursionError, MemoryError, ValueError):
            raise self._malformed(text, line, _NO_SUM) from None

    def _malformed(self, text: str, line: int, what: str) -> Malformed:
        return Malformed(f"{ranges.place_of(line)}{printable(text)!r} {what}", where=self.family.name)

    def _value(self, node: ast.expr, letters: Mapping[str, int], name: str) -> int:
        """Return the value of NODE, a part of a formula; the other arguments are as in `evaluate`.

        Raises:
            ValueError: it is no formula; the text says why, and follows the formula in the message.
            ZeroDivisionError: a division is by 0.
            RuleError, NotFound: as in `evaluate`.
        """
        if isinstance(node, ast.Constant) and type(node.value) is int:
            return node.value
        if isinstance(node, ast.Name):
            return self.number(node.id, letters)
        if isinstance(node, ast.BinOp):
            left, right = self._value(node.left, letters, name), self._value(node.right, letters, name)
            if max(abs(left), abs(right)) <= _LARGEST:
                if isinstance(node.op, ast.Add | ast.Sub | ast.Mult):
                    return (
                        left + right
                        if isinstance(node.op, ast.Add)
                        else left - right
                        if isinstance(node.op, ast.Sub)
                        else left * right
                    )
                if isinstance(node.op, ast.Div):
                    whole, rest = divmod(left, right)
                    if rest:
                        what = f"the numbers do not fit: {ast.unparse(node)} is {left:,} / {right:,}"
                        raise RuleError(what, where=self.family.name, hint=self._number_hint())
                    return whole
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            return self._call(node, letters, name)
        raise ValueError(_NO_SUM)

    def _number_hint(self) -> str | None:
        """Return a hint that names `--number` for the first number of the family that a user may give (one of `config`
        or `given`); None if it has no such number.
        """
        wanted = [name for name, text in self.family.numbers.items() if text.startswith(("config(", "given("))]
        return f"say it with --number {wanted[0]}=N" if wanted else None

    def _text(self, node: ast.expr, letters: Mapping[str, int]) -> str | None:
        """Return the text that NODE, a parsed argument of a formula, stands for: a quoted text, or texts and numbers
        joined with + ("layer" + s + ".weight" is "layer3.weight" if s is 3). None for anything else, such as a number
        alone. LETTERS has letter of a line -> its value.
        """
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            return node.value
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            parts = [(self._text(side, letters), side) for side in (node.left, node.right)]
            if any(text is not None for text, _ in parts):
                return "".join(str(self._value(side, letters, "")) if text is None else text for text, side in parts)
        return None

    def _call(self, node: ast.Call, letters: Mapping[str, int], name: str) -> int:
        """Return the value of NODE, a call of `count`, `lowest`, `has`, `size`, `config` or `given` (each is described
        at the top of this module). NAME is the number that the formula defines, for messages.

        Raises:
            ValueError: it is another function, its arguments are wrong, or a pattern of `count` or `lowest` has no {}.
            RuleError: no tensor of `size` exists with so many dimensions, so the file is not of this family.
            NotFound: the configuration has no whole number for `config`.
        """
        texts = [text for arg in node.args if (text := self._text(arg, letters)) is not None]
        rest = [arg.value for arg in node.args if isinstance(arg, ast.Constant) and isinstance(arg.value, int)]
        what = getattr(node.func, "id", "")
        if what in ("count", "lowest"):
            for text in texts:
                if "{}" not in text:
                    raise ValueError(f"has a pattern without {{}} for the number: {printable(text)!r}")
                pattern = "".join(
                    r"(\d{1,18})" if piece == "{}" else r"\d+" if piece == "*" else re.escape(piece)
                    for piece in re.split(r"(\{\}|\*)", text)
                )
                found = [int(m[1]) for key in self.shapes if (m := re.fullmatch(pattern, key))]
                if found:
                    return max(found) + 1 if what == "count" else min(found)
            return 0
        if what == "has":
            return int(any(text in self.shapes for text in texts))
        if what == "size" and rest:
            for text in texts:
                if text in self.shapes and rest[0] < len(self.shapes[text]):
                    return self.shapes[text][rest[0]]
            raise self._other_file(texts)
        if what == "config":
            for text in texts:
                value = self.config.get(text)
                if isinstance(value, int) and not isinstance(value, bool):
                    return value
            said = self.family.needs.get(name, name)
            raise NotFound(
                f"needs a number that is not in the weights: {name}, {said}",
                where=self.family.name,
                hint=f"--number {name}=N (or a config.json or params.json with {' or '.join(texts)} beside the file)",
            )
        if what == "given" and len(rest) == 1:
            return rest[0]
        raise ValueError(_NO_SUM)

    # -------------------------------------------------------------------------------------------------- lines

    def _letters(self, line: FamilyLine) -> tuple[str, ...]:
        """Return the letters (numbers FIRST..LAST) for whose values LINE is repeated, in the order in which the family
        defines them: those in braces in its key and expression, and those that the numbers named there depend on,
        through any number of formulas.
        """
        numbers = self.family.numbers
        names: set[str] = set()
        texts = [(inner, line.number) for inner in _BRACES.findall(line.key + line.value) if inner != ANY]
        while texts:
            found = {node.id for node in ast.walk(self._tree(*texts.pop())) if isinstance(node, ast.Name)} - names
            names |= found
            formulas = [numbers[name] for name in found if name in numbers]
            texts += [(end, ranges.number_of(formula)) for formula in formulas for end in formula.split("..")]
        return tuple(name for name in numbers if ".." in numbers[name] and name in names)

    def _rows(self, letters: Sequence[str]) -> Iterator[dict[str, int]]:
        """Yield letter -> value for every combination of the values of LETTERS, the last letter changing fastest; {}
        once if there are none. The range of a letter may depend on the letters before it. Raises RuleError if a range
        has more than 500,000 values.
        """
        if not letters:
            yield {}
            return
        for row in self._rows(letters[:-1]):
            text = self.family.numbers[letters[-1]]
            first, last = (self.evaluate(end, row, ranges.number_of(text)) for end in text.split("..", 1))
            if last - first >= _MOST_LINES:
                raise self._too_many()
            for value in range(first, last + 1):
                yield {**row, letters[-1]: value}

    def _too_many(self) -> RuleError:
        return RuleError(f"stands for more than {_MOST_LINES:,} keys", where=self.family.name)

    def _filled(self, text: str, row: Mapping[str, int], line: int) -> str:
        """Return TEXT with the value of each formula in braces in its place, for the letters of ROW."""
        return _BRACES.sub(lambda found: str(self.evaluate(found[1], row, line)), text)

    def _written(self, lines: Sequence[FamilyLine]) -> Iterator[tuple[FamilyLine, str, Expr]]:
        """Yield (line, key, expression) for each key that LINES stand for, with numbers for the texts in braces: a line
        with letters is repeated for all values of its letters. Lines for any key (`{...}`) are passed over. Successive
        lines with the same letters come together for each value, so that keys come block by block.

        Raises:
            RuleError: they stand for more than 500,000 keys, or the file lacks what a number needs.
            NotFound, Malformed: as in `Family.mapping`.
        """
        total = 0
        for letters, some in itertools.groupby((line for line in lines if not line.is_general), key=self._letters):
            together = list(some)
            for row in self._rows(letters):
                for line in together:
                    total += 1
                    if total > _MOST_LINES:
                        raise self._too_many()
                    key, value = (self._filled(text, row, line.number) for text in (line.key, line.value))
                    yield line, key, self._parsed(line, value)

    def _parsed(self, line: FamilyLine, text: str) -> Expr:
        """Return TEXT as an expression. Raises Malformed, which names LINE, if it is none."""
        try:
            return ex.parse(text)
        except RuleError as error:
            what = f"{ranges.place_of(line.number)}{printable(line.key)}: {error.what}"
            raise Malformed(what, where=self.family.name, evidence=error.evidence, hint=error.hint) from None

    # ------------------------------------------------------------------------------------------------ mapping

    def mapping(self, *, leave: bool) -> Port:
        """Return the mapping for the file, or its inverse, with the names of the file; as `Family.mapping`, also for
        LEAVE and what it raises.

        The entries come in the order of the lines, block by block (`_written`); those of lines for any key come last.
        Inverted, they come in the order in which the lines read them, with those of `back` behind them, and those of
        lines for any key last. A line of which the file has no tensor makes no entry if it is optional. A file is
        refused if no line takes a tensor of it, or only lines that take every key (`_show_nothing`).
        """
        entries = self._back() if self.invert else self._forth()
        if self._show_nothing(entries):
            raise self._other_file([])
        self._require_once(entries)
        read = {key for entry in entries for key in entry.sources}
        beside = [Pattern.parse(text) for text in self.family.beside]
        unknown = [
            key for key in self.shapes if key not in read and not any(pattern.matches(key) for pattern in beside)
        ]
        if unknown and not leave:
            raise RuleError(
                f"has {counted(len(unknown), 'tensor')} that {self._way()} knows nothing of",
                where=self.family.name,
                evidence=[printable(self.full[key], 100) for key in unknown[:5]],
                hint="--allow-loss leaves them behind",
            )
        own = [replace(e, expr=e.expr and e.expr.rename(lambda key: self.full[key])) for e in entries]
        shapes = {self.full[name]: shape for name, shape in self.shapes.items()}
        source, target = self.family.source, self.family.target
        if self.invert:
            source, target = target, source
        return Port(tuple(own), (), shapes, source, target).with_entries(own)

    def _show_nothing(self, entries: Iterable[Entry]) -> bool:
        """Return whether ENTRIES do not show that the file belongs to the family: all are of lines that read `{...}`
        alone (inverted: that make it), so that they take every key of a file.
        """
        takes_all = {line.number for line in self.family.lines if self._sides(line)[0] == f"{{{ANY}}}"}
        return all(entry.line in takes_all for entry in entries)

    def _forth(self) -> list[Entry]:
        """Return the entries for a file of the source, with keys as the lines write them: those of the lines in their
        order, then those of lines for any key. A line whose tensors are all absent makes none if it is optional. Raises
        RuleError if another line lacks a tensor, or an optional one has some of its tensors, but not all.
        """
        entries, missing = [], []
        for line, key, expr in self._written(self.family.lines):
            absent = [name for name in expr.keys() if name not in self.shapes]  # noqa: SIM118 - a method of ours
            if absent and (not line.optional or len(absent) < len(expr.keys())):
                missing += absent
            elif not absent:
                entries.append(self._entry(line, key, expr))
        entries += self._general(entries)
        self._require_whole(entries, missing)
        return entries

    def _entry(self, line: FamilyLine, key: str, expr: Expr) -> Entry:
        """Return the entry for KEY, made by EXPR of LINE, with its shape. Raises RuleError, which names LINE, if EXPR
        does not fit the sizes of the file's tensors.
        """
        try:
            shape = ex.shape_of(expr, self.shapes)
        except RuleError as error:
            what = f"{ranges.place_of(line.number)}{printable(key)}: {error.what}"
            raise RuleError(what, where=self.family.name, hint=self._number_hint()) from None
        return Entry(key, shape, expr, f"line {line.number} of {self.family.name}", line=line.number)

    def _general(self, entries: Sequence[Entry]) -> Iterator[Entry]:
        """Yield an entry for each key of the file that no entry of ENTRIES reads and that a line for any key matches (a
        line with `{...}`, which stands for any text, also for none). The entry copies the tensor of the key, and has
        the name that the line makes of it, with the same text for `{...}`. The first line that matches counts; other
        keys are left out.
        """
        patterns = [(line, *self._sides(line)) for line in self.family.lines if line.is_general]
        read = {key for entry in entries for key in entry.sources}
        for key in self.shapes:
            for line, old, new in patterns if key not in read else ():
                found = re.fullmatch("(.*)".join(map(re.escape, old.split(f"{{{ANY}}}"))), key, re.DOTALL)
                if found is not None:
                    made = new.replace(f"{{{ANY}}}", found[1])
                    yield Entry(
                        made,
                        self.shapes[key],
                        ex.of(key),
                        f"line {line.number} of {self.family.name}",
                        line=line.number,
                    )
                    break

    def _back(self) -> list[Entry]:
        """Return the entries for a file of the target, whose keys are made into those of the source (with the prefix
        `below`): the inverse of all lines, then the lines of `back`, each if the file has all that it reads, then lines
        for any key. A line is not inverted if `back` makes every key that it reads.

        Raises RuleError if the file lacks the key of a line that is not optional, two lines make one key, or an
        expression loses values and cannot be inverted.
        """
        by_hand = list(self._written(self.family.back))
        made_by_hand = {key for _, key, _ in by_hand}
        forth, missing = [], list[str]()
        sizes: dict[str, Shape] = {}
        for line, key, expr in self._written(self.family.lines):
            if key not in self.shapes:
                missing += [] if line.optional else [key]
                continue
            if all(name in made_by_hand for name in expr.keys()):  # noqa: SIM118 - a method of ours
                continue
            ex.shapes_read(expr, self.shapes[key], sizes)
            forth.append(Entry(key, self.shapes[key], expr, line=line.number))
        self._require_once(forth)
        below = self.family.below
        try:
            entries = list(mapping_file.invert(Port(tuple(forth), ()), sizes).entries)
        except RuleError as error:
            raise RuleError(error.what, where=self.family.name, evidence=error.evidence) from None
        for line, key, expr in by_hand:
            if all(name in self.shapes for name in expr.keys()):  # noqa: SIM118 - a method of ours
                entries.append(self._entry(line, key, expr))
        entries += self._general(entries)
        self._require_whole(entries, missing)
        return [replace(entry, target=below + entry.target) for entry in entries]

    def _require_once(self, entries: Iterable[Entry]) -> None:
        """Raise RuleError if two of ENTRIES have one target, made by two lines or by two values of a letter: nothing
        says which is meant.
        """
        first: dict[str, Entry] = {}
        for entry in entries:
            if (other := first.setdefault(entry.target, entry)) is not entry:
                what = f"{printable(entry.target, 100)} is made of {printable(str(entry.expr), 100)}"
                what = f"{ranges.place_of(entry.line)}{what}, and of {printable(str(other.expr), 100)} as well"
                raise RuleError(what, where=self.family.name)

    def _require_whole(self, entries: Sequence[Entry], missing: Sequence[str]) -> None:
        """Raise RuleError if MISSING, the keys that lines need and the file lacks, is not empty; else do nothing. If
        MISSING is longer than ENTRIES, which were made from the file, the message says that the file does not hold what
        the family takes (`_other_file`); else it names up to five of the missing keys.
        """
        if not missing:
            return
        if len(entries) < len(missing):
            raise self._other_file(missing)
        names = list(dict.fromkeys(missing))
        raise RuleError(
            f"{self._way()} wants {counted(len(names), 'tensor')} that the file does not have",
            where=self.family.name,
            evidence=[printable(name, 100) for name in names[:5]],
        )

    def _way(self) -> str:
        return f"{self.family.name} --invert" if self.invert else self.family.name

    def _other_file(self, wanted: Sequence[str]) -> RuleError:
        """Return (not raise) the error for a file that the family does not take, with WANTED[0], if there is one, as an
        example of a key that it takes. Its hint names `--invert`, or its omission, if the file suits the opposite
        direction (`fits`), else the command that lists all families. In the instance that is made to find that out
        (`_is_other`), the error is a short one without a hint.
        """
        family = self.family
        takes = family.target if self.invert else family.source
        example = f" (such as {printable(wanted[0], 80)})" if wanted else ""
        if self._is_other:
            return RuleError("is for another file", where=family.name)
        other = {**self.shapes, **{f"{family.below}{key}": shape for key, shape in self.shapes.items()}}
        turned = _Instance(family, other if not self.invert else self.shapes, not self.invert, self.given, self.config)
        turned._is_other = True
        hint = "`ckptool mappings` lists what each takes"
        if turned.fits():
            hint = (
                "leave out --invert: it is what this mapping takes" if self.invert else "--invert: it is the other side"
            )
        return RuleError(
            f"the file does not hold what {self._way()} takes: {takes}{example}", where=family.name, hint=hint
        )

    def fits(self) -> bool:
        """Return whether the file has the keys of more lines of the family, written out, than it lacks: all keys that a
        line reads, or the key that it makes if the mapping is inverted. Optional lines that it lacks do not count. If
        no line counts (all are for any key, or optional and absent), return whether a line for any key takes a key of
        the file, and not every key (`_show_nothing`). False if the lines cannot be written out for this file.
        """
        there = absent = 0
        try:
            for line, key, expr in self._written(self.family.lines):
                wanted = [key] if self.invert else expr.keys()
                here = all(name in self.shapes for name in wanted)
                there, absent = there + here, absent + (not here and not line.optional)
        except (RuleError, NotFound, Malformed):
            return False
        if not there and not absent:
            return not self._show_nothing(self._general([]))
        return there > absent
