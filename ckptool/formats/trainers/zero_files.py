"""Which files of a DeepSpeed folder are what, and of which rank.

    RUN/latest                                                   the name of the folder that was saved last
    RUN/global_step10/
        mp_rank_00_model_states.pt                               stages 0 to 2: the model, in the type of training
        zero_pp_rank_R_mp_rank_00_model_states.pt                stage 3: what rank R says of it
        [bf16_]zero_pp_rank_R_mp_rank_00_optim_states.pt         stages 1 to 3: rank R's part of weights and optimizer
        layer_00-model_states.pt                                 a pipeline: the weights of a layer
        layer_0_expert_1_mp_rank_00_model_states.pt              a mixture of experts: those of an expert
        zero/NAME/fp32.pt, exp_avg.pt, …                         "universal": those of a parameter, whole

Names: deepspeed/runtime/engine.py, runtime/pipe/module.py and checkpoint/ds_to_universal.py of 0.19.8.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import field
from typing import Any

from ...checkpoint import Checkpoint
from ...disk.files import is_folder, shell_path
from ...disk.inside import Folder, listed
from ...errors import Ambiguous, CannotCarry, Malformed, counted, printable
from ...records import record
from .accounts import Account
from .pickled import differing, entries_of, folder_in, open_part, saved_under

LATEST = "latest"
UNIVERSAL = "zero"
#: Beside the folders of a run: what DeepSpeed puts there itself.
SCRIPTS = frozenset(["zero_to_fp32.py", "zero_to_torch.py", "latest_universal", LATEST])
_LONGEST_NAME = 4096

_MODEL = re.compile(r"(?:zero_pp_rank_(?P<rank>\d{1,9})_)?mp_rank_(?P<mp>\d{1,9})_model_states\.pt", re.ASCII)
_OPTIMIZER = re.compile(r"\w*?zero_pp_rank_(?P<rank>\d{1,9})_mp_rank_(?P<mp>\d{1,9})_optim_states\.pt", re.ASCII)
_LAYER = re.compile(r"layer_(?P<layer>\d{1,9})-(?:(?P<part>[\w-]+)-)?model_states\.pt", re.ASCII)
_EXPERT = re.compile(r"(?:layer_\d{1,9}_)?expert_\d{1,9}_mp_rank_(?P<mp>\d{1,9})_model_states\.pt", re.ASCII)
_OF_EXPERTS = re.compile(r"expp_rank_\d{1,9}_mp_rank_\d{1,9}_optim_states\.pt", re.ASCII)


@record(frozen=False, slots=True)
class ZeroFiles:
    """The files of one save.

    Attributes:
        folder: where they are.
        model: rank (0 where there is but one file) -> the file with what it says of the model.
        optimizer: rank -> the file with its part of the optimizer.
        divided: the model's files are one a rank, as in stage 3.
        layers: layer -> its file, of a pipeline.
        stages: stage -> its files (with the model's state, and the optimizer's of all ranks), of a pipeline.
        experts: the files of experts.
        of_experts: the optimizer files of experts.
        parallel: there were several tensor-parallel ranks or stages, and it is universal.
        opened: file -> its checkpoint.
        account: of what those hold that were opened and let go.
        others: file -> the name of another rank's file, if that is what it was saved as.
    """

    folder: Folder
    model: dict[int, str] = field(default_factory=dict)
    optimizer: dict[int, str] = field(default_factory=dict)
    divided: bool = False
    layers: dict[int, str] = field(default_factory=dict)
    stages: dict[int, ZeroFiles] = field(default_factory=dict)
    experts: list[str] = field(default_factory=list)
    of_experts: list[str] = field(default_factory=list)
    parallel: bool = False
    opened: dict[str, Checkpoint] = field(default_factory=dict)
    account: Account = field(default_factory=Account)
    others: dict[str, str | None] = field(default_factory=dict)

    @property
    def universal(self) -> bool:
        """Whether it was made whole for another number of ranks."""
        return UNIVERSAL in self.folder.names and not self.optimizer

    def open(self, name: str) -> dict[str, Any]:
        """The entries at the root of a file."""
        if name not in self.opened:
            part = self.opened[name] = open_part(self.folder.file(name, name))
            self.others[name] = saved_under(part, name)
        return entries_of(self.opened[name].root)

    def require_own_names(self) -> None:
        """Refuse files that were saved under the name of another rank.

        Raises:
            Malformed: there is one.
        """
        odd = {name: other for name, other in self.others.items() if other is not None}
        if odd:
            raise Malformed(
                "holds files of ranks under the names of others:",
                where=self.folder.path,
                evidence=[
                    f"{printable(name, 80)} was saved as {printable(other, 80)}"
                    for name, other in list(odd.items())[:6]
                ],
                hint="give each file the name that it was saved under, with its ending",
            )

    @property
    def nbytes(self) -> int:
        """Bytes of the files that were opened."""
        return sum(part.nbytes for part in self.opened.values())


def is_save(folder: Folder) -> bool:
    """Whether a folder holds the files of one save."""
    return any(_MODEL.fullmatch(name) or _OPTIMIZER.fullmatch(name) or _LAYER.fullmatch(name) for name in folder.names)


def fits(folder: Folder) -> bool:
    """Whether a folder is one of DeepSpeed's: that of a run, or that of one save."""
    return is_save(folder) or bool(saves_in(folder))


