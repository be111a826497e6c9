"""Folders in which every rank saved a file of its own with torch.save, put together as the files say.

    model_world_size_4_rank_0.pt      verl: the weights, as DTensors
    optim_world_size_4_rank_0.pt      its optimizer's state
    extra_state_world_size_4_rank_0.pt

Any names with `rank` and a number are taken. What is in the files decides: a DTensor or ShardedTensor says which part
of the whole it is. What is there whole on every rank must be equal on all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from typing import Any

from ...checkpoint import Checkpoint
from ...disk.files import shell_path
from ...disk.inside import Folder, listed
from ...errors import Ambiguous, CannotCarry, CheckpointError, Malformed, counted, printable
from ...inert.other_tensors import as_dense
from ...tensor import LazyTensor, Storage, contiguous_stride
from ...tree import Dict, List
from ...weights import is_training_state
from ..tiles import Chunk, assemble
from .accounts import Account
from .flat import Flat, same_values
from .flat_params import Layout, Noted, filled, is_flat, is_note, layout, note_of, notes_in, pieces_of, whole_notes
from .pickled import open_part, saved_under
from .placement import Part, is_placed, part_of, placed_in
from .plan import Plan, Runs, put_together
from .rank_series import Series, lacking, series_in

NAME = "ranks"
#: Dicts and lists within each other.
_DEEPEST = 64
_HOW_TO_SAY = (
    'a file for --parts says it, with a line such as "0.weight": [7, 5] for each parameter, in the order of the model'
)


def open_ranks(folder: Folder, plan: Plan | None = None, *, whole: bool = False) -> Checkpoint:
    """Open a folder with a file for each rank: the pickles of all are read, no tensor is.

    Args:
        folder: the folder.
        plan: how parts go together where the files do not say so.
        whole: with the optimizer's state, in an entry of its own beside that of the weights.

    Raises:
        Malformed: a rank is missing or there twice, or the files contradict each other.
        CannotCarry: the files do not say how they go together.
    """
    every = series_in(folder)
    weights = [one for one in every if not one.is_optimizer]
    if not weights:
        raise CannotCarry(
            "holds files of ranks, none of which has weights by its name",
            where=folder.path,
            evidence=[listed(list(one.files.values())) for one in every[:4]],
            hint=f"name one of them: {shell_path(folder.path / next(iter(every[0].files.values())))}",
        )
    if len(weights) > 1:
        raise Ambiguous(
            f"holds {len(weights)} series of files, of several runs or several things:",
            where=folder.path,
            evidence=[f"{listed(list(one.files.values()))}" for one in weights[:6]],
            hint="move the files of one into a folder of their own",
        )
    joining = Joining(folder, weights[0], plan or Plan())
    root = joining.root
    joined = [joining]
    missing = [
        f"lacks the {printable(stem, 40)} files of {counted(len(ranks), 'rank')} ({', '.join(map(str, ranks[:8]))})"
        for stem, ranks in lacking(every).items()
    ]
    if whole and missing:
        raise Malformed(
            missing[0],
            where=folder.path,
            hint="the save, the download or the copy did not finish; without --with-optimizer, the weights are read",
        )
    beside = [one for one in every if one.is_optimizer and one.files.keys() == weights[0].files.keys()]
    left = [one for one in every if one is not weights[0]]
    if whole:
        entries: list[tuple[Any, Any]] = [(weights[0].stem or "model", root)]
        for series in beside:
            more = Joining(folder, series, plan or Plan())
            if more.parts:
                entries.append((series.stem, more.root))
                joined.append(more)
                left.remove(series)
        root = Dict(entries)
    lines = [line for one in joined for line in one.lines()]
    if left:
        asked = "" if whole or not beside else "; --with-optimizer keeps what can be put together of them"
        lines.append(f"left behind: {listed([name for one in left for name in one.files.values()])}{asked}")
    parts = {name: part for one in joined for name, part in one.opened.items()}
    account = Account()
    account.hold(parts.values())
    lines += account.lines(root)
    return Checkpoint(
        root,
        NAME,
        folder.path,
        sum(part.nbytes for part in parts.values()),
        warnings=tuple(
            dict.fromkeys([*joining.notes, *missing, *(line for part in parts.values() for line in part.warnings)])
        ),
        lost_content=(
            *(line for one in joined for line in one.lost),
            *(f"{n}: {line}" for n, part in parts.items() for line in part.lost_content),
        ),
        lost_form=tuple(lines),
    )


@dataclass
class Joining:
    """One series of files, put together.

    Attributes:
        folder, series: the files.
        plan: what a person says of names.
        opened: name -> checkpoint.
        root: the tree of all ranks.
        parts: how many tensors were put together of the parts of several ranks.
        same: how many tensors every rank has whole.
        repeated: elements that more than one rank holds.
        differing: paths of values (no tensors) that are not the same on all ranks.
        padding: elements that fill up flat parameters.
        nameless: flat parameters of which nobody says what is in them.
        shapeless: parameters of which nobody says the sizes.
    """

    folder: Folder
    series: Series
    plan: Plan
    opened: dict[str, Checkpoint] = field(default_factory=dict)
    root: Any = None
    parts: int = 0
    same: int = 0
    repeated: int = 0
    used: int = 0
    differing: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    padding: int = 0
    nameless: list[str] = field(default_factory=list)
    shapeless: list[str] = field(default_factory=list)
    _told: list[list[Noted]] | None = None
    _made: dict[Any, LazyTensor] = field(default_factory=dict)
    _met: dict[Any, Any] = field(default_factory=dict)
    _ranks: dict[int, str] = field(default_factory=dict)
    _wanted: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        """Open the files and put them together."""
        names = list(self.series.files.values())
        self.opened = {name: open_part(self.folder.file(name, name)) for name in names}
        self._check_ranks()
        self.root = self._joined([part.root for part in self.opened.values()], (), 0)
        self.notes += self.lost
        missing = sorted(self._wanted - set(self._ranks))
        if missing:
            self.notes.append(
                f"the files of {counted(len(missing), 'rank')} ({', '.join(map(str, missing[:8]))}) are not there, and "
                "none of what they hold is missing: other ranks have the same"
            )

    @property
    def lost(self) -> list[str]:
        """What no file says of parameters that are there."""
        lines = []
        if self.nameless:
            count = counted(len(self.nameless), "flat parameter")
            lines.append(
                f"no file says which names and sizes are in {count} of FSDP 1: {listed(self.nameless)}; {_HOW_TO_SAY}"
            )
        if self.shapeless:
            count = counted(len(self.shapeless), "parameter")
            lines.append(f"no file says the sizes of {count} of FSDP 1: {listed(self.shapeless)}; {_HOW_TO_SAY}")
        return lines

    def lines(self) -> list[str]:
        """For the receipt: what became of what the files hold."""
        lines = [
            f"{counted(len(self.opened), 'rank file')} of {printable(self.series.stem or 'weights', 40)}: "
            f"{counted(self.parts, 'tensor')} put together of {counted(self.used, 'element')}, "
            f"{counted(self.same, 'tensor')} whole on every rank"
        ]
        if self.repeated:
            lines.append(f"left behind: {counted(self.repeated, 'element')} that other ranks hold as well")
        if self.padding:
            lines.append(f"{counted(self.padding, 'element')} of padding left out")
        if self.differing:
            lines.append(f"not the same on all ranks, that of the first is taken: {listed(self.differing)}")
        return lines

    # -- ranks

    def _check_ranks(self) -> None:
        """Which rank each file is of, as its tensors say, else as its name says."""
        for (number, name), part in zip(self.series.files.items(), self.opened.values(), strict=True):
            first = next((part_of(node) for node in placed_in(part.root) if is_placed(node)), None)
            rank = number if first is None or first.rank is None else first.rank
            if (first is None or first.rank is None) and (other := saved_under(part, name)) is not None:
                raise Malformed(
                    f"holds the file of a rank under the name of another: {printable(name, 80)} was saved as "
                    f"{printable(other, 80)}",
                    where=self.folder.path,
                    hint="give each file the name that it was saved under, with its ending",
                )
            if rank in self._ranks:
                raise Malformed(
                    f"holds two files of rank {rank}, as what is in them says:",
                    where=self.folder.path,
                    evidence=[printable(self._ranks[rank], 80), printable(name, 80)],
                    hint="one is a copy under another name; fetch the file of the right rank",
                )
            self._ranks[rank] = name
            self._wanted.update(first.ranks if first is not None else ())
        if self.series.world is not None:
            self._wanted.update(range(self.series.world))
        if not self._wanted:
            self._wanted.update(range(max(self.series.files) + 1))

    def _lacking(self, what: str) -> Malformed:
        """What to say where a part is missing."""
        missing = sorted(self._wanted - set(self._ranks))
        if not missing:
            return Malformed(f"{what}: no file of its {len(self._ranks):,} ranks holds them", where=self.folder.path)
        ranks = ", ".join(map(str, missing[:8])) + (" …" if len(missing) > 8 else "")
        return Malformed(
            f"lacks the files of {counted(len(missing), 'rank')} of {len(self._wanted):,}: {ranks}",
            where=self.folder.path,
            evidence=[what, f"there are {listed(list(self._ranks.values()))}"],
            hint="the save, the download or the copy did not finish; fetch the missing files",
        )

    # -- the tree

    def _joined(self, nodes: list[Any], trail: tuple[str, ...], depth: int) -> Any:
        """The node that NODES, one of each rank, are together.

        One that stands in several places stays one: forty dicts can unfold into 2**40. Whether values may differ
        depends on the place, so weights and training state each have their own.
        """
        if not isinstance(nodes[0], Dict | List | tuple):
            return self._made_of(nodes, trail, depth)
        key = (any(is_training_state(part) for part in trail), *map(id, nodes))
        if key not in self._met:
            self._met[key] = self._made_of(nodes, trail, depth)
        return self._met[key]

    def _made_of(self, nodes: list[Any], trail: tuple[str, ...], depth: int) -> Any:
        first = nodes[0]
        if depth > _DEEPEST:
            raise CannotCarry(f"holds dicts nested more than {_DEEPEST} deep", where=self.folder.path)
        if is_placed(first):
            return self._tensor(nodes, _shown(trail))
        if as_dense(first) is not None:
            return self._whole(nodes, trail)
        if isinstance(first, Dict):
            return self._dict(nodes, trail, depth)
        listed_ = isinstance(first, List)
        if listed_ or type(first) is tuple:
            inner = [node.items if isinstance(node, List) else node for node in nodes if type(node) is type(first)]
            if len(inner) != len(nodes) or len({len(one) for one in inner}) > 1:
                self.differing.append(_shown(trail))
                return first
            items = [
                self._joined(list(at), (*trail, str(n)), depth + 1) for n, at in enumerate(zip(*inner, strict=True))
            ]
            return List(items) if listed_ else tuple(items)
        plain = isinstance(first, str | int | float | bytes | None)
        if plain and any(type(node) is not type(first) or node != first for node in nodes):
            self.differing.append(_shown(trail))
        return first

    def _dict(self, nodes: list[Any], trail: tuple[str, ...], depth: int) -> Any:
        first = nodes[0]
        keys = [[key for key, _ in node.entries] if isinstance(node, Dict) else None for node in nodes]
        plain = all(isinstance(key, str | int) for one in keys for key in one or [0])
        if not plain:
            self.differing.append(_shown(trail))
            return first
        held = [dict(node.entries) if isinstance(node, Dict) else {} for node in nodes]
        for one in held:
            if one.keys() != held[0].keys():
                odd = next(iter(one.keys() ^ held[0].keys()))
                raise CannotCarry(
                    f"its ranks hold different keys, and do not say how they go together: "
                    f"{printable(repr(odd), 80)} is not in all",
                    where=self.folder.path,
                    evidence=[
                        f"{printable(n, 80)}: {counted(len(h), 'key')}" for n, h in zip(self.opened, held, strict=True)
                    ][:6],
                    hint="they are of two runs, or stages of a pipeline",
                )
        named = self._named(held)
        entries: list[tuple[Any, Any]] = []
        for key in held[0]:
            if key in named:
                entries += [(name, value) for name, value in named[key].items() if name not in dict(entries)]
            elif not is_note(held[0][key]):
                entries.append((key, self._joined([one[key] for one in held], (*trail, str(key)), depth + 1)))
        return Dict(entries, first.ordered, first.attributes)

    # -- flat parameters

    def _named(self, held: list[dict[Any, Any]]) -> dict[Any, dict[str, LazyTensor]]:
        """Keys of a state dict of FSDP 1 -> the parameters that stand in their place."""
        keys = [key for key in held[0] if is_flat(key) and all(is_placed(one[key]) for one in held)]
        named: dict[Any, dict[str, LazyTensor]] = {}
        for key in sorted(keys, key=lambda key: -key.count(".")):
            try:
                self._name(key, keys, held, named)
            except CheckpointError as error:
                error.where = error.where or str(self.folder.path)
                raise
        return named

    def _name(
        self, key: str, keys: list[str], held: list[dict[Any, Any]], named: dict[Any, dict[str, LazyTensor]]
    ) -> None:
        """Put into NAMED what stands in place of the flat parameter KEY, and of the views of it beside."""
        parts = [part_of(one[key]) for one in held]
        shape, dtype = parts[0].shape, parts[0].dtype
        if len(shape) != 1 or any((part.shape, part.dtype) != (shape, dtype) for part in parts):
            raise Malformed(f"{printable(key, 80)} is not the same flat parameter on all ranks")
        named_here = {name for made in named.values() for name in made}
        owners: dict[tuple[int, ...], int] = {}
        for number, part in enumerate(parts):
            for offsets, run in part.boxes:
                if run.numel:
                    owners.setdefault(offsets, number)
        chunks = dict(sorted(self._chunks(parts).items()))
        values = list(chunks.values())
        flat = Flat(values, dtype)
        if flat.numel < shape[0]:
            raise self._lacking(f"{printable(key, 80)} has {shape[0]:,} elements, of which {flat.numel:,} are there")
        starts = [offset for (offset,) in chunks]
        if starts != [0, *accumulate(one.numel for one in values[:-1])][: len(starts)] or flat.numel != shape[0]:
            raise Malformed(f"the parts of {printable(key, 80)} overlap")
        if self._told is None:
            self._told = [notes_in(part.root) for part in self.opened.values()]
        before = key.removesuffix(key.rpartition(".")[2])
        notes = [note_of(key, before, keys, self._told[owners[offsets]]) for offsets in chunks]
        runs = list(zip(starts, values, strict=True))
        views = {
            other: place
            for other in held[0]
            if isinstance(other, str) and other.startswith(before) and other not in (*named, *keys)
            if (place := pieces_of(runs, [as_dense(held[owners[offsets]][other]) for offsets in chunks])) is not None
        }
        shapes = whole_notes(key, notes) or {
            name: size
            for name, size in self.plan.sizes().items()
            if name.startswith(before) and (name in views or name not in (*held[0], *named_here))
        }
        if views:
            made = self._by_views(views, shapes)
            if not filled(made, flat):
                raise Malformed(f"{printable(key, 80)} holds elements that are of none of the parameters beside it")
            named |= {name: {name: flat.tensor(made.starts[name], made.shapes[name], name)} for name in made.shapes}
            named[key] = {}
        elif shapes:
            lengths = [one.numel for one in values]
            made = layout(key, shapes, flat, len(self._wanted), lengths, notes)
            named[key] = {name: flat.tensor(made.starts[name], size, name) for name, size in shapes.items()}
            named |= {name: {} for name in shapes if name in held[0]}  # copies of its parts, under their names
        else:
            self.nameless.append(printable(key, 60))
            return
        self.parts += len(made.shapes)
        self.used += made.used
        self.padding += flat.numel - made.used

    def _by_views(self, views: dict[str, tuple[int, int]], shapes: dict[str, tuple[int, ...]]) -> Layout:
        """Where parameters are, of each of which the ranks have views; their sizes, as far as anybody says them."""
        sizes: dict[str, tuple[int, ...]] = {}
        for name, (_, count) in sorted(views.items(), key=lambda view: view[1]):
            shape = shapes.get(name)
            if shape is None:
                self.shapeless.append(printable(name, 60))
            elif prod(shape) != count:
                raise Malformed(
                    f"{printable(name, 80)} has {count:,} elements, and its sizes are said to be {list(shape)}"
                )
            sizes[name] = (count,) if shape is None else shape
        return Layout(sizes, {name: start for name, (start, _) in views.items()})

    def _tensor(self, nodes: list[Any], path: str) -> LazyTensor:
        """The tensor whose parts the ranks hold."""
        try:
            parts = [part_of(node) for node in nodes if is_placed(node)]
            if len(parts) != len(nodes) or len({(part.shape, part.dtype) for part in parts}) > 1:
                shown = ", ".join(sorted({str(list(part.shape)) for part in parts}))
                raise Malformed(f"is not the same tensor on all ranks: {shown}", hint="the files are of two runs")
            return self._assembled(parts, path)
        except CheckpointError as error:
            if not error.where:
                error.where, error.what = str(self.folder.path), f"{path}: {error.what}"
            raise

    def _assembled(self, parts: list[Part], path: str) -> LazyTensor:
        first = parts[0]
        chunks = self._chunks(parts)
        key: Any = (first.shape, first.dtype, tuple((offsets, values.identity) for offsets, values in chunks.items()))
        if key not in self._made:
            stored: int = sum(values.numel for values in chunks.values())
            if stored < prod(first.shape):
                raise self._lacking(f"{path} has {prod(first.shape):,} elements, of which {stored:,} are there")
            boxes = [Chunk(offsets, values) for offsets, values in chunks.items()]
            source = assemble(first.shape, first.dtype, boxes)
            storage = Storage(source, "cpu", first.dtype if first.dtype.storage else None, path)
            self._made[key] = LazyTensor(storage, first.dtype, first.shape, contiguous_stride(first.shape))
            self.used += stored
        self.parts += 1
        return self._made[key].changed(requires_grad=first.requires_grad)

    def _chunks(self, parts: list[Part]) -> dict[tuple[int, ...], LazyTensor]:
        """Offsets -> values of the parts, of those that several ranks hold one."""
        chunks: dict[tuple[int, ...], LazyTensor] = {}
        for part in parts:
            for offsets, values in part.boxes:
                if not values.numel and 0 not in part.shape:
                    continue
                if offsets in chunks and chunks[offsets].shape == values.shape:
                    self.repeated += values.numel
                    if not same_values(chunks[offsets], values):
                        raise Malformed(
                            f"the ranks that hold the same part of it have other values, from {list(offsets)} on",
                            hint="a file is of another step; fetch the files of one save",
                        )
                    continue
                chunks[offsets] = values
        return chunks

    def _whole(self, nodes: list[Any], trail: tuple[str, ...]) -> Any:
        """A tensor that every rank has whole."""
        first = as_dense(nodes[0])
        assert first is not None
        said, along = self.plan.find(trail[-1] if trail else "")
        whole_there = isinstance(along, Runs) and first.shape == along.shape
        if said and along is not None and not whole_there:
            parts = [tensor for tensor in map(as_dense, nodes) if tensor is not None]
            if len(parts) == len(nodes):
                self.parts += 1
                self.used += sum(part.numel for part in parts)
                return put_together(parts, along, _shown(trail))
        for name, node in zip(self.opened, nodes, strict=True):
            other = as_dense(node)
            if (
                other is None
                or other.shape != first.shape
                or other.dtype != first.dtype
                or not same_values(first, other)
            ):
                if "rng" in trail[-1:] or any(is_training_state(part) for part in trail):
                    self.differing.append(_shown(trail))
                    return nodes[0]
                raise _no_plan(self.folder, _shown(trail), first, other, next(iter(self.opened)), name)
        self.same += 1
        self.repeated += first.numel * (len(nodes) - 1)
        return nodes[0]


def _no_plan(folder: Folder, path: str, one: LazyTensor, other: LazyTensor | None, of: str, name: str) -> CannotCarry:
    shapes = [
        f"{printable(file, 80)}: {list(t.shape) if t is not None else 'none'}" for file, t in ((of, one), (name, other))
    ]
    return CannotCarry(
        f"{path} is not the same on all ranks, and the files do not say which part of the whole each has",
        where=folder.path,
        evidence=shapes,
        hint=f'say it in a file for --parts, with a line such as "{path.rpartition("/")[2]}": 0',
    )


def _shown(trail: tuple[str, ...]) -> str:
    return printable("/".join(trail), 120) or "the root"
