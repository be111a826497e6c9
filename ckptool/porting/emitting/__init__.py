"""Write a port as Python that needs only torch: one function `convert`, without ckptool.

The code does the same as `Mapping.apply`, but raises an error for tensors of the checkpoint that are in no step and not
left behind, and for other sizes of what it takes apart or rearranges. Its steps are in the order of the model, except
that a loop is at the place of its first layer.
"""

from __future__ import annotations

import contextlib
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from ...disk.files import StrPath
from ...disk.targets import write_side_output
from ...errors import counted, printable
from ...keys import collapse
from ..expression import OPERATIONS, Expr, of, torch_helpers, torch_text
from ..mapping import Mapping
from .lines import WIDTH, laid_out
from .loops import Loop, Numbers, Step, Template, are_keys_of, loops_of, steps_of, with_texts, written

#: Operations whose result is new memory; others give views.
_NEW_MEMORY = frozenset({"cat", "stack", "zeros"})
#: Operations that do the same for tensors of any sizes. Others have numbers that belong to the sizes of this port.
_OF_ANY_SIZE = frozenset(
    """
    transpose permute cat stack add mul shift flip nonzero norm weight_norm spectral_norm lora lora_alpha fold_weight
    fold_bias
    """.split()
)


def python_of(mapping: Mapping, command: str = "") -> str:
    """Return MAPPING as the text of a Python module. COMMAND is the command that made the mapping, which the text
    names; without it, the text names none.
    """
    return _Module(mapping, command).text()


def emit(mapping: Mapping, path: StrPath, command: str = "", *, at: str = "", overwrite: bool = False) -> None:
    """Write MAPPING as a Python module to the file PATH. A file that already holds the same text is left as it is.

    Args:
        mapping: the port.
        path: the file to write.
        command: the command that made it, which the code names; "" for the call in Python.
        at: where the weights are in the file, which the code says, if MAPPING does not know it.
        overwrite: replace an existing file, if it is a module that was written so, too.
    Raises:
        OutputExists, Unwritable: the file may not be written there.
    """
    text = python_of(replace(mapping, at=mapping.at or at), command or "ckptool.transfer(source, model).emit(path)")
    with contextlib.suppress(OSError, UnicodeDecodeError):
        if Path(path).read_text(encoding="utf-8") == text:
            return
    write_side_output("converter", path, text, overwrite=overwrite)


_OWN = '''
def own(x: Tensor) -> Tensor:
    """Return x with memory of its own: of a part, all of the whole would be saved."""
    if x.is_contiguous() and x.untyped_storage().nbytes() == x.nbytes:
        return x
    return x.clone(memory_format=torch.contiguous_format)
'''
#: What computes is given this decorator: operations do it so.
IN_FLOAT32 = '''
def in_float32(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compute in float32, float64 or a complex type, and round once to the widest type."""

    @functools.wraps(compute)
    def computed(*given: Any) -> Tensor:
        types = [x.dtype for x in given if isinstance(x, Tensor)]
        widest = max(
            types,
            key=lambda kind: (kind.is_complex, kind.is_floating_point, kind.itemsize),
        )
        wide = torch.promote_types(widest, torch.float32)
        wider = [x.to(wide) if isinstance(x, Tensor) else x for x in given]
        return compute(*wider).to(widest)

    return computed
'''
_TAKE = """
    def take(key: str) -> Tensor:
        if key not in state_dict:
            raise KeyError(f"the checkpoint has no {key!r}")
        used.add(key)
        return state_dict[key]
"""
_MOVE = '''
    def move(new: str, old: str, *names: str) -> None:
        """Take tensors of a module as they are."""
        for name in names:
            out[new + name] = take(old + name)
'''
_CHECK_SIZES = '''
def check_sizes(state_dict: Mapping[str, Tensor]) -> None:
    """Refuse tensors of a larger or smaller model, which would be cut in wrong places."""
    for key, x in state_dict.items():
        known = SIZES.get(key, SIZES.get(re.sub(r"\\b\\d+\\b", "*", key)))
        if known is not None and tuple(x.shape) != known:
            raise ValueError(f"{key} is {tuple(x.shape)}, and this code is for {known}")
'''
_FLAT = """
    # tensors of dicts in it are known as NAME/KEY
    state_dict = dict(flat(state_dict))
"""
_FLAT_HELPER = '''
def flat(tree: dict[str, Any], path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Give the tensors of dicts in dicts with their paths, and others with their keys."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from flat(value, f"{path}{key}/")
        else:
            yield f"{path}{key}", value
'''


