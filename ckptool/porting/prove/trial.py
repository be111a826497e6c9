"""Load one mapping after another into the model, and run it, for a limited time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import replace
from typing import Any

import torch

from ...checkpoint import Checkpoint
from ...errors import RuleError
from ...torch_bridge import to_torch
from .. import expression as ex
from ..applying import source_tensors
from ..expression import Expr
from ..mapping import Entry, Mapping
from .code_steps import Swap
from .flow import Flow
from .recorder import follow
from .verdict import Verdict

#: Is given a line that says what is being done.
Tell = Callable[[str], None]

#: Seconds that a proof may take, unless it is told otherwise.
PATIENCE = 300.0


class Progress:
    """Reports what a proof does, one line at a time to TELL (to nobody if None), and says when its search has to end:
    `late` is True from PATIENCE seconds after `begin` on, 300 if nothing else is said. LONGER is the option that gives
    the search more time.
    """

    def __init__(self, tell: Tell | None = None, patience: float = PATIENCE, longer: str = "--patience") -> None:
        self._tell, self.patience, self.longer = tell, patience, longer
        self._until: float | None = None

    def say(self, text: str) -> None:
        """Give TEXT to the function that reports progress, if there is one."""
        if self._tell is not None:
            self._tell(text)

    def begin(self) -> None:
        """Start the clock of the proof."""
        self._until = time.monotonic() + self.patience

    @property
    def late(self) -> bool:
        """Return whether the proof has used up its time; False before `begin`."""
        return self._until is not None and time.monotonic() > self._until


#: Trials without success that looking for a better mapping may take.
TRIALS = 600


class Trial:
    """The model of a proof, which can be loaded and run with one mapping after another. It ends with the weights that
    were loaded last.

    Args:
        model: the model.
        ckpt: the file.
        mapping: the mapping that is proved; its options can be loaded, too.
        inputs: the inputs of the model.
        factors: possible scales of low-rank adapters.
        progress: reports what is done, and says when the time is over.
        read: keys that the source's code reads, also of other state dicts of the file than the one that MAPPING is
            from.
    Attributes:
        tensors, shapes: key of the source -> its tensor, unread, and its sizes.
        state: the state dict of the model, whose tensors change with each load.
        initial: the model's own values for these.
        ties: key of the state dict -> the first key of the same tensor, for its other keys.
        loaded: key of the model -> the expression that was loaded last, None for the model's own value.
        runs, misses: numbers of runs of the model, and of trials in vain.
        patience: the number of trials in vain that a search may make.
        elsewhere: key -> expression: changes that worked in one block, for the keys of other blocks, in which no trial
            has shown yet that they help.
        swaps: what the model does in place of its steps, so that it does what the source's code does.
        undo: (module of the model, attribute, value before) for attributes that were set.
        confirms: says whether layers confirm some keys, in a search that no output decides, and in which only keys
            without a source may change; None in other searches.
        finely: the tolerance with which a search in float64 compares; None for a search in float32.
        unlike: inputs on which the models differ although they agree on the first ones; None if there are none.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        ckpt: Checkpoint,
        mapping: Mapping,
        inputs: Any,
        factors: Sequence[float] = (),
        progress: Progress | None = None,
        read: Iterable[str] = (),
    ) -> None:
        self.model, self.inputs, self.factors = model, inputs, factors
        self.progress = progress or Progress()
        every = [ex.of(key) for key in dict.fromkeys((*mapping.source_shapes, *read))]
        more = [r for e in mapping.entries for r in e.rivals]
        wanted = [Entry(f"#{i}", (), x) for i, x in enumerate([*every, *more])]
        self.tensors = source_tensors(ckpt, replace(mapping, entries=(*mapping.entries, *wanted)))
        self.shapes = {key: t.shape for key, t in self.tensors.items()}
        self.state = model.state_dict()
        self.initial = {k: v.clone() for k, v in self.state.items() if isinstance(v, torch.Tensor)}
        self.ties = _ties(self.state)
        self.loaded: dict[str, Expr | None] = {}
        self.runs = self.misses = 0
        self.unlike: Any = None
        self.elsewhere: dict[str, Expr] = {}
        self.patience = TRIALS
        self.swaps: dict[int, Swap] = {}
        self.undo: list[tuple[torch.nn.Module, str, Any]] = []
        self.confirms: Callable[[Flow, dict[str, Entry], Verdict, Iterable[str]], bool] | None = None
        self.finely: float | None = None

    @property
    def is_over(self) -> bool:
        """Return whether a search has to end: the time of the proof is used up (`Progress.late`), or as many trials
        were in vain as a search may make (`patience`).
        """
        return self.misses >= self.patience or self.progress.late

    def load(self, entries: Iterable[Entry]) -> None:
        """Load the weights of ENTRIES into the model; an entry without a source gives the model's own initial values.
        Entries that are loaded already, and keys that the model lacks, are skipped. Of several keys of one tensor, the
        last in ENTRIES counts.
        """
        with torch.no_grad():
            for entry in entries:
                if entry.target in self.loaded and self.loaded[entry.target] == entry.expr:
                    continue
                self.loaded[entry.target] = entry.expr
                own = self.state.get(entry.target)
                if own is None:
                    continue
                first = self.ties.get(entry.target, entry.target)
                for key in (first, *(key for key, other in self.ties.items() if other == first)):
                    if key != entry.target:
                        self.loaded.pop(key, None)
                if entry.expr is None:
                    own.copy_(self.initial[entry.target])
                else:
                    own.copy_(to_torch(ex.lazy(entry.expr, self.tensors)))

    def run(self, entries: Iterable[Entry], *, wider: bool = False) -> Flow | None:
        """Load ENTRIES into the model, run it on the inputs with the `swaps`, and return its flow, in float64 if WIDER.
        None if an expression that is not loaded yet does not fit the sizes of the source or does not have the size of
        its key (then nothing is loaded), or if the model raises (then ENTRIES stay loaded). Each run of the model is
        counted (`runs`).
        """
        entries = list(entries)
        for entry in entries:
            if entry.expr is not None and self.loaded.get(entry.target) != entry.expr:
                try:
                    if ex.shape_of(entry.expr, self.shapes) != entry.shape:
                        return None
                except (RuleError, IndexError, ZeroDivisionError):
                    return None
        self.load(entries)
        self.runs += 1
        return follow(self.model, self.inputs, wider=wider, swaps=self.swaps)


def _ties(state: MappingOf[str, Any]) -> dict[str, str]:
    """Return key -> first key, for each key of the state dict STATE whose tensor is that of an earlier key."""
    first: dict[Any, str] = {}
    out = {}
    for key, t in state.items():
        if isinstance(t, torch.Tensor) and t.layout is torch.strided and t.data_ptr():
            one = first.setdefault((t.data_ptr(), t.dtype, t.shape, t.stride()), key)
            if one != key:
                out[key] = one
    return out
