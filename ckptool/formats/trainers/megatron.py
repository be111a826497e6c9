"""Megatron-LM's own folders: a file for each tensor-parallel rank and each stage of the pipeline, put together.

    RUN/latest_checkpointed_iteration.txt        "1000", or "release"
    RUN/iter_0001000/mp_rank_00/model_optim_rng.pt             tensor-parallel rank 0
    RUN/iter_0001000/mp_rank_01_002/model_optim_rng.pt         rank 1 of stage 2

    {args, checkpoint_version, iteration, model: {name: tensor}, optimizer, opt_param_scheduler, rng_state}

Nothing in the files says along which dimension a tensor was cut; the names do, which are those of Megatron-core:
`linear_qkv` by query groups and `word_embeddings` and `output_layer` by rows, `linear_proj` and `linear_fc2` by
columns; `linear_fc1` by rows, of which a gated model has two runs (seen by the sizes of `linear_fc2`). What remains is
equal on all ranks. Every stage counts its layers from 0. The result has the names and shapes that one rank would have
saved.

Names and sizes: seen in what megatron-core 0.16.1 gives (`state_dict_for_save_checkpoint`). The outer dict and the
names of folders: megatron/training/checkpointing.py, layout from source, never seen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...checkpoint import Checkpoint
from ...disk.addresses import is_url
from ...disk.files import is_folder, shell_path
from ...disk.inside import Folder, listed
from ...errors import CannotCarry, CheckpointError, Malformed, counted, printable
from ...inert.other_tensors import as_dense
from ...tensor import LazyTensor
from ...tree import Dict
from .pickled import entries_of, folder_in, open_part
from .plan import Along, Plan, put_together
from .rank_files import same_values

NAME = "megatron"
LATEST = "latest_checkpointed_iteration.txt"
_PART = re.compile(r"mp_rank_(?P<tensor>\d{1,5})(?:_(?P<stage>\d{1,5}))?", re.ASCII)
#: Names of one rank, and characters of all of them.
_MOST_NAMES, _LONGEST = 1_000_000, 1 << 28
_FILES = ("model_optim_rng.pt", "model_rng.pt")
_LAYER = re.compile(r"(?P<before>(?:.*\.)?layers\.)(?P<number>\d{1,6})(?P<behind>\..*)", re.ASCII)
#: Ends of names -> along which dimension ranks divide what has them.
_ROWS = (
    *("word_embeddings.weight", "output_layer.weight", "output_layer.bias"),
    *(f"{layer}.{kind}" for layer in ("linear_qkv", "query_key_value") for kind in ("weight", "bias")),
)
_COLUMNS = ("linear_proj.weight", "linear_fc2.weight", "self_attention.dense.weight", "dense_4h_to_h.weight")
_GATED = {"linear_fc1": "linear_fc2", "dense_h_to_4h": "dense_4h_to_h"}


def saves_in(folder: Folder) -> list[str]:
    """The folders of saves in that of a run."""
    names = [name for name in folder.names if re.fullmatch(r"iter_\d+|release", name, re.ASCII)]
    return [name for name in names if is_folder(folder.path / name) and folder.lying(name) != "outside"]


def is_save(folder: Folder) -> bool:
    """Whether a folder holds the folders of ranks."""
    return any(_PART.fullmatch(name) and is_folder(folder.path / name) for name in folder.names)


def fits(folder: Folder) -> bool:
    """Whether a folder is one of Megatron's: that of a run, or of one save."""
    return is_save(folder) or any(is_save(Folder(folder.path / name)) for name in saves_in(folder))


def ranks_beside(path: Path) -> int:
    """How many ranks there are in the folder of a file of one of them; 0 if its name is not that of one."""
    above = path.absolute().parent
    if path.name not in _FILES or is_url(path) or not _PART.fullmatch(above.name):
        return 0
    return sum(_PART.fullmatch(name) is not None for name in Folder(above.parent).names)


def open_megatron(folder: Folder, plan: Plan | None = None, *, whole: bool = False) -> Checkpoint:
    """The checkpoint in Megatron's folder.

    Args:
        folder: that of a run, or of one save.
        plan: how parts go together whose names say nothing.
        whole: with what stands beside the weights on the first rank; never the optimizer's state.

    Raises:
        Malformed: a rank is missing, or ranks contradict each other.
        CannotCarry: it is divided in a way that is not known.
    """
    save, others = _save_of(folder)
    joining = _Grid(save, plan or Plan())
    root: Any = Dict(list(joining.entries.items()), ordered=True)
    beside = [(key, value) for key, value in joining.first.items() if key not in ("model", "optimizer")]
    lines = joining.lines()
    if whole:
        root = Dict([("model", root), *beside])
    elif beside:
        lines.append(f"left behind beside the weights: {listed([key for key, _ in beside])}")
    notes = [line for part in joining.opened.values() for line in part.warnings]
    if others:
        notes.append(f"there are other saves: {listed(others)}")
    return Checkpoint(
        root,
        NAME,
        folder.path,
        sum(part.nbytes for part in joining.opened.values()),
        warnings=tuple(dict.fromkeys([joining.shape, *notes])),
        lost_content=tuple(line for part in joining.opened.values() for line in part.lost_content),
        lost_form=tuple(lines),
    )