class _Module:
    """The text of a Python module that does what MAPPING says.

    Attributes:
        mapping: the port.
        command: the command that made it, "" if the text names none.
        exprs: the expressions of the mapping.
        like: a key that the mapping reads, of whose type zeros are made; "" if it reads none.
        sizes: key, or key with "*" for its numbers -> sizes of the tensors of the source that the mapping takes apart
            or rearranges (`_sizes`).
        body: the lines that make the tensors, inside of `convert`.
    """

    def __init__(self, mapping: Mapping, command: str) -> None:
        self.mapping, self.command = mapping, command
        self.exprs = [entry.expr for entry in mapping.entries if entry.expr is not None]
        self.like = next((key for x in self.exprs for key in x.keys()), "")  # noqa: SIM118 - a method of ours
        self.sizes = _sizes(mapping)
        self.body = [line for loop in loops_of(steps_of(mapping.entries)) for line in self._loop(loop)]

    def text(self) -> str:
        """Return the whole module as text: docstring, imports, the pattern of keys that are left behind, the sizes of
        tensors that are taken apart or rearranged, `convert`, and the helpers that it calls. An import or helper that
        nothing uses is left out.
        """
        helpers = {name: code for x in self.exprs for name, code in torch_helpers(x).items() if self._calls(name)}
        code = [*helpers.values()]
        views = any(not x.is_copy and x.op not in _NEW_MEMORY for x in self.exprs)
        nested = any("/" in key for x in self.exprs for key in x.keys())  # noqa: SIM118
        computes = any("@in_float32" in one for one in code)
        below = (
            [_FLAT_HELPER] * nested
            + [_CHECK_SIZES] * bool(self.sizes)
            + [_OWN] * views
            + [IN_FLOAT32] * computes
            + [f"\n{one}" for one in code]
        )
        converting = list(self._convert(nested, views))
        lines = [*self._docstring(), "from __future__ import annotations", "", *self._standard(nested, computes)]
        if any("torch." in one for one in (*below, *converting) if not one.lstrip().startswith("#")):
            lines.append("import torch")
        if any("F." in one for one in code):
            lines.append("import torch.nn.functional as F")
        lines += ["from torch import Tensor", *self._left_behind(), *self._known_sizes(), "", *converting]
        return "\n".join(lines) + "\n" + "".join(f"\n{one}" for one in below)

    def _standard(self, nested: bool, computes: bool) -> list[str]:
        """Return the lines that import from Python's library, with an empty line behind them; [] if there are none.
        `functools` and `Callable` are for a module that computes in float32 (COMPUTES, `IN_FLOAT32`), `Iterator` for
        one that flattens dicts (NESTED, `_FLAT_HELPER`), `Any` for both, `Mapping` for one that checks sizes, and `re`
        for that and for `LEFT_BEHIND`, if the mapping has unused keys.
        """
        sized = bool(self.sizes)
        lines = ["import functools"] * computes + ["import re"] * bool(self.mapping.unused or sized)
        abstract = ["Callable"] * computes + ["Iterator"] * nested + ["Mapping"] * sized
        lines += [f"from collections.abc import {', '.join(abstract)}"] * bool(abstract)
        lines += ["from typing import Any"] * (computes or nested)
        return [*lines, ""] if lines else []

    def _calls(self, name: str) -> bool:
        """Return whether the body calls the helper of the operation NAME, which an expression of the mapping has: True
        for all but `add`, whose helper `total` a sum of only two tensors does not call.
        """
        return name != "add" or any("total(" in line for line in self.body)

    def _docstring(self) -> Iterator[str]:
        """Yield the lines of the module's docstring, and an empty line: what it converts, the command (if there is
        one), how many tensors are guesses, and patterns of the keys that the checkpoint has nothing for. The last two
        are left out if there are no such entries.
        """
        source, target = (_plain(text) for text in (self.mapping.source or "a checkpoint", self.mapping.target))
        yield f'"""Convert weights of {source} to `{target}`.'
        yield ""
        if self.command:
            yield "Made by:"
            yield ""
            yield f"    {_plain(self.command, 2000)}"
        guessed, left = self.mapping.having("guessed"), self.mapping.having("unmapped")
        if guessed:
            yield from ([""] if self.command else [])
            yield f"Not certain: {counted(len(guessed), 'tensor')}, marked below as a guess."
        if left:
            yield from ([""] if self.command or guessed else [])
            patterns = ", ".join(_plain(c.pattern) for c in collapse([(e.target, None) for e in left]))
            yield from _wrapped(
                f"Not made here, since the checkpoint has nothing for them; the model keeps its own values of: "
                f"{patterns}.",
                WIDTH,
            )
        yield '"""'
        yield ""

    def _left_behind(self) -> Iterator[str]:
        """Yield the lines that set `LEFT_BEHIND`, the regular expression of the keys of the source that nothing reads,
        in one line or, from 48 characters on, with a line for each pattern (`_patterns`). No lines without such keys.
        """
        if not self.mapping.unused:
            return
        yield ""
        yield "#: Tensors of the checkpoint that the model has no place for."
        patterns = _patterns(self.mapping.unused, list(self.mapping.source_shapes))
        whole = "|".join(patterns)
        if len(whole) < WIDTH - 40:
            yield f"LEFT_BEHIND = re.compile({_raw(whole)})"
            return
        yield "LEFT_BEHIND = re.compile("
        yield '    "|".join('
        yield "        ["
        yield from (f"            {_raw(one)}," for one in patterns)
        yield "        ]"
        yield "    )"
        yield ")"

    def _known_sizes(self) -> Iterator[str]:
        """Yield the lines that set `SIZES`, the sizes of what is taken apart or rearranged. No lines if nothing is."""
        if not self.sizes:
            return
        yield ""
        yield "#: Sizes of the tensors that are taken apart or rearranged here; * is any number."
        yield "SIZES = {"
        for key, sizes in self.sizes.items():
            yield from laid_out(f"{_quoted(key)}: {sizes},", 4)
        yield "}"

    def _convert(self, nested: bool, views: bool) -> Iterator[str]:
        """Yield the lines of the function `convert`: its docstring, a call of `check_sizes` (if there are `sizes`), its
        inner functions `take` and (if the body copies several tensors at once) `move`, the body, and a check that
        raises ValueError for keys of the checkpoint that are neither read nor in `LEFT_BEHIND`.

        NESTED: keys of the source lie in dicts inside of the state dict, which is made flat first. VIEWS: some results
        are views of tensors of the source, so that all results get memory of their own.
        """
        kind = "dict[str, Any]" if nested else "dict[str, Tensor]"
        yield ""
        yield f"def convert(state_dict: {kind}) -> dict[str, Tensor]:"
        yield f'    """Return the state dict of `{_plain(self.mapping.target)}`, made of a checkpoint\'s.'
        yield ""
        if self.mapping.at:
            under = "" if nested else f" under {_plain(self.mapping.at)!r}"
            yield "    Args:"
            yield f"        state_dict: what the file holds{under}."
            yield ""
        yield "    Raises:"
        yield "        KeyError: a tensor is not there."
        yield "        ValueError: there are tensors that nothing is known of" + (
            ", or of other sizes." if self.sizes else "."
        )
        yield '    """'
        if nested:
            yield from _FLAT.strip("\n").split("\n")
        if self.sizes:
            yield "    check_sizes(state_dict)"
        yield "    out: dict[str, Tensor] = {}"
        yield "    used: set[str] = set()"
        yield from _TAKE.rstrip("\n").split("\n")
        if any(line.lstrip().startswith("move(") for line in self.body):
            yield from _MOVE.rstrip("\n").split("\n")
        yield ""
        yield from self.body
        yield ""
        if self.mapping.unused:
            yield "    unknown = ["
            yield "        key for key in state_dict if key not in used and not LEFT_BEHIND.fullmatch(key)"
            yield "    ]"
        else:
            yield "    unknown = [key for key in state_dict if key not in used]"
        yield "    if unknown:"
        yield '        raise ValueError(f"nothing is known of {len(unknown)} tensors: {unknown[:5]}")'
        yield "    return {key: own(tensor) for key, tensor in out.items()}" if views else "    return out"

    def _loop(self, loop: Loop) -> Iterator[str]:
        """Yield the lines of LOOP: its `for` lines, and in them its groups of steps (`_tables`), each under its
        comments, unless the group before it has the same ones.
        """
        names, indent = _names(loop), 4
        for line in _heads(loop, names):
            yield from laid_out(line, indent)
            indent += 4
        said: tuple[str, ...] = ()
        for some in _tables(loop.steps):
            comments = some[0][0].comments
            for comment in comments if comments != said else ():
                yield from (" " * indent + line for line in _wrapped(comment, WIDTH - indent, "# "))
            said = comments
            yield from self._group(some, names, indent)

    def _group(self, some: Sequence[_Templated], names: Sequence[str], indent: int) -> Iterator[str]:
        """Yield the lines of SOME, a group of `_tables`, indented by INDENT. NAMES are the variables of the loop around
        them. The `names` of a step are the ends that its keys have on both sides, such as "weight" and "bias". The
        first of these that fits:

        - If the first step has an operation and several `names`: a loop over these names, with the lines of each step
          in it.
        - If there are three or more steps (copies then): a loop over a table of the ends of their keys on both sides
          (`_apart`), with one copy in it.
        - Else the lines of each step (`_step`), one after the other.
        """
        step = some[0][0]
        if step.expr is not None and not step.expr.is_copy and len(step.names) > 1:
            yield " " * indent + f"for name in ({', '.join(map(_quoted, step.names))}):"
            for one, templates in some:
                assert one.expr is not None
                yield from self._make(one.expr, self._texts(one.expr, templates, names, "{name}"), indent + 4)
        elif len(some) < _LEAST_IN_A_TABLE:
            for one, templates in some:
                yield from self._step(one, templates, names, indent)
        else:
            rows = [_apart(templates) for _, templates in some]
            yield " " * indent + "for new, old in ("
            for own, theirs in ((tails[0], tails[1]) for _, tails in rows):
                *most, last = laid_out(f"({_quoted(own)}, {_quoted(theirs)})", indent + 4)
                yield from most
                yield f"{last},"
            yield " " * indent + "):"
            yield from self._move(step, rows[0][0], names, indent + 4, ("{new}", "{old}"))

    def _texts(
        self, x: Expr, templates: Sequence[Template], names: Sequence[str], hole: str = "", end: str = ""
    ) -> list[str]:
        """Return the Python code of each of TEMPLATES, in their order: the key of the target, and then the texts of X
        (see `texts_of`). Keys become strings (`f"h.{n}.q.weight"`), indices numbers (`3 * n`).

        NAMES are the variables of the loop; HOLE is a placeholder such as `{name}` after each key, END a text after
        that.
        """
        are_keys = [True, *are_keys_of(x)]
        return [
            _string(template, names, hole, end) if is_key else _number(template, names)
            for template, is_key in zip(templates, are_keys, strict=True)
        ]

    def _step(self, step: Step, templates: Sequence[Template], names: Sequence[str], indent: int) -> Iterator[str]:
        """Yield the lines of STEP, indented by INDENT: zeros (`torch.tensor(0)` for one int64, else `torch.zeros`), a
        copy (of several tensors if it has several `names`, the ends of its keys), or another expression, which has at
        most one of `names`. TEMPLATES are its texts, NAMES the variables of the loop.
        """
        if step.expr is None:
            shape, dtype = step.zeros or ((), "int64")
            is_counter = (shape, dtype) == ((), "int64")
            zero = "torch.tensor(0)" if is_counter else f"torch.zeros({shape}, dtype=torch.{dtype})"
            yield from laid_out(f"out[{_string(templates[0], names)}] = {zero}", indent)
        elif step.expr.is_copy:
            yield from self._move(step, templates, names, indent)
        else:
            end = step.names[0] if step.names else ""
            yield from self._make(step.expr, self._texts(step.expr, templates, names, end=end), indent)

    def _make(self, expr: Expr, texts: Sequence[str], indent: int) -> Iterator[str]:
        """Yield the lines that set a tensor of the target to EXPR, indented by INDENT. TEXTS are Python code: of the
        tensor's key, and then what stands in EXPR for each of its keys and indices, in their order (`texts_of`). Each
        key is read with `take`.
        """
        x = with_texts(expr, iter(texts[1:]))
        yield from self._assign(f"out[{texts[0]}]", x, lambda text: f"take({text})", indent)

    def _assign(self, left: str, x: Expr, name: Callable[[str], str], indent: int) -> Iterator[str]:
        """Yield the lines of the statement `LEFT = X`, indented by INDENT. NAME returns the code of a key.

        If the statement is longer than a line and the outermost operation of X is written behind its only argument
        (`x.mT`, `x[0]`, `x * 2.0`), a statement before it sets a variable `x` to that argument, in turn split if it is
        too long. A statement that is still too long is broken inside of brackets (`laid_out`). If even the first line
        of that is too long, because of the key in LEFT, there are two statements, `x = X` and `LEFT = x`.
        """
        like = f"take({_quoted(self.like)})" if self.like else "torch.empty(0)"
        made = f"{left} = {torch_text(x, name, like)}"
        operation = None if x.is_copy else OPERATIONS[x.op]
        if len(made) + indent > WIDTH and operation and len(x.args) == 1 and not operation.calls:
            yield from self._assign("x", x.args[0], name, indent)
            made = f"{left} = {torch_text(Expr(x.op, (of('x'),), x.params), str, like)}"
        lines = list(laid_out(made, indent))
        if left != "x" and len(lines[0]) > WIDTH:  # the key alone is long
            yield from laid_out(f"x = {made.removeprefix(f'{left} = ')}", indent)
            lines = [" " * indent + f"{left} = x"]
        yield from lines

    def _move(
        self,
        step: Step,
        templates: Sequence[Template],
        names: Sequence[str],
        indent: int,
        tails: tuple[str, str] = ("", ""),
    ) -> Iterator[str]:
        """Yield the lines of STEP, which copies tensors: one assignment for one name, else a call of `move` with the
        names. TEMPLATES are the keys of target and source, NAMES the variables of the loop, TAILS a placeholder after
        each of the two keys, such as `{new}` and `{old}`, or "".
        """
        alone = len(step.names) == 1
        end = step.names[0] if alone else ""
        own, theirs = (_string(template, names, tail, end) for template, tail in zip(templates, tails, strict=True))
        if alone:
            yield from laid_out(f"out[{own}] = take({theirs})", indent)
        else:
            listed = ", ".join(_quoted(name) for name in step.names)
            yield from laid_out(f"move({own}, {theirs}, {listed})", indent)