def saves_in(folder: Folder) -> list[str]:
    """The folders of saves in that of a run, the last step last."""
    names = [name for name in folder.names if is_folder(folder.path / name) and folder.lying(name) != "outside"]
    if LATEST not in folder.names:
        names = [name for name in names if name.startswith("global_step")]
    elif (named := _latest(folder)) is not None:
        names = [name for name in names if name.startswith("global_step") or name == named]
    found = [name for name in names if is_save(Folder(folder.path / name))]
    return sorted(found, key=lambda name: [int(n) for n in re.findall(r"\d{1,18}", name)])


def save_beside(folder: Folder) -> list[str]:
    """A line on the save of DeepSpeed in a folder whose weights are read from other files, if there is one."""
    saves = saves_in(folder) if LATEST in folder.names else []
    place = shell_path(folder.path / saves[-1]) if saves else ""
    return (
        [f"the folder also holds a save of DeepSpeed, with float32 weights and the optimizer: {place}"] if saves else []
    )


def _latest(folder: Folder) -> str | None:
    """What `latest` says, or None if it is no text of one line."""
    if folder.lying(LATEST) != "file":
        return None
    file = folder.file(LATEST, LATEST)
    if not 0 < file.size <= _LONGEST_NAME:
        return None
    try:
        lines = file.read(0, file.size).decode().split("\n")
    except UnicodeDecodeError:
        return None
    return lines[0].strip() if not any(line.strip() for line in lines[1:]) else None


def save_of(folder: Folder) -> tuple[Folder, list[str]]:
    """The folder of one save, in that of a run the one that `latest` names, and the names of the others."""
    if is_save(folder):
        return folder, []
    saves = saves_in(folder)
    named = _latest(folder) if LATEST in folder.names else None
    if named is not None:
        inner = folder_in(folder, named, LATEST)
        if not is_save(inner):
            raise Malformed(
                f"names {printable(repr(named), 80)}, which holds no files of DeepSpeed",
                where=folder.path / LATEST,
                evidence=[f"there are {listed(saves)}"],
                hint=f"name a folder: {shell_path(folder.path / saves[-1])}",
            )
        return inner, [name for name in saves if name != named]
    if len(saves) > 1:
        raise Ambiguous(
            f"holds {len(saves)} saves, and no file `latest` says which; name one:",
            where=folder.path,
            evidence=[printable(name, 80) for name in saves[-8:]],
            hint=f"name a folder: {shell_path(folder.path / saves[-1])}",
        )
    return folder_in(folder, saves[0], saves[0]), []