def _save_of(folder: Folder) -> tuple[Folder, list[str]]:
    if is_save(folder):
        return folder, []
    saves = saves_in(folder)
    if LATEST in folder.names and folder.lying(LATEST) == "file":
        file = folder.file(LATEST, LATEST)
        said = file.read(0, min(file.size, 64)).decode("ascii", "replace").strip()
        name = f"iter_{int(said):07d}" if said.isascii() and said.isdigit() else said
        return folder_in(folder, name, LATEST), [one for one in saves if one != name]
    if len(saves) == 1:
        return folder_in(folder, saves[0], saves[0]), []
    raise Malformed(
        f"holds {len(saves)} saves, and no {LATEST} says which; name one",
        where=folder.path,
        evidence=[printable(name, 60) for name in saves[-6:]],
        hint=f"name a folder: {shell_path(folder.path / saves[-1])}",
    )


@dataclass
class _Grid:
    """The files of all tensor-parallel ranks and stages of one save.

    Attributes:
        folder: the save.
        plan: what a person says of names.
        opened: (stage, rank) -> checkpoint.
        entries: name -> value, of all together.
        first: the entries of the first rank's file.
        shape: how many there are, in a phrase.
    """

    folder: Folder
    plan: Plan
    opened: dict[tuple[int, int], Checkpoint] = field(default_factory=dict)
    entries: dict[str, Any] = field(default_factory=dict)
    first: dict[str, Any] = field(default_factory=dict)
    shape: str = ""
    divided: int = 0
    same: int = 0
    states: int = 0
    optimizers: bool = False
    gated: int = 0
    vocabulary: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Open the files and put them together."""
        places = self._places()
        stages = sorted({stage for stage, _ in places})
        ranks = sorted({rank for _, rank in places})
        missing = [(s, r) for s in range(stages[-1] + 1) for r in range(ranks[-1] + 1) if (s, r) not in places]
        if missing:
            raise Malformed(
                f"lacks the files of {counted(len(missing), 'rank')}: "
                + ", ".join(f"tensor-parallel {r} of stage {s}" for s, r in missing[:6]),
                where=self.folder.path,
                evidence=[f"there are {listed(list(places.values()))}"],
                hint="the save, the download or the copy did not finish; fetch the missing folders",
            )
        self.shape = f"{counted(len(ranks), 'tensor-parallel rank')}, {counted(len(stages), 'stage')} of a pipeline"
        for place in sorted(places):
            inner = folder_in(self.folder, places[place], places[place])
            name = next((one for one in _FILES if one in inner.names), None)
            if name is None:
                raise Malformed(f"holds no {_FILES[0]}", where=inner.path)
            self.opened[place] = open_part(inner.file(name, name))
        self.first = entries_of(self.opened[0, 0].root)
        steps = {place: entries_of(part.root).get("iteration") for place, part in self.opened.items()}
        if len({str(step) for step in steps.values()}) > 1:
            shown = [f"{places[place]}: iteration {printable(str(step), 20)}" for place, step in steps.items()]
            raise Malformed("holds files of two steps:", where=self.folder.path, evidence=shown[:6])
        before = 0
        for stage in stages:
            before += self._add([self._model(self.opened[stage, rank]) for rank in ranks], before)

    def _places(self) -> dict[tuple[int, int], str]:
        places: dict[tuple[int, int], str] = {}
        for name in self.folder.names:
            match = _PART.fullmatch(name)
            if match is None:
                if name.startswith("mp_rank_"):
                    raise CannotCarry(
                        f"{printable(name, 60)} is of an expert-parallel rank, which ckptool does not put together",
                        where=self.folder.path,
                    )
                continue
            place = int(match["stage"] or 0), int(match["tensor"])
            if place in places:
                raise Malformed(
                    "holds a rank twice:",
                    where=self.folder.path,
                    evidence=[printable(places[place], 60), printable(name, 60)],
                    hint="one is of another run; move it away",
                )
            places[place] = name
        return places

    def _model(self, part: Checkpoint) -> dict[str, Any]:
        root = entries_of(part.root)
        self.optimizers |= root.get("optimizer") is not None
        if "model0" in root:
            what = "has interleaved stages of a pipeline (model0, model1), whose order no file tells"
            raise CannotCarry(what, where=part.where)
        model = root.get("model")
        if not isinstance(model, Dict):
            raise Malformed("holds no model", where=part.where)
        named: dict[str, Any] = {}
        length = 0
        for name, value in _flattened(model, "", 0):
            if name in named:
                raise Malformed(f"has two values of the name {printable(repr(name), 80)}", where=part.where)
            named[name] = value
            length += len(name)
            if len(named) > _MOST_NAMES or length > _LONGEST:  # a few dicts within each other can make 2**40
                raise CannotCarry(f"its dicts unfold into more than {_MOST_NAMES:,} names", where=part.where)
        return named

    def _add(self, ranks: list[dict[str, Any]], before: int) -> int:
        """Take the tensors of one stage, whose layers follow BEFORE others. Returns how many layers it has."""
        for other in ranks[1:]:
            if other.keys() != ranks[0].keys():
                odd = next(iter(other.keys() ^ ranks[0].keys()))
                raise CannotCarry(
                    f"{printable(repr(odd), 80)} is not on all ranks of its stage", where=self.folder.path
                )
        layers = 0
        for name in ranks[0]:
            match = _LAYER.fullmatch(name)
            new = name
            if match:
                layers = max(layers, int(match["number"]) + 1)
                new = f"{match['before']}{int(match['number']) + before}{match['behind']}"
            values = [rank[name] for rank in ranks]
            if name.endswith("._extra_state"):
                self.states += values[0] is not None
                continue
            tensors = [as_dense(value) for value in values]
            known = [tensor for tensor in tensors if tensor is not None]
            if len(known) != len(values):
                raise CannotCarry(f"{printable(repr(name), 80)} is no tensor", where=self.folder.path)
            try:
                made = self._one(name, known, ranks[0])
            except CheckpointError as error:
                error.where = error.where or str(self.folder.path)
                raise
            there = self.entries.get(new)
            if isinstance(there, LazyTensor) and (there.shape != made.shape or not same_values(there, made)):
                raise Malformed(f"{printable(repr(new), 80)} has two values, on two stages", where=self.folder.path)
            self.entries.setdefault(new, made)
        return layers

    def _one(self, name: str, parts: list[LazyTensor], others: dict[str, Any]) -> LazyTensor:
        """The tensor that the parts of all ranks are together."""
        said, along = self.plan.find(name)
        if not said:
            along = self._along(name, parts, others)
        if along is not None:
            self.divided += len(parts) > 1
            made = parts[0] if len(parts) == 1 else put_together(parts, along, name)
            if name.endswith("word_embeddings.weight"):
                self.vocabulary.add(made.shape[0])
            return made
        self.same += 1
        if any(part.shape != parts[0].shape or not same_values(parts[0], part) for part in parts[1:]):
            raise CannotCarry(
                f"{printable(repr(name), 80)} is not the same on all ranks, and its name does not say how it was cut",
                evidence=[f"rank {n}: {list(part.shape)}" for n, part in enumerate(parts[:6])],
                hint=f'say it in a file for --parts, with a line such as "{printable(name, 80)}": 0',
            )
        return parts[0]

    def _along(self, name: str, parts: list[LazyTensor], others: dict[str, Any]) -> Along | None:
        if name.endswith(_ROWS):
            return Along(0)
        if name.endswith(_COLUMNS):
            return Along(1)
        module, _, kind = name.rpartition(".")
        above, _, layer = module.rpartition(".")
        if layer not in _GATED or kind not in ("weight", "bias"):
            return None
        second = as_dense(others.get(f"{above}.{_GATED[layer]}.weight"))
        rows, inner = parts[0].shape[0], second.shape[1] if second is not None and len(second.shape) == 2 else 0
        if rows == 2 * inner:
            self.gated += kind == "weight"
            return Along(0, 2)
        if rows == inner:
            return Along(0)
        raise CannotCarry(
            f"{printable(name, 80)} has {rows:,} rows where {printable(_GATED[layer], 40)} has {inner:,} columns: "
            "neither a plain layer nor a gated one"
        )

    def lines(self) -> list[str]:
        """For the receipt: what became of what the files hold."""
        lines = [
            f"{self.shape}: {counted(self.divided, 'tensor')} put together, {counted(self.same, 'tensor')} the same on "
            "every rank; names and shapes are those of one rank"
        ]
        if self.gated:
            lines.append(f"{counted(self.gated, 'gated layer')}: of each rank the first half is of the gate")
        lines += [f"the vocabulary has {rows:,} rows, as Megatron filled it up" for rows in sorted(self.vocabulary)]
        if self.states:
            lines.append(f"left behind: {counted(self.states, 'extra state')} of modules")
        if self.optimizers:
            lines.append("left behind: the optimizer's state, which each rank has for its own part")
        return lines


def _flattened(node: Dict, before: str, depth: int) -> Any:
    """The entries of dicts within dicts, with their names joined by dots, as older versions have them."""
    for key, value in node.entries:
        name = f"{before}{key}"
        if isinstance(value, Dict) and value.entries and depth < 16:
            yield from _flattened(value, f"{name}.", depth + 1)
        else:
            yield name, value