def _sizes(mapping: Mapping) -> dict[str, tuple[int, ...]]:
    """Return key -> sizes of the tensors of the source that `check_sizes` of the code compares: those that an
    expression of MAPPING reads in which some operation has numbers that belong to these sizes (`slice`, `reshape`; all
    but `_OF_ANY_SIZE`). Tensors whose sizes MAPPING does not know are left out. If all tensors of the source whose keys
    differ only in numbers have one size, these keys are one key, with "*" for each number.
    """
    exprs = [entry.expr for entry in mapping.entries if entry.expr is not None]
    read = (key for x in exprs if not _OF_ANY_SIZE.issuperset(x.operations()) for key in x.keys())  # noqa: SIM118
    keys = [key for key in dict.fromkeys(read) if key in mapping.source_shapes]
    alike: dict[str, set[tuple[int, ...]]] = {_starred(key): set() for key in keys}
    for key, shape in mapping.source_shapes.items():
        if (sizes := alike.get(_starred(key))) is not None:
            sizes.add(tuple(shape))
    return {_starred(key) if len(alike[_starred(key)]) == 1 else key: tuple(mapping.source_shapes[key]) for key in keys}


def _starred(key: str) -> str:
    """Return KEY with "*" for each of its numbers, as `check_sizes` of the code does."""
    return re.sub(r"\b\d+\b", "*", key)


