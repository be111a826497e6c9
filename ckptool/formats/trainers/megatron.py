"""Megatron-LM's own folders: a file for each tensor-parallel rank and each stage of the pipeline, put together.

    RUN/latest_checkpointed_iteration.txt        "1000", or "release"
    RUN/iter_0001000/mp_rank_00/model_optim_rng.pt             tensor-parallel rank 0
    RUN/iter_0001000/mp_rank_01_002/model_optim_rng.pt         rank 1 of stage 2

    RUN/iter_0001000/mp_rank_00/distrib_optim.pt               what the distributed optimizer keeps

    {args, checkpoint_version, iteration, model: {name: tensor}, optimizer, opt_param_scheduler, rng_state}

With expert parallelism the last number is that of the expert-parallel rank: `mp_rank_01_002_003`, or `mp_rank_01_003`
without stages, which the arguments in the files tell from a stage, or else the embedding, which each rank has that is
of the first stage. With interleaved stages, a file holds model0, model1, … in place of model. How the tensors go
together is in `megatron_parts`, what the optimizer keeps in `megatron_optimizer`.

Names and sizes: seen in what megatron-core 0.16.1 gives (`state_dict_for_save_checkpoint`), with tensor, pipeline and
expert parallelism and interleaved stages. The outer dict and the names of folders: megatron/training/checkpointing.py,
layout from source, never seen.
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
from ...errors import CannotCarry, Malformed, counted, printable
from ...tree import Dict
from .accounts import Account
from .megatron_optimizer import Rank, joined_states
from .megatron_parts import Joining, Place, has_thirds
from .pickled import entries_of, folder_in, integer, open_part
from .plan import Plan

NAME = "megatron"
LATEST = "latest_checkpointed_iteration.txt"
_PART = re.compile(r"mp_rank_(\d{1,5})(?:_(\d{1,5}))?(?:_(\d{1,5}))?", re.ASCII)
#: Names of one rank, and characters of all of them.
_MOST_NAMES, _LONGEST = 1_000_000, 1 << 28
_FILES = ("model_optim_rng.pt", "model_rng.pt")
_OPTIMIZER_FILE = "distrib_optim.pt"
_CHUNK = re.compile(r"model(\d{1,4})", re.ASCII)
#: What a rank's file holds beside its part of the weights and of the optimizer.
_PARTS = ("model", "optimizer")


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
        whole: with the optimizer's state by names, and what stands beside the weights on the first rank.

    Raises:
        Malformed: a rank is missing, or ranks contradict each other.
        CannotCarry: it is divided in a way that is not known.
    """
    save, others = _save_of(folder)
    grid = _Grid(save, plan or Plan())
    first = grid.ranks[min(grid.ranks)]
    weights = Joining(save, grid.plan, has_thirds(first.entries))
    weights.join({place: rank.chunks for place, rank in grid.ranks.items()})
    root: Any = Dict(list(weights.entries.items()), ordered=True)
    beside = [(k, v) for k, v in first.entries.items() if k not in _PARTS and not _CHUNK.fullmatch(k)]
    lines = [
        f"{grid.shape}: {counted(weights.used, 'element')}; {counted(weights.divided, 'tensor')} put together, "
        f"{counted(weights.same, 'tensor')} the same on every rank; names and shapes are those of one rank",
        *weights.lines(),
    ]
    has_optimizer = any(rank.optimizer is not None or rank.file is not None for rank in grid.ranks.values())
    account = Account()
    account.hold(grid.opened.values())
    if whole:
        entries: list[tuple[Any, Any]] = [("model", root)]
        if has_optimizer:
            state, more = joined_states(grid.ranks, save, grid.plan, account)
            entries.append(("optimizer", state))
            lines += more
        root = Dict([*entries, *beside])
    else:
        if has_optimizer:
            lines.append("left behind: the optimizer's state, in float32; --with-optimizer keeps it")
        if beside:
            lines.append(f"left behind beside the weights: {listed([key for key, _ in beside])}")
    if len(grid.ranks) > 1 and (whole or beside):
        lines.append("what stands beside the weights (rng_state, …) is that of the first rank")
    lines += account.lines(root)
    notes = [line for part in grid.opened.values() for line in part.warnings]
    if others:
        notes.append(f"there are other saves: {listed(others)}")
    return Checkpoint(
        root,
        NAME,
        folder.path,
        sum(part.nbytes for part in grid.opened.values()),
        warnings=tuple(dict.fromkeys([grid.shape, *notes])),
        lost_content=tuple(line for part in grid.opened.values() for line in part.lost_content),
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
    """The files of all ranks of one save.

    Attributes:
        folder: the save.
        plan: what a person says of names.
        opened: folder of a rank (and file, if not the first) -> checkpoint.
        ranks: what each of them holds.
        shape: how many there are, in a phrase.
    """

    folder: Folder
    plan: Plan
    opened: dict[str, Checkpoint] = field(default_factory=dict)
    ranks: dict[Place, Rank] = field(default_factory=dict)
    shape: str = ""

    def __post_init__(self) -> None:
        """Open the files, and find out whose they are."""
        numbers: dict[str, tuple[int, ...]] = {}
        for name in self.folder.names:
            if match := _PART.fullmatch(name):
                numbers[name] = tuple(int(n) for n in match.groups() if n is not None)
        kinds = {len(one): name for name, one in numbers.items()}
        if len(kinds) > 1:
            raise Malformed(
                "holds folders of ranks of two runs:",
                where=self.folder.path,
                evidence=[
                    next(n for n in numbers if len(numbers[n]) == k) for k in sorted(set(map(len, numbers.values())))
                ],
                hint="move those of one away",
            )
        held = {name: self._read(name) for name in numbers}
        expert = self._last_is_expert(numbers, held)
        for name, one in numbers.items():
            tensor, stage, experts = (*one, 0, 0)[:3] if not (expert and len(one) == 2) else (one[0], 0, one[1])
            place = Place(stage, tensor, experts)
            if place in self.ranks:
                raise Malformed(
                    "holds a rank twice:",
                    where=self.folder.path,
                    evidence=[printable(self.ranks[place].name, 60), printable(name, 60)],
                    hint="one is of another run; move it away",
                )
            self.ranks[place] = held[name]
        sizes = [max(place[n] for place in self.ranks) + 1 for n in range(3)]
        self._require_all(sizes)
        stages, tensors, experts = sizes
        self.shape = f"{counted(tensors, 'tensor-parallel rank')}, {counted(stages, 'stage')} of a pipeline"
        if experts > 1:
            self.shape += f", {counted(experts, 'expert-parallel rank')}"
        if len(first := self.ranks[min(self.ranks)].chunks) > 1:
            self.shape += f", {counted(len(first), 'interleaved chunk')} of layers on each"
        self._require_one_run()

    def _require_all(self, sizes: list[int]) -> None:
        stages, tensors, experts = sizes
        every = stages * tensors * experts
        if every == len(self.ranks):
            return
        told = self._told("expert_tensor_parallel_size")
        if experts > 1 and told and told != tensors:
            raise CannotCarry(
                f"its experts were divided among {told:,} tensor-parallel ranks and the rest among {tensors:,}, which "
                "ckptool does not put together",
                where=self.folder.path,
                hint="a save of the distributed format (torch_dist) is read",
            )
        missing: list[str] = []
        for stage in range(stages if every < 1 << 20 else 0):
            for tensor in range(tensors):
                for expert in range(experts):
                    if Place(stage, tensor, expert) not in self.ranks:
                        of = f" and expert-parallel {expert}" if experts > 1 else ""
                        missing.append(f"tensor-parallel {tensor}{of} of stage {stage}")
        raise Malformed(
            f"lacks the files of {counted(every - len(self.ranks), 'rank')}: {', '.join(missing[:6])}",
            where=self.folder.path,
            evidence=[f"there are {listed([rank.name for rank in self.ranks.values()])}"],
            hint="the save, the download or the copy did not finish; fetch the missing folders",
        )

    def _require_one_run(self) -> None:
        for entry, what in (("iteration", "steps"), ("checkpoint_version", "versions")):
            said = {rank.name: str(rank.entries.get(entry)) for rank in self.ranks.values()}
            if len(set(said.values())) > 1:
                shown = [f"{printable(name, 60)}: {entry} {printable(value, 20)}" for name, value in said.items()]
                raise Malformed(f"holds files of two {what}:", where=self.folder.path, evidence=shown[:6])
        stages, tensors, experts = (max(place[n] for place in self.ranks) + 1 for n in range(3))
        told = {
            "tensor_model_parallel_size": tensors,
            "pipeline_model_parallel_size": stages,
            "expert_model_parallel_size": experts,
        }
        for name, there in told.items():
            said_ = self._told(name)
            if said_ is not None and said_ != there:
                raise Malformed(
                    f"says {name} {said_:,}, and holds the folders of {there:,}",
                    where=self.folder.path,
                    evidence=[f"there are {listed([rank.name for rank in self.ranks.values()])}"],
                    hint="folders are missing, or of another run",
                )

    def _told(self, name: str) -> int | None:
        """What the arguments of the run, in the file of the first rank, say of a size."""
        rank = self.ranks[min(self.ranks)]
        return integer(entries_of(rank.entries.get("args")).get(name))

    def _last_is_expert(self, numbers: dict[str, tuple[int, ...]], held: dict[str, Rank]) -> bool:
        """Whether the second of two numbers is that of the expert-parallel rank, and not of a stage."""
        second = [name for name, one in numbers.items() if len(one) == 2 and one[1]]
        if not second:
            return False
        args = entries_of(held[second[0]].entries.get("args"))
        stages, experts = (integer(args.get(f"{kind}_model_parallel_size")) for kind in ("pipeline", "expert"))
        if stages is not None and experts is not None:
            return stages == 1 and experts > 1
        names = held[second[0]].chunks[0]
        return any("word_embeddings" in name for name in names) and any(".experts." in name for name in names)

    def _read(self, folder: str) -> Rank:
        inner = folder_in(self.folder, folder, folder)
        name = next((one for one in _FILES if one in inner.names), None)
        if name is None:
            raise Malformed(f"holds no {_FILES[0]}", where=inner.path)
        part = self.opened[folder] = open_part(inner.file(name, name))
        root = entries_of(part.root)
        keys = sorted((key for key in root if _CHUNK.fullmatch(key)), key=lambda key: int(key[5:]))
        if keys and keys != [f"model{n}" for n in range(len(keys))]:
            raise Malformed(f"has chunks of layers that are not numbered through: {listed(keys)}", where=part.where)
        chunks = [self._model(root.get(key), part) for key in keys or ["model"]]
        file = inner.file(_OPTIMIZER_FILE, folder) if _OPTIMIZER_FILE in inner.names else None
        return Rank(folder, root, chunks, root.get("optimizer"), file)

    def _model(self, model: Any, part: Checkpoint) -> dict[str, Any]:
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


def _flattened(node: Dict, before: str, depth: int) -> Any:
    """The entries of dicts within dicts, with their names joined by dots, as older versions have them."""
    for key, value in node.entries:
        name = f"{before}{key}"
        if isinstance(value, Dict) and value.entries and depth < 16:
            yield from _flattened(value, f"{name}.", depth + 1)
        else:
            yield name, value