def files_in(folder: Folder) -> ZeroFiles:
    """The files of a save, by their kinds and ranks.

    Raises:
        Malformed: two files claim to be one.
        CannotCarry: they were divided among tensor-parallel ranks as well.
    """
    found = ZeroFiles(folder)
    parallel: dict[int, str] = {}
    pieces: dict[str | None, str] = {}
    one_for_all: list[str] = []
    claims: dict[tuple[str, int], list[str]] = defaultdict(list)
    for name in folder.names:
        model, optimizer, layer = _MODEL.fullmatch(name), _OPTIMIZER.fullmatch(name), _LAYER.fullmatch(name)
        expert = _EXPERT.fullmatch(name)
        if match := model or optimizer or expert:
            parallel.setdefault(int(match["mp"]), name)
        if model and model["rank"] is None:
            one_for_all.append(name)
            claims[f"the model, of tensor-parallel rank {int(model['mp'])}", 0].append(name)
        elif model:
            found.divided = True
            claims["the model's state of rank", int(model["rank"])].append(name) if not int(model["mp"]) else None
        elif optimizer and not int(optimizer["mp"]):
            claims["the optimizer's state of rank", int(optimizer["rank"])].append(name)
        elif layer:
            claims["the layer", int(layer["layer"])].append(name)
            pieces.setdefault(layer["part"], name)
        elif expert:
            found.experts.append(name)
        elif _OF_EXPERTS.fullmatch(name):
            found.of_experts.append(name)
    if pieces:  # a pipeline numbers its stages as if they were tensor-parallel ranks
        found.stages = {number: _stage(folder, number, found.opened) for number in sorted(parallel)}
        parallel = dict(enumerate(pieces.values()))
    if len(parallel) > 1 and UNIVERSAL in folder.names and not pieces:
        found.parallel, parallel = True, {}
    if len(parallel) > 1:
        raise CannotCarry(
            f"was divided among {len(parallel):,} tensor-parallel ranks, and no file says along which dimensions",
            where=folder.path,
            evidence=[printable(name, 80) for name in list(parallel.values())[:4]],
            hint="python -m deepspeed.checkpoint.ds_to_universal makes whole parameters of them, which ckptool reads",
        )
    if found.divided and one_for_all:
        of_stage_3 = [name for name in folder.names if _MODEL.fullmatch(name) and name not in one_for_all]
        raise Malformed(
            "holds the files of stage 3 and those of another stage: two runs wrote here",
            where=folder.path,
            evidence=[f"of stage 3: {listed(of_stage_3)}", f"of another: {listed(one_for_all)}"],
            hint="move the files of one run away",
        )
    for (what, number), names in claims.items():
        if len(names) > 1:
            of = what if what.startswith("the model, ") else f"{what} {number:,}"
            raise Malformed(
                f"holds {of} twice:",
                where=folder.path,
                evidence=[printable(name, 80) for name in names],
                hint="one is of another run, or a copy; move it away",
            )
        if what.startswith("the model"):
            found.model[number] = names[0]
        elif what.startswith("the optimizer"):
            found.optimizer[number] = names[0]
        else:
            found.layers[number] = names[0]
    found.model = dict(sorted(found.model.items()))
    found.optimizer = dict(sorted(found.optimizer.items()))
    found.layers = dict(sorted(found.layers.items()))
    return found


def _stage(folder: Folder, number: int, opened: dict[str, Checkpoint]) -> ZeroFiles:
    """The files of one stage of a pipeline."""
    stage = ZeroFiles(folder, opened=opened)
    for name in folder.names:
        for pattern, place in ((_MODEL, stage.model), (_OPTIMIZER, stage.optimizer)):
            match = pattern.fullmatch(name)
            if match and int(match["mp"]) == number:
                place[int(match["rank"] or 0)] = name
    stage.optimizer = dict(sorted(stage.optimizer.items()))
    return stage


def require_one_run(files: ZeroFiles, values: dict[str, dict[str, Any]], kinds: dict[str, str]) -> None:
    """Refuse files that say different things of the run.

    Args:
        files: the files.
        values: entry -> file -> what it says.
        kinds: entry -> what it is, in a phrase.
    """
    for entry, said in values.items():
        lines = list(differing(said))
        if lines:
            raise Malformed(
                f"holds files of two runs or steps: they disagree about {kinds[entry]}",
                where=files.folder.path,
                evidence=lines[:4] + ([f"… and {counted(len(lines) - 4, 'more value')}"] if len(lines) > 4 else []),
                hint="a save was cut off while it wrote over an older one, or files were mixed; use another save",
            )