#: Modules with other names, but tensors of the same ones, from which on they are listed in a table.
_LEAST_IN_A_TABLE = 3
_Templated = tuple[Step, tuple[Template, ...]]


def _tables(steps: Sequence[_Templated]) -> list[list[_Templated]]:
    """Return STEPS, each with its templates, in groups, in the order of their first steps. A group may have steps that
    are not neighbours; all its steps have the same comments.

    Copies are a group if they have the same `names` (such as "weight" and "bias"), the same beginning of the target's
    key up to the last number (`_apart`), and the same one of the source's key, and if text follows that in both keys:
    they can be rows of one table, as `h.{n}.q.` from `layers.{n}.attn.query.`, and `h.{n}.k.` from
    `layers.{n}.attn.key.`. Other expressions are a group if they have the same two or more `names`: they can share a
    loop over these. Each other step is a group of its own.
    """
    groups: dict[Any, list[_Templated]] = {}
    for at, (step, templates) in enumerate(steps):
        key: Any = at
        if step.expr is not None and step.expr.is_copy:
            heads, tails = _apart(templates)
            if all(tails):
                key = (step.names, step.comments, heads)
        elif len(step.names) > 1:
            key = (step.names, step.comments)
        groups.setdefault(key, []).append((step, templates))
    return list(groups.values())


