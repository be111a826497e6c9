"""Write the steps of a port as a person would: modules instead of single tensors, loops instead of single layers.

A step makes some tensors of the target. Steps that differ only in numbers in their keys become one step in a loop. The
loop runs over the target's numbers if the source's follow from them (`n`, `n + 1`, `3 * i + j`), else over a table of
both.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...keys.known_buffers import is_counter
from ..expression import Expr
from ..mapping import Entry, different

#: A number that counts layers: a whole component, or what stands behind such a word.
_NUMBER = re.compile(
    r"(?:(?<=^)|(?<=[./])|(?<=layer)|(?<=layer_)|(?<=block)|(?<=block_)|(?<=stage))(0|[1-9]\d{0,6})(?=[./]|$)"
)
#: Fewer entries than these are not worth a table of numbers.
_LEAST_ROWS = 3
#: Numbers that a loop runs over.
_MOST_VARIABLES = 3

Numbers = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """A step that makes some tensors of the target.

    Attributes:
        target: the key, or the common beginning of the keys before `names`.
        expr: the expression, over keys or their beginnings before `names`; None for zeros.
        names: ends of the keys, equal in the target and in the source. For whole keys, ("",) for a copy, else ().
        zeros: sizes and type of zeros; None if there is an expression.
        comments: a line for each doubt about it.
    """

    target: str
    expr: Expr | None
    names: tuple[str, ...] = ()
    zeros: tuple[tuple[int, ...], str] | None = None
    comments: tuple[str, ...] = ()

    @property
    def texts(self) -> list[str]:
        """Return the texts that may contain numbers: the target, then the keys and indices of the expression."""
        return [self.target, *(() if self.expr is None else texts_of(self.expr))]


@dataclass(frozen=True, slots=True)
class Loop:
    """Steps that are repeated for each row of numbers, or done once if there are no numbers.

    Attributes:
        rows: for each pass of the loop, the values of its variables; () if there is no loop.
        targets: how many of the variables are numbers in keys of the target. 0 for a loop over a table of numbers of
            both sides.
        steps: (the step of the first pass, its `texts` as templates for all passes), for each step in the loop.
    """

    rows: tuple[Numbers, ...]
    targets: int
    steps: tuple[tuple[Step, tuple[Template, ...]], ...]


#: Literal texts, and between them numbers as (constant, factor for each number of a row).
Template = tuple[str | tuple[int, Numbers], ...]


def texts_of(x: Expr) -> list[str]:
    """Return the texts of X that may change from layer to layer: its keys and indices, in the order in which they are
    written. Indices are those of `select` and `slice`.
    """
    if x.is_copy:
        return [x.key]
    return [*(text for arg in x.args for text in texts_of(arg)), *(str(x.params[at]) for at in _places(x))]


def are_keys_of(x: Expr) -> list[bool]:
    """Return, for each text of `texts_of(X)`, in its order, whether it is a key (and not an index)."""
    if x.is_copy:
        return [True]
    return [*(one for arg in x.args for one in are_keys_of(arg)), *(False for _ in _places(x))]


def with_texts(x: Expr, texts: Iterator[str]) -> Expr:
    """Return X with the next of TEXTS, in their order, in place of each text of `texts_of(X)`: its keys, and the
    indices of `select` and `slice`, which become texts. X is not changed.
    """
    if x.is_copy:
        return replace(x, params=(next(texts),))
    args = tuple(with_texts(arg, texts) for arg in x.args)
    new = {at: next(texts) for at in _places(x)}
    return replace(x, args=args, params=tuple(new.get(at, param) for at, param in enumerate(x.params)))


def _places(x: Expr) -> tuple[int, ...]:
    """Return which parameters of X are indices into a tensor, by their places: those of `select` and `slice`; () for
    other operations.
    """
    return {"select": (1,), "slice": (1, 2)}.get(x.op, ())


# ---------------------------------------------------------------------------------------------- entries to steps


def steps_of(entries: Iterable[Entry]) -> list[Step]:
    """Return the steps for ENTRIES that have an expression, and for counters without one, which are zeros. Others are
    left out. A step is at the place of its first entry. A guess has a comment for each of its doubts.

    Entries that differ only in the end of their keys, behind the last number, become one step with several names, if
    the end is the same in the source and they have the same comments: `a.0.w` = `b.0.w` and `a.0.v` = `b.0.v`. Copies
    may have any end, other expressions only `weight` and `bias` (`_general`).
    """
    found: dict[Any, Step] = {}
    for entry in entries:
        comments = tuple(f"A guess: {doubt}" for doubt in entry.doubts) if entry.status == "guessed" else ()
        if entry.expr is None:
            if is_counter(entry.target):
                found[entry.target] = Step(entry.target, None, zeros=(entry.shape, entry.dtype))
            continue
        step = _general(entry, comments)
        key = (step.target, step.expr, step.comments, bool(step.names))
        before = found.get(key)
        found[key] = step if before is None else replace(before, names=before.names + step.names)
    return list(found.values())


def _general(entry: Entry, comments: tuple[str, ...]) -> Step:
    """Return the step for ENTRY, which has an expression, with COMMENTS. It has one name or none; entries that differ
    only in it can share a step.

    For a copy, the name is the common end of the two keys (`_heads`): `w` with `a.0.` and `b.0.` before it for `a.0.w`
    made of `b.0.w`; "" if they have none. For another expression, it is `weight` or `bias`, if that is the last
    component of the key of the target and of all keys that it reads; else `names` is ().
    """
    expr = entry.expr
    assert expr is not None
    if expr.is_copy:
        own, theirs = _heads(entry.target, expr.key)
        return Step(own, expr.rename(lambda _: theirs), (entry.target[len(own) :],), comments=comments)
    leaf = entry.target.rpartition(".")[2]
    keys = expr.keys()
    if leaf in ("weight", "bias") and keys and all(key.endswith(f".{leaf}") for key in keys):
        short = expr.rename(lambda key: key.removesuffix(leaf))
        return Step(entry.target.removesuffix(leaf), short, (leaf,), comments=comments)
    return Step(entry.target, expr, comments=comments)


def _heads(target: str, source: str) -> tuple[str, str]:
    """Return (beginning of TARGET, beginning of SOURCE): the two keys without their common end, which is of whole
    components and has no number (`_NUMBER`): ("a.0.", "b.0.") for `a.0.w` and `b.0.w`; ("", "") for equal keys without
    numbers. If they have no such end (`a.w` and `a.v`, or `a.0` and `b.0`), the whole keys.
    """
    own, theirs = different(target, source)
    if len(own) > len(target):
        return target, source
    end = target[len(own) :]
    numbers = list(_NUMBER.finditer(end))
    if numbers and numbers[-1].end() < len(end):
        cut = numbers[-1].end() + 1
        own, theirs = own + end[:cut], theirs + end[:cut]
    elif numbers:
        return target, source
    return own, theirs


# ------------------------------------------------------------------------------------------------- steps to loops


def loops_of(steps: Sequence[Step]) -> list[Loop]:
    """Return loops of those STEPS that differ only in numbers (`_alike`, `_folded`), in the order of their first steps.
    Loops over the same rows become one, also if others are between them, if the keys of their targets begin with the
    same text, up to the first number that changes in the loop; the steps in a loop are in the order of STEPS.
    Successive steps in no loop become one `Loop` without rows.
    """
    loops: dict[Any, Loop] = {}
    for loop in [loop for group in _alike(steps) for loop in _folded(group)]:
        own = loop.steps[0][1][0]
        key = (loop.rows, loop.targets, own[0] if len(own) > 1 else "") if loop.rows else len(loops)
        loops[key] = replace(loop, steps=loops[key].steps + loop.steps) if key in loops else loop
    place = {id(step): at for at, step in enumerate(steps)}
    ordered = [
        replace(loop, steps=tuple(sorted(loop.steps, key=lambda one: place[id(one[0])]))) for loop in loops.values()
    ]
    ordered.sort(key=lambda loop: place[id(loop.steps[0][0])])
    out: list[Loop] = []
    for loop in ordered:
        if out and not loop.rows and not out[-1].rows:
            out[-1] = replace(loop, steps=out[-1].steps + loop.steps)
        else:
            out.append(loop)
    return out


def _alike(steps: Sequence[Step]) -> list[list[Step]]:
    """Return STEPS in groups that differ only in the numbers (`_NUMBER`) in their texts: the words around these, the
    operations and their other parameters, names, zeros and comments are equal. The groups are in the order of their
    first steps.
    """
    alike: dict[Any, list[Step]] = defaultdict(list)
    for step in steps:
        shape = None if step.expr is None else _shape(step.expr)
        around = tuple(tuple(_NUMBER.split(text)[::2]) for text in step.texts)
        alike[around, shape, step.names, step.zeros, step.comments].append(step)
    return list(alike.values())


def _shape(x: Expr) -> Any:
    """Return the operations of X and their other parameters than keys and indices: a value that is equal for
    expressions that differ only in these. None for a copy.
    """
    if x.is_copy:
        return None
    places = _places(x)
    params = tuple(None if at in places else param for at, param in enumerate(x.params))
    return x.op, params, tuple(map(_shape, x.args))


def _folded(steps: list[Step]) -> list[Loop]:
    """Return STEPS, which differ only in numbers, as loops, in the first way that is possible:

    1. a single step as a `Loop` without rows;
    2. one loop over the changing numbers of the target, from which the others follow (`_over_targets`);
    3. if the target has several changing numbers: the steps with each value of the first of them, again in these ways;
    4. one loop over a table, for three or more steps with at most three changing numbers on both sides together;
    5. each step alone.
    """
    rows = [tuple(int(n) for text in step.texts for n in _NUMBER.split(text)[1::2]) for step in steps]
    if len(steps) == 1:
        return [Loop((), 0, ((steps[0], _templates(steps[0], rows[0], {})),))]
    own = len(_NUMBER.split(steps[0].target)[1::2])
    varying = [at for at in range(len(rows[0])) if len({row[at] for row in rows}) > 1]
    targets = [at for at in varying if at < own]
    loop = _over_targets(steps[0], rows, targets, varying[len(targets) :])
    if loop is not None:
        return [loop]
    if len(targets) > 1:
        apart: dict[int, list[Step]] = defaultdict(list)
        for step, row in zip(steps, rows, strict=True):
            apart[row[targets[0]]].append(step)
        return [loop for some in apart.values() for loop in _folded(some)]
    if len(steps) >= _LEAST_ROWS and len(varying) <= _MOST_VARIABLES:
        return [_over_table(steps[0], rows, varying)]
    return [loop for step in steps for loop in _folded([step])]


def _over_targets(first: Step, rows: Sequence[Numbers], targets: Sequence[int], others: Sequence[int]) -> Loop | None:
    """Return a loop over the numbers of the target that change, from which the other numbers follow (`_rule`). None if
    more than three numbers of the target change, or none does, or if some other number does not follow.

    Args:
        first: the first of the steps that differ only in numbers.
        rows: for each step, the numbers in its texts.
        targets: places in the rows of the changing numbers of the target.
        others: places of the other changing numbers.
    """
    if not 0 < len(targets) <= _MOST_VARIABLES:
        return None
    inner = [tuple(row[at] for at in targets) for row in rows]
    places = _numbers_of_places(first)
    numbers = {at: _variable(i, len(targets)) for i, at in enumerate(targets)}
    for at in others:
        rule = _rule(inner, [row[at] for row in rows], is_place=at in places)
        if rule is None:
            return None
        numbers[at] = rule
    return Loop(tuple(inner), len(targets), ((first, _templates(first, rows[0], numbers)),))


def _over_table(first: Step, rows: Sequence[Numbers], varying: Sequence[int]) -> Loop:
    """Return a loop over a table of the numbers at the places VARYING of ROWS, a row for each step, with one variable
    for places whose numbers are equal in each row. FIRST is the first step; `targets` of the loop is 0.
    """
    columns = {at: tuple(row[at] for row in rows) for at in varying}
    table = list(dict.fromkeys(columns.values()))
    numbers = {at: _variable(table.index(column), len(table)) for at, column in columns.items()}
    return Loop(tuple(zip(*table, strict=True)), 0, ((first, _templates(first, rows[0], numbers)),))


def _variable(at: int, of: int) -> tuple[int, Numbers]:
    """Return (constant, factors) of the variable AT of a loop with OF variables: (0, (0, 1)) for 1 of 2."""
    return 0, tuple(int(at == k) for k in range(of))


def _numbers_of_places(step: Step) -> set[int]:
    """Return which of the numbers in the texts of STEP, counted through all texts from 0, are indices into a tensor."""
    are_keys = [True] if step.expr is None else [True, *are_keys_of(step.expr)]
    found, at = set(), 0
    for text, is_key in zip(step.texts, are_keys, strict=False):
        count = len(_NUMBER.split(text)) // 2
        if not is_key:
            found |= set(range(at, at + count))
        at += count
    return found


def _rule(rows: Sequence[Numbers], values: Sequence[int], *, is_place: bool) -> tuple[int, Numbers] | None:
    """Return (constant, factors), integers of which none is negative, so that each of VALUES is the constant plus the
    sum of the factors times the numbers in its row of ROWS: (1, (2,)) for the rows (0,), (1,) and the values 1, 3. None
    if there are no such integers, or if for some column no two rows differ in that column alone.

    Some rule fits any two different values, by chance. Therefore, if VALUES are indices into a tensor (IS_PLACE) and
    are only two different numbers, the result is None unless VALUES equal the numbers in one column of ROWS.
    """
    width = len(rows[0])
    factors = []
    for at in range(width):
        pairs = _neighbours(rows, values, at)
        if pairs is None:
            return None
        (low, first), (high, second) = pairs
        factor, rest = divmod(second - first, high - low)
        if rest:
            return None
        factors.append(factor)
    constant = values[0] - sum(f * n for f, n in zip(factors, rows[0], strict=True))
    fits = all(
        value == constant + sum(f * n for f, n in zip(factors, row, strict=True))
        for row, value in zip(rows, values, strict=True)
    )
    chance = is_place and len(set(values)) == 2 and (constant, sum(factors)) != (0, 1)
    return (constant, tuple(factors)) if fits and not chance and constant >= 0 and min(factors) >= 0 else None


def _neighbours(
    rows: Sequence[Numbers], values: Sequence[int], at: int
) -> tuple[tuple[int, int], tuple[int, int]] | None:
    """Return two of ROWS that differ only in the number at the place AT, in their order, each as (that number, its
    value in VALUES). Of several such pairs, the one whose second row comes first counts. None if there are none.
    """
    seen: dict[Numbers, tuple[int, int]] = {}
    for row, value in zip(rows, values, strict=True):
        rest = (*row[:at], *row[at + 1 :])
        if rest in seen:
            return seen[rest], (row[at], value)
        seen[rest] = (row[at], value)
    return None


def _templates(step: Step, row: Numbers, numbers: dict[int, tuple[int, Numbers]]) -> tuple[Template, ...]:
    """Return each of the texts of STEP as a template: ("h.", (1, (1,)), ".w") for `h.3.w`, if its number is 1 plus the
    variable of the loop. ROW has the values of all numbers in the texts, counted through all of them; NUMBERS has place
    in ROW -> (constant, factors) for those that change in a loop. The other numbers become part of the literal text.
    """
    found, at = [], 0
    for text in step.texts:
        parts: list[str | tuple[int, Numbers]] = [""]
        for i, piece in enumerate(_NUMBER.split(text)):
            if i % 2 == 0:
                parts[-1] = str(parts[-1]) + piece
                continue
            if at in numbers:
                parts += [numbers[at], ""]
            else:
                parts[-1] = f"{parts[-1]}{row[at]}"
            at += 1
        found.append(tuple(parts))
    return tuple(found)


def written(template: Template, number: Callable[[int, Numbers], str], literal: Callable[[str], str]) -> str:
    """Return TEMPLATE as the inside of an f-string: NUMBER returns the code of a number from (constant, factors), which
    is put in braces, LITERAL the code of the other texts.
    """
    return "".join(literal(part) if isinstance(part, str) else f"{{{number(*part)}}}" for part in template)
