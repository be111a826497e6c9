"""DeepSpeed's folders as one checkpoint: plain weights, and on request the optimizer's state and all else.

    module                    the weights, in the order of the model
    optimizer                 {state: {name: {exp_avg, exp_avg_sq, step}}, param_groups: [{lr, …, params: [name]}]}
    epoch, global_steps, …    what else the model's file holds

Weights are those of the optimizer, in float32, where ZeRO keeps them so; what it does not keep (buffers, frozen
parameters) is widened to float32, so that all have one type, as DeepSpeed's own `zero_to_fp32` has them. Its stage 0
keeps no such copies: weights are in the type of training then.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Any

from ...checkpoint import Checkpoint
from ...disk.files import shell_path
from ...disk.inside import Folder, listed
from ...errors import CannotCarry, Malformed, counted, printable
from ...inert.other_tensors import as_dense
from ...tensor import LazyTensor
from ...tree import ABSENT, Dict, List, walk
from .flat import rounds_to, widened
from .pickled import entries_of, integer, items_of, plainly, require_ranks
from .zero_files import ZeroFiles, files_in, require_one_run, save_of
from .zero_frozen import frozen_in, other_shape
from .zero_parts import Divided, read_divided, shapes_in
from .zero_universal import read_universal

NAME = "zero"
#: Entries of the model's file that say how the weights were divided.
_STRUCTURE = frozenset(
    """
    module optimizer buffer_names param_shapes frozen_param_shapes frozen_param_fragments shared_params
    universal_checkpoint_info
    """.split()
)
#: What the files of all ranks must agree about.
_SAME = {
    "global_steps": "how many steps were taken",
    "global_samples": "how many samples were seen",
    "dp_world_size": "how many ranks there were",
    "ds_version": "the version of DeepSpeed",
}

#: What is looked at of the model's state on every rank.
_OF_EACH_RANK = frozenset([*_SAME, "frozen_param_fragments"])


def open_save(folder: Folder, *, whole: bool = False) -> Checkpoint:
    """The checkpoint in a folder of DeepSpeed's, that of a run or of one save.

    Args:
        folder: the folder.
        whole: with the optimizer's state and what else was saved, beside the weights (at `module`).

    Raises:
        Malformed: files are missing or contradict each other.
        CannotCarry: it is divided in a way that ckptool does not put together.
    """
    save, others = save_of(folder)
    files = files_in(save)
    made = _Save(files)
    if files.layers or files.experts:
        made.as_trained(whole=whole)
    elif not files.model:
        raise Malformed(
            "lacks the files with the model (*_model_states.pt), which say what the parameters are",
            where=save.path,
            evidence=[f"there are {listed(list(files.optimizer.values()))}"],
            hint="the save, the download or the copy did not finish; fetch the missing files",
        )
    else:
        made.read(whole=whole)
    if others:
        made.notes.append(f"the save that `latest` names is read; there are others: {listed(others)}")
    made.notes += [line for part in files.opened.values() for line in part.warnings]
    made.notes += made.contradictions()
    root = made.tree(whole=whole)
    files.account.hold(part for part in files.opened.values() if part.root is not None)
    return Checkpoint(
        root,
        NAME,
        folder.path,
        files.nbytes,
        warnings=tuple(dict.fromkeys(made.notes)),
        lost_content=(
            *made.contradictions(),
            *(f"{n}: {line}" for n, part in files.opened.items() for line in part.lost_content),
        ),
        lost_form=(*made.receipt(whole=whole), *files.account.lines(root)),
    )


@dataclass(slots=True)
class _Save:
    """One save, while it is read.

    Attributes:
        files: its files.
        entries: name -> weight (or another value that the model's state dict holds), in order.
        attributes: of the state dict: `_metadata`.
        divided: what the ranks hold together, or None.
        model: the entries of the model's file.
        copies: weights in the type of training that are left behind, since the optimizer's are taken.
        notes: for reports.
        stage: of ZeRO, in a word or two.
        doubt: what may be missing, though nothing says so.
        optimizer: that of stage 0, as it is.
        as_saved: why the weights of a mixture of experts are in the type of training, if they are.
        odd: parameters whose float32 values are not, rounded, those of the model's file.
    """

    files: ZeroFiles
    entries: dict[str, Any] = field(default_factory=dict)
    attributes: Any = ABSENT
    divided: Divided | None = None
    model: dict[str, Any] = field(default_factory=dict)
    copies: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    stage: str = ""
    doubt: str = ""
    optimizer: Any = None
    as_saved: str = ""
    odd: list[str] = field(default_factory=list)

    # -- stages 0 to 3

    def read(self, *, whole: bool) -> None:
        """Read a save whose model is in one file, or in one a rank."""
        files = self.files
        models: dict[int, dict[str, Any]] = {}
        for rank, name in files.model.items():
            models[rank] = files.open(name)
            if len(models) > 1:  # of a thousand ranks, the placeholders of one are enough
                files.account.hold([files.opened[name]])
                models[rank] = {key: value for key, value in models[rank].items() if key in _OF_EACH_RANK}
                files.opened[name] = replace(files.opened[name], root=None, origin=None)
        first = files.model[min(files.model)]
        said = {
            entry: {files.model[rank]: _plain(model.get(entry)) for rank, model in models.items()} for entry in _SAME
        }
        require_one_run(files, said, _SAME)
        self.model = models[min(models)]
        module = self.model.get("module")
        if not isinstance(module, Dict):
            raise Malformed("holds no state dict (module)", where=files.folder.path / first)
        self.attributes = module.attributes
        shapes = self.model.get("param_shapes")
        if shapes is None and not files.optimizer and not files.universal:
            self._stage_0(module)
            return
        if not files.optimizer and not files.universal:
            hint = f"it alone has the weights in the type of training: {shell_path(files.folder.path / first)}"
            raise Malformed(
                "lacks the files of the optimizer (*_optim_states.pt), which hold the weights of a ZeRO run",
                where=files.folder.path,
                evidence=[
                    f"{printable(first, 80)} names the parameters of {counted(len(items_of(shapes) or []), 'group')}"
                ],
                hint="fetch the missing files" if files.divided else hint,
            )
        groups = shapes_in(shapes, files)
        world = _world(self.model)
        if files.universal:
            elsewhere = {*entries_of(self.model.get("shared_params")), *self._buffers()}
            self.divided = read_universal(files, groups, elsewhere)
        else:
            self.divided = read_divided(files, groups, states=whole)
        if files.divided:
            require_ranks(files.model, self.divided.ranks or world or 1, "the model's state", files.folder)
        if not files.universal:
            self._require_world(self.divided.ranks)
        self.stage = f"ZeRO stage {self.divided.stage}" if not files.universal else "universal"
        if files.parallel:
            self.notes.append(
                "there were tensor-parallel ranks or stages; names that the first of them lacks come last"
            )
        frozen, padding = frozen_in(files, [models[rank] for rank in sorted(models)])
        self.divided.padding += padding
        self._fill(module, frozen)
        self.notes.append(f"{self.stage}, {counted(self.divided.ranks, 'rank')}" if self.divided.ranks else self.stage)

    def _require_world(self, ranks: int) -> None:
        """Refuse an optimizer of another number of ranks than the model's file says."""
        world = _world(self.model)
        if world and world != ranks:
            raise Malformed(
                f"says that there were {world:,} ranks, and the optimizer was divided among {ranks:,}",
                where=self.files.folder.path / self.files.model[min(self.files.model)],
                hint="files of two runs lie in this folder; move those of one away",
            )

    def _stage_0(self, module: Dict) -> None:
        """Nothing is divided: the file of rank 0 holds all."""
        self.stage = "stage 0"
        self.entries = {str(key): value for key, value in module.entries}
        self.optimizer = self.model.get("optimizer")
        self.notes.append("stage 0: weights are in the type of training, since nothing else names its parameters")

    def _buffers(self) -> set[str]:
        return {str(name) for name in items_of(self.model.get("buffer_names")) or [] if isinstance(name, str)}

    def _fill(self, module: Dict, frozen: dict[str, LazyTensor]) -> None:
        """Give each entry of the model its value, in the order of the model."""
        assert self.divided is not None
        where = self.files.folder.path / self.files.model[min(self.files.model)]
        weights = self.divided.weights
        shared = entries_of(self.model.get("shared_params"))
        buffers = self._buffers()
        ready: dict[str, LazyTensor] = {**{name: widened(tensor) for name, tensor in frozen.items()}, **weights}
        there = {str(key): value for key, value in module.entries}
        as_saved: dict[Any, LazyTensor] = {}
        if not self.files.divided:  # before there were shared_params, one that is tied is the same tensor in the file
            stored = {name: as_dense(value) for name, value in there.items() if name in ready}
            as_saved = {tensor.identity: ready[name] for name, tensor in stored.items() if tensor and tensor.numel}
        for name, value in there.items():
            tensor = as_dense(value)
            kept = _kept(name, shared)
            if name in ready or kept in ready:
                self.entries[name] = ready[name if name in ready else kept]
                shape = self.entries[name].shape
                if not self.files.divided and not self.files.parallel and tensor is not None:
                    if tensor.shape != shape:
                        raise other_shape(name, tensor.shape, shape, where)
                    self.copies[tensor.dtype.name] += name in weights
                    if name in weights and not rounds_to(weights[name], tensor):
                        self.odd.append(printable(name, 80))
            elif tensor is None:
                self.entries[name] = value
            elif self.files.divided and tensor.shape == (0,) and name not in buffers:
                raise Malformed(
                    f"holds no values of {printable(repr(name), 80)}: it is neither trained, nor frozen, nor shared",
                    where=where,
                    evidence=["it is a placeholder of stage 3, and param_shapes do not name it"],
                )
            else:  # a buffer, or a frozen parameter of stage 1; one that is there twice stays one
                self.entries[name] = as_saved.setdefault(tensor.identity, widened(tensor))
            if self.files.parallel and tensor is not None and not {name, kept} & {*weights, *buffers}:
                raise CannotCarry(
                    f"{printable(repr(name), 80)} is there as parts of tensor-parallel ranks alone, and no file says "
                    "along which dimension they were cut",
                    where=where,
                )
        for name in [*frozen, *weights]:
            self.entries.setdefault(name, ready[name])
        for name in shared:
            kept = _kept(name, shared)
            if kept in ready:
                self.entries.setdefault(name, ready[kept])

    # -- pipelines and mixtures of experts

    def as_trained(self, *, whole: bool) -> None:
        """Weights in the type of training, out of the files of layers or experts."""
        files = self.files
        first = next(iter(files.model.values()), None)
        self.model = files.open(first) if first else {}
        module = self.model.get("module")
        if files.layers and files.experts:
            raise CannotCarry(
                "holds layers of a pipeline and experts, which ckptool does not put together",
                where=files.folder.path,
                evidence=[listed(list(files.layers.values())), listed(files.experts)],
            )
        if files.layers:
            self._pipeline(whole=whole)
            return
        if not isinstance(module, Dict) or not first:
            raise Malformed("has files of experts, and none with the rest of the model", where=files.folder.path)
        self.stage, self.attributes = "experts", module.attributes
        wanted = [integer(n) or 0 for n in items_of(self.model.get("num_experts")) or []]
        if wanted and sum(wanted) != len(files.experts):
            raise Malformed(
                f"has the files of {counted(len(files.experts), 'expert')}, and the model has {sum(wanted):,}",
                where=files.folder.path,
                evidence=[f"there are {listed(files.experts)}"],
                hint="the save, the download or the copy did not finish; fetch the missing files",
            )
        self._add(module, first)
        for name in files.experts:
            self._add(Dict(list(files.open(name).items())), name)
        self._masters(whole=whole)
        if self.as_saved:
            self.notes.append(f"a mixture of experts: weights are in the type of training, since {self.as_saved}")

    def _masters(self, *, whole: bool) -> None:
        """Take the float32 weights of a mixture of experts where the model's, to which they round, prove them right.

        Else all weights stay in the type of training: they have names, and what the optimizer holds has only places.
        """
        files = self.files
        shapes = self.model.get("param_shapes")
        if shapes is None or not files.optimizer:
            self.as_saved = "no file holds float32 ones that have names"
            return
        try:
            made = read_divided(files, shapes_in(shapes, files), states=whole)
        except CannotCarry as error:
            self.as_saved = f"the optimizer {error.what}"
            return
        self._require_world(made.ranks)
        unknown = [printable(name, 80) for name in made.weights if name not in self.entries]
        if unknown:
            self.as_saved = f"the optimizer has {listed(unknown)}, which no file of weights has"
            return
        as_trained, self.entries = self.entries, {}
        self.divided = made
        self._fill(Dict(list(as_trained.items())), {})
        if self.odd:
            self.as_saved = (
                f"the float32 values of {counted(len(self.odd), 'parameter')} ({listed(self.odd)}), rounded, are not "
                "those of the model's files"
            )
            self.entries, self.divided, self.odd = as_trained, None, []
            self.copies.clear()
            return
        self.stage = f"ZeRO stage {made.stage} with experts"

    def _pipeline(self, *, whole: bool) -> None:
        """The layers of a pipeline, whose names are their numbers; those that ZeRO keeps in float32 are taken so."""
        files = self.files
        self.stage = "pipeline"
        for layer, name in files.layers.items():
            self._add(Dict([(f"{layer}.{key}", value) for key, value in files.open(name).items()]), name)
        gaps = sorted(set(range(max(files.layers))) - set(files.layers))
        if gaps:
            self.doubt = (
                f"there is no file of {counted(len(gaps), 'layer')} ({', '.join(map(str, gaps[:8]))}): a function has "
                "none, and a file that is missing would not show"
            )
            self.notes.append(self.doubt)
        for stage in files.stages.values():
            shapes = files.open(stage.model[0]).get("param_shapes") if stage.model else None
            if shapes is None and not stage.optimizer:
                continue  # no ZeRO
            if shapes is None or not stage.optimizer:
                raise Malformed(
                    "lacks files of a stage of the pipeline: the model's state, or the optimizer's",
                    where=files.folder.path,
                    evidence=[f"there are {listed([*stage.model.values(), *stage.optimizer.values()])}"],
                    hint="the save, the download or the copy did not finish; fetch the missing files",
                )
            self._take(read_divided(stage, shapes_in(shapes, stage), states=whole), stage)

    def _take(self, made: Divided, stage: ZeroFiles) -> None:
        """Take the weights of one stage from its optimizer."""
        where = stage.folder.path / stage.model[0]
        for name, weight in made.weights.items():
            there = as_dense(self.entries.get(name))
            if there is None or there.shape != weight.shape:
                raise other_shape(name, there.shape if there is not None else (), weight.shape, where)
            self.copies[there.dtype.name] += 1
            if not rounds_to(weight, there):
                self.odd.append(printable(name, 80))
            self.entries[name] = weight
        if self.divided is None:
            self.divided = made
            return
        self.divided.weights |= made.weights
        self.divided.states |= made.states
        self.divided.groups += made.groups
        self.divided.left += made.left
        self.divided.others = {**made.others, **self.divided.others}
        self.divided.used += made.used
        self.divided.padding += made.padding

    def _add(self, part: Dict, name: str) -> None:
        for key, value in part.entries:
            tensor = as_dense(value)
            if tensor is not None and tensor.shape == (0,):
                raise Malformed(
                    f"{printable(repr(key), 80)} is a placeholder of stage 3, whose values other files hold",
                    where=self.files.folder.path / name,
                )
            if str(key) in self.entries:
                raise Malformed(f"{printable(repr(key), 80)} is in two files", where=self.files.folder.path / name)
            self.entries[str(key)] = value

    # -- what comes of it

    def tree(self, *, whole: bool) -> Dict:
        """The weights, or with all else if WHOLE."""
        weights = Dict(list(self.entries.items()), ordered=True, attributes=self.attributes)
        if not whole:
            return weights
        return Dict([("module", weights), *self._optimizer(), *self._beside().items()])

    def _optimizer(self) -> list[tuple[str, Any]]:
        if self.divided is None:
            return [("optimizer", self.optimizer)] if self.optimizer is not None else []
        states = [(name, Dict(list(kept.items()))) for name, kept in self.divided.states.items() if kept]
        others = [(key, plainly(value)) for key, value in self.divided.others.items()]
        return [
            ("optimizer", Dict([("state", Dict(states)), ("param_groups", List(list(self.divided.groups)))])),
            *others,
        ]

    def _beside(self) -> dict[str, Any]:
        return {key: value for key, value in self.model.items() if key not in _STRUCTURE and value is not None}

    def contradictions(self) -> list[str]:
        """What the optimizer's files say of the weights that the model's file does not."""
        if not self.odd:
            return []
        return [
            f"the float32 values of {counted(len(self.odd), 'parameter')} ({listed(self.odd)}), rounded, are not those "
            "of the model's file: files of two runs or steps lie here, or weights were changed by hand"
        ]

    def receipt(self, *, whole: bool) -> list[str]:
        """Lines for the receipt: what became of all that the files hold."""
        lines = []
        if self.divided is not None and self.divided.ranks:
            made = self.divided
            lines.append(
                f"{self.stage}: weights out of {counted(made.ranks, 'rank')}, {counted(made.used, 'element')} in "
                f"{counted(len(made.weights), 'parameter')}; {counted(made.padding, 'element')} of padding left out"
            )
        elif self.stage:
            lines.append(f"{self.stage}: {counted(len(self.entries), 'entry', 'entries')}")
        if self.as_saved:
            lines.append(f"weights are in the type of training: {self.as_saved}")
        if self.copies:
            kinds = ", ".join(f"{count:,} in {kind}" for kind, count in self.copies.items())
            again = "" if set(self.copies) == {"float32"} else "; --cast makes them again"
            lines.append(f"left behind: copies of the weights in the type of training ({kinds}){again}")
        if self.divided is not None and self.divided.left:
            lines.append(f"left behind of the optimizer: {listed(self.divided.left)}")
        files = self.files
        of_stages = [name for stage in files.stages.values() for name in stage.optimizer.values()]
        every = dict.fromkeys([*files.of_experts, *files.optimizer.values(), *of_stages])
        unread = [name for name in every if name not in files.opened]
        if unread:
            lines.append(f"left behind: the optimizer's files {listed(unread)}")
        if not whole:
            lines += self._left_without_asking()
        return lines + ([self.doubt] if self.doubt else [])

    def _left_without_asking(self) -> list[str]:
        kept = Counter(key for states in (self.divided.states if self.divided else {}).values() for key in states)
        held = [f"{key} of {counted(n, 'parameter')}" for key, n in kept.items()]
        if self.optimizer is not None:
            held = [counted(sum(isinstance(node, LazyTensor) for _, node in walk(self.optimizer)), "tensor")]
        beside = list(self._beside())
        lines = [f"left behind: the optimizer's state ({listed(held)}); --with-optimizer keeps it"] if held else []
        shown = ", ".join(printable(name, 60) for name in beside[:_SHOWN]) + (" …" if len(beside) > _SHOWN else "")
        return lines + ([f"left behind beside the weights: {shown}"] if beside else [])


#: Names of entries that are told in one line.
_SHOWN = 40


def _plain(node: Any) -> Any:
    return node if isinstance(node, str | int | float) or node is None else "?"


def _world(model: dict[str, Any]) -> int:
    return integer(model.get("dp_world_size")) or 0


def _kept(name: str, shared: dict[str, Any]) -> str:
    """The parameter that stands for one that shares its memory, itself if none does."""
    for _ in range(len(shared)):
        following = shared.get(name)
        if not isinstance(following, str):
            break
        name = str(following)
    return name