def _apart(templates: Sequence[Template]) -> tuple[tuple[Template, ...], tuple[str, ...]]:
    """Return (beginnings, ends) of TEMPLATES, a tuple of each, cut after the last number of a loop and the dots or
    slashes behind it: ("h.", n, ".") and "attn.q." for `h.{n}.attn.q.`. A template without such numbers is all end,
    and its beginning is ("",).
    """
    heads, tails = [], []
    for template in templates:
        last = str(template[-1])
        cut = len(last) - len(last.lstrip("./")) if len(template) > 1 else 0
        heads.append((*template[:-1], last[:cut]))
        tails.append(last[cut:])
    return tuple(heads), tuple(tails)


# ------------------------------------------------------------------------------------------------------- loops


def _names(loop: Loop) -> list[str]:
    """Return the variables of LOOP: "n" for one number, else "i", "j", "k" for numbers of the target, or "n", "m", "p"
    for a table of numbers of both sides; [] if LOOP has no numbers.
    """
    width = len(loop.rows[0]) if loop.rows else 0
    return ["n"] if width == 1 else list("ijk" if loop.targets else "nmp")[:width]


def _heads(loop: Loop, names: Sequence[str]) -> list[str]:
    """Return the `for` lines that begin LOOP, without indentation, the outermost first; [] if LOOP has no numbers.
    NAMES are its variables.

    One variable has a line alone. Several numbers of the target have a line each if all their combinations are there.
    Two of them also have two lines if the second runs from 0 up to a count for each value of the first
    (`_heads_of_counts`). Else, and for a table of both sides with several variables, one line runs over all rows.
    """
    rows = loop.rows
    if not rows:
        return []
    columns = [list(dict.fromkeys(row[at] for row in rows)) for at in range(len(names))]
    if len(names) == 1:
        return [f"for {names[0]} in {_sequence([row[0] for row in rows])}:"]
    if loop.targets and prod(map(len, columns)) == len(rows):
        return [f"for {name} in {_sequence(column)}:" for name, column in zip(names, columns, strict=True)]
    by_count = _heads_of_counts(rows) if loop.targets and len(names) == 2 else []
    return by_count or [f"for {', '.join(names)} in ({', '.join(str(row) for row in rows)}):"]


