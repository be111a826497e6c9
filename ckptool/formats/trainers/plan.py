"""How the parts of ranks go together where no file says so: a person does, by patterns of names.

    "*.q_proj.weight": 0        the parts stand one after the other along dimension 0
    "*.o_proj.weight": 1        along dimension 1
    "*.gate_up.weight": 0/2     along dimension 0, in 2 runs: each rank has a part of the first, then one of the second
    "*": same                   every rank has the whole, and all are equal
    "0.weight": [7, 5]          each rank has a run of the elements of a tensor of these sizes, rank after rank

Names with sizes also say what is in a flat parameter of FSDP 1, in the order in which they are listed.

The first pattern that fits a name counts; `*` stands for any text, `?` for one character.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from math import prod
from typing import Any

from ...errors import Malformed, RuleError, printable
from ...records import record
from ...tensor import LazyTensor, Storage, contiguous_stride
from ..tiles import Chunk, assemble
from .flat import Flat

_ALONG = re.compile(r"(\d{1,2})(?:/(\d{1,3}))?", re.ASCII)
_MOST = 10_000


@record(frozen=True, slots=True)
class Along:
    """Parts one after the other along a dimension.

    Attributes:
        dim: the dimension.
        runs: how many runs there are, of each of which every rank has a part.
    """

    dim: int
    runs: int = 1


@record(frozen=True, slots=True)
class Runs:
    """Runs of the elements of a tensor, those of a rank behind those of the one before.

    Attributes:
        shape: of the whole.
    """

    shape: tuple[int, ...]


Rule = Along | Runs


@record(frozen=True, slots=True)
class Plan:
    """Patterns of names, and how the parts of what has such a name go together (None: every rank has the whole)."""

    rules: tuple[tuple[str, Rule | None], ...] = ()

    def find(self, name: str) -> tuple[bool, Rule | None]:
        """Whether a rule speaks of NAME, and what it says."""
        for pattern, along in self.rules:
            if fnmatchcase(name, pattern):
                return True, along
        return False, None

    def sizes(self) -> dict[str, tuple[int, ...]]:
        """What is said of sizes: name -> them, in order."""
        return {name: rule.shape for name, rule in self.rules if isinstance(rule, Runs)}


def parse_plan(said: Mapping[Any, Any], where: object = "") -> Plan:
    """A plan out of a mapping of patterns to a dimension, "DIM/RUNS" or "same".

    Raises:
        RuleError: it is none.
    """
    rules: list[tuple[str, Rule | None]] = []
    if not isinstance(said, Mapping) or len(said) > _MOST:
        raise RuleError("is not a mapping of patterns to dimensions", where=where, hint='a line such as "*.weight": 0')
    for pattern, value in said.items():
        rule = _rule(value)
        if not isinstance(pattern, str) or (rule is None and value != "same"):
            raise RuleError(
                f"says {printable(repr(value), 40)} of {printable(repr(pattern), 80)}; it can be a dimension, "
                "DIM/RUNS, same, or a list of sizes",
                where=where,
                hint=f'"{printable(str(pattern), 60)}": 0',
            )
        rules.append((pattern, rule))
    return Plan(tuple(rules))


def _rule(value: Any) -> Rule | None:
    """What a line of a plan says; None of "same", and of what says nothing."""
    if isinstance(value, list):
        shape = _sizes(value)
        return None if shape is None else Runs(shape)
    match = _ALONG.fullmatch(str(value)) if isinstance(value, int | str) and not isinstance(value, bool) else None
    return None if match is None else Along(int(match[1]), max(int(match[2] or 1), 1))


def _sizes(value: Any) -> tuple[int, ...] | None:
    fits = isinstance(value, list) and all(type(size) is int and 0 <= size < 1 << 48 for size in value)
    return tuple(value) if fits else None


def put_together(parts: Sequence[LazyTensor], rule: Rule, name: str) -> LazyTensor:
    """The tensor that PARTS, one of each rank in order, are together.

    Raises:
        Malformed: their sizes or types do not go together.
    """
    first = parts[0]
    if isinstance(rule, Runs):
        there = sum(part.numel for part in parts)
        if there != prod(rule.shape) or any(len(part.shape) != 1 or part.dtype != first.dtype for part in parts):
            shown = ", ".join(dict.fromkeys(f"{part.dtype} {list(part.shape)}" for part in parts))
            raise Malformed(
                f"{printable(name, 80)}: parts of {shown} are not runs of elements of a tensor of {list(rule.shape)}"
            )
        return Flat(parts, first.dtype).tensor(0, rule.shape, name).changed(requires_grad=first.requires_grad)
    dim = rule.dim
    shapes = {part.shape[:dim] + part.shape[dim + 1 :] for part in parts}
    if dim >= len(first.shape) or len(shapes) > 1 or len({(len(p.shape), p.dtype) for p in parts}) > 1:
        shown = ", ".join(dict.fromkeys(f"{part.dtype} {list(part.shape)}" for part in parts))
        raise Malformed(f"{printable(name, 80)}: parts of {shown} do not go together along dimension {dim}")
    if any(part.shape[dim] % rule.runs for part in parts):
        raise Malformed(f"{printable(name, 80)}: {rule.runs} runs do not divide parts of {list(first.shape)}")
    chunks, at = [], 0
    for run in range(rule.runs):
        for part in parts:
            size = part.shape[dim] // rule.runs
            values = LazyTensor(
                part.storage,
                part.dtype,
                (*part.shape[:dim], size, *part.shape[dim + 1 :]),
                part.stride,
                part.offset + run * size * part.stride[dim],
                conj=part.conj,
                neg=part.neg,
            )
            chunks.append(Chunk((*(0,) * dim, at, *(0,) * (len(part.shape) - dim - 1)), values))
            at += size
    shape = (*first.shape[:dim], at, *first.shape[dim + 1 :])
    source = assemble(shape, first.dtype, chunks)
    storage = Storage(source, "cpu", first.dtype if first.dtype.storage else None, name)
    return LazyTensor(storage, first.dtype, shape, contiguous_stride(shape), requires_grad=first.requires_grad)