def _heads_of_counts(rows: Sequence[Numbers]) -> list[str]:
    """Return the two lines of a loop over i, and of one over j from 0 up to a count for each i, which run over ROWS,
    the pairs of i and j: `for i, count in enumerate((2, 3)):`, or over pairs (i, count) if i does not grow by 1. [] if
    for some i, j does not run from 0 upwards without a gap.
    """
    inner: dict[int, list[int]] = {}
    for i, j in rows:
        inner.setdefault(i, []).append(j)
    if any(numbers != list(range(len(numbers))) for numbers in inner.values()):
        return []
    first = next(iter(inner))
    if list(inner) == list(range(first, first + len(inner))):
        counts = ", ".join(str(len(numbers)) for numbers in inner.values())
        start = f", start={first}" if first else ""
        return [f"for i, count in enumerate(({counts}){start}):", "for j in range(count):"]
    pairs = ", ".join(f"({i}, {len(numbers)})" for i, numbers in inner.items())
    return [f"for i, count in ({pairs}):", "for j in range(count):"]


def _sequence(numbers: Sequence[int]) -> str:
    """Return NUMBERS as Python code, in their order: a `range`, if they are two or more with equal steps upwards
    (`range(3)`, `range(2, 7, 2)` for 2, 4, 6), else a tuple (`(5,)`).
    """
    if len(numbers) > 1:
        step = numbers[1] - numbers[0]
        if step > 0 and list(numbers) == list(range(numbers[0], numbers[-1] + 1, step)):
            end = numbers[-1] + 1
            first = f"{numbers[0]}, " if numbers[0] or step > 1 else ""
            return f"range({first}{end}{f', {step}' if step > 1 else ''})"
    return f"({', '.join(map(str, numbers))}{',' * (len(numbers) == 1)})"


# -------------------------------------------------------------------------------------------------------- texts


def _string(template: Template, names: Sequence[str], hole: str = "", end: str = "") -> str:
    """Return TEMPLATE, the placeholder HOLE such as `{name}`, and the text END, one after the other, as a Python
    string: an f-string if it has numbers or HOLE, else a plain one. If HOLE is all there is, the name in it alone
    (`name`). NAMES are the variables of the loop.
    """
    template = template if hole else (*template[:-1], f"{template[-1]}{end}")
    if len(template) == 1 and not hole:
        return _quoted(str(template[0]))
    if template == ("",) and hole and not end:
        return hole[1:-1]
    inside = written(
        template, lambda constant, factors: _sum(constant, factors, names), lambda t: _escaped(t, braces=True)
    )
    return f'f"{inside}{hole}{_escaped(end, braces=True) if hole else ""}"'


def _number(template: Template, names: Sequence[str]) -> str:
    """Return TEMPLATE, a number that may depend on the variables NAMES of a loop, as Python code."""
    return "".join(part if isinstance(part, str) else _sum(*part, names) for part in template)


def _sum(constant: int, factors: Numbers, names: Sequence[str]) -> str:
    """Return the sum of each of the variables NAMES times its one of FACTORS, and CONSTANT, as Python code without
    terms that are 0: "3 * i + j + 1" for 1, (3, 1) and "i", "j"; "0" if all are 0.
    """
    parts = [
        name if factor == 1 else f"{factor} * {name}" for factor, name in zip(factors, names, strict=True) if factor
    ]
    return " + ".join(parts + ([str(constant)] if constant or not parts else []))


def _escaped(text: str, *, braces: bool = False) -> str:
    """Return TEXT as the inside of a Python string in double quotes; if BRACES, of an f-string."""
    out = "".join(
        f"\\{c}" if c in '"\\' else c if c.isprintable() else c.encode("unicode_escape").decode() for c in text
    )
    return out.replace("{", "{{").replace("}", "}}") if braces else out


def _quoted(text: str) -> str:
    """Return TEXT as a Python string, in double quotes unless it has double quotes and no single ones."""
    if '"' in text and "'" not in text:  # as formatters have it
        return "'" + _escaped(text).replace('\\"', '"') + "'"
    return f'"{_escaped(text)}"'


def _plain(text: str, limit: int = 200) -> str:
    """Return TEXT, cut to LIMIT characters, without characters that could end a docstring or a comment; "a model" if
    nothing is left.
    """
    return printable(text, limit).replace("\\", "\\\\").replace('"""', "'''").rstrip('"') or "a model"


def _wrapped(text: str, width: int, lead: str = "") -> list[str]:
    """Return TEXT in lines of at most WIDTH characters with LEAD, which begins each; words stay whole, however long.
    With a LEAD ("# "), TEXT is first cut to 600 characters and made safe for a comment (`_plain`).
    """
    said = _plain(text, 600) if lead else text
    return textwrap.wrap(
        said, width, initial_indent=lead, subsequent_indent=lead, break_long_words=False, break_on_hyphens=False
    )


def _raw(text: str) -> str:
    """Return the regular expression TEXT as a Python string: raw (`r"…"`), unless it has double quotes or characters
    that cannot be printed.
    """
    if "\n" in text or not text.isprintable() or '"' in text:
        return f'"{_escaped(text)}"'
    return f'r"{text}"'


def _patterns(unused: Sequence[str], every: Sequence[str]) -> list[str]:
    """Return regular expressions that together match the keys UNUSED, each once, in the order of the keys.

    All keys of a module have one expression (its path with the dot, and `.*`) if none of its keys in EVERY, all keys of
    the source, is used, if they are several, and if none has a line break. The outermost such module counts; a module
    at the top whose name is a number is none. Other keys have one each. A component that is a number stands for any
    number (`_numbers_out`).
    """
    kept = set(every) - set(unused)
    heads = {key[: at + 1] for key in kept for at, char in enumerate(key) if char in "./"}
    found: dict[str, None] = {}
    for key in unused:
        ends = [at + 1 for at, char in enumerate(key) if char in "./"]
        whole = next((key[:end] for end in ends if key[:end] not in heads and not key[: end - 1].isdecimal()), None)
        below = [] if whole is None else [other for other in unused if other.startswith(whole)]
        if whole is not None and len(below) > 1 and not any("\n" in other for other in below):
            found[f"{_numbers_out(whole)}.*"] = None
        else:
            found[_numbers_out(key)] = None
    return list(found)


def _numbers_out(key: str) -> str:
    """Return a regular expression that matches KEY, and keys with other numbers in place of its components that are
    numbers.
    """
    return re.sub(r"(?:(?<=^)|(?<=\.)|(?<=/))\d+(?=\\\.|/|$)", r"\\d+", re.escape(key).replace(r"\-", "-"))
