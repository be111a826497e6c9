"""How the parts that Megatron's ranks hold go together: by the names of Megatron-core.

    linear_qkv, word_embeddings, output_layer    by rows (linear_qkv by query groups)
    query_key_value                              by rows, head by head; before checkpoint_version 1.0 in three runs,
                                                 since each rank has a part of the queries, keys and values
    linear_proj, linear_fc2                      by columns
    linear_fc1                                   by rows, of a gated model in two runs: each rank has a part of the gate
    experts.local_experts.N.…, experts.linear_fc1.weightN
                                                 each expert-parallel rank counts its experts from 0
    layers.N.…                                   each stage, and each chunk of interleaved stages, counts from 0

Chunk V of stage S of P comes before chunk V of stage S + 1, and all chunks V before those that follow: what
get_transformer_layer_offset of megatron-core counts. Whatever is in no list must be equal on all ranks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...disk.inside import Folder
from ...errors import CannotCarry, CheckpointError, Malformed, counted, printable
from ...inert.other_tensors import as_dense
from ...tensor import LazyTensor
from .flat import same_values
from .plan import Along, Plan, Rule, put_together

_LAYER = re.compile(r"(?P<before>(?:.*?\.)?layers\.)(?P<number>\d{1,6})(?P<behind>\..*)", re.ASCII)
_EXPERT = re.compile(
    r"(?P<before>.*\.experts\.(?:local_experts\.|linear_fc[12]\.(?:weight|bias)))(?P<number>\d{1,6})(?P<behind>(?:\..*)?)",
    re.ASCII,
)
_EXPERTS_IN_ONE = (".experts.weight1", ".experts.weight2")
#: Ends of names -> along which dimension ranks divide what has them.
_ROWS = (
    *("word_embeddings.weight", "output_layer.weight", "output_layer.bias"),
    *(f"{layer}.{kind}" for layer in ("linear_qkv", "query_key_value") for kind in ("weight", "bias")),
)
_COLUMNS = re.compile(
    r".*(?:linear_proj\.weight|linear_fc2\.weight\d*|self_attention\.dense\.weight|dense_4h_to_h\.weight)", re.ASCII
)
_GATED = {"linear_fc1": "linear_fc2", "dense_h_to_4h": "dense_4h_to_h"}
_THIRDS = ("query_key_value.weight", "query_key_value.bias")
_STATE = "._extra_state"


class Place(NamedTuple):
    """Which rank a file is of: stage of the pipeline, tensor-parallel and expert-parallel rank."""

    stage: int
    tensor: int
    expert: int


def has_thirds(entries: Mapping[str, Any]) -> bool:
    """Whether the rows of query_key_value are queries, keys and values one after the other, not head by head: in files
    of a checkpoint_version before 1.0. Megatron takes a file that has none for version 0.
    """
    version = entries.get("checkpoint_version")
    return version is None or (type(version) in (int, float) and version < 1)


@dataclass
class Joining:
    """Tensors of one kind (the weights, or a state of the optimizer), put together from all ranks.

    Attributes:
        folder: for errors.
        plan: what a person says of names.
        thirds: each rank's query_key_value has its queries, then its keys, then its values (`has_thirds`).
        entries: name -> value, of all together.
        divided, same: tensors that were put together, and those that are the same on all ranks.
        states: extra states of modules, which are left behind.
        used, repeated: elements of the result, and those that another rank holds as well.
        gated: gated layers.
        projections: weights of query_key_value that were put together in three runs.
        experts: experts that were numbered through.
        vocabulary: rows of the embedding.
    """

    folder: Folder
    plan: Plan
    thirds: bool = False
    entries: dict[str, LazyTensor] = field(default_factory=dict)
    divided: int = 0
    same: int = 0
    states: int = 0
    used: int = 0
    repeated: int = 0
    gated: int = 0
    projections: int = 0
    experts: set[str] = field(default_factory=set)
    vocabulary: set[int] = field(default_factory=set)

    def join(self, models: Mapping[Place, Sequence[dict[str, Any]]]) -> None:
        """Put together what each rank holds: for each of its chunks of layers, name -> value.

        Raises:
            CannotCarry: it is divided in a way that is not known.
            Malformed: ranks contradict each other.
        """
        stages = sorted({place.stage for place in models})
        ranks = sorted({place.tensor for place in models})
        experts = sorted({place.expert for place in models})
        chunks = {len(model) for model in models.values()}
        if len(chunks) > 1:
            raise Malformed("has ranks with different numbers of interleaved chunks", where=self.folder.path)
        before: dict[str, int] = {}  # layers that came before, of each list: encoder and decoder count apart
        for chunk in range(chunks.pop()):
            for stage in stages:
                each = [
                    self._experts([models[Place(stage, rank, expert)][chunk] for expert in experts]) for rank in ranks
                ]
                for list_of_layers, count in self._add(each, before).items():
                    before[list_of_layers] = before.get(list_of_layers, 0) + count

    def _experts(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """What expert-parallel ranks hold together: their experts one after the other, of the rest one."""
        if len(ranks) == 1:
            return ranks[0]
        self._require_same_names(ranks)
        counts: dict[str, int] = {}
        for name in ranks[0]:
            if name.endswith(_EXPERTS_IN_ONE):
                raise CannotCarry(
                    f"{printable(repr(name), 80)} holds several experts in one tensor, which ckptool does not put "
                    "together",
                    where=self.folder.path,
                )
            if match := _EXPERT.fullmatch(name):
                counts[match["before"]] = max(counts.get(match["before"], 0), int(match["number"]) + 1)
        found: dict[str, Any] = {}
        taken: set[str] = set()
        of_experts: dict[str, list[tuple[str, re.Match[str]]]] = {}
        for name in ranks[0]:
            if match := _EXPERT.fullmatch(name):
                of_experts.setdefault(match["before"], []).append((name, match))
        for name in ranks[0]:
            match = _EXPERT.fullmatch(name)
            if match is None:
                found[name] = self._only(name, [rank[name] for rank in ranks], "expert-parallel")
            elif match["before"] not in taken:
                before = match["before"]
                taken.add(before)
                for number, rank in enumerate(ranks):
                    for local, place in of_experts[before]:
                        index = int(place["number"]) + number * counts[before]
                        found[f"{before}{index}{place['behind']}"] = rank[local]
                        self.experts.add(f"{before}{index}")
        return found

    def _require_same_names(self, ranks: list[dict[str, Any]]) -> None:
        for other in ranks[1:]:
            if other.keys() != ranks[0].keys():
                odd = next(iter(other.keys() ^ ranks[0].keys()))
                raise CannotCarry(
                    f"{printable(repr(odd), 80)} is not on all ranks of its stage", where=self.folder.path
                )

    def _only(self, name: str, values: list[Any], kind: str) -> Any:
        """The value that all of several ranks have, of which the first is taken."""
        tensors = [as_dense(value) for value in values]
        first = tensors[0]
        if first is None:
            return values[0]
        for tensor in tensors[1:]:
            if tensor is None or tensor.shape != first.shape or not same_values(first, tensor):
                raise CannotCarry(
                    f"{printable(repr(name), 80)} is not the same on all {kind} ranks, and is not an expert",
                    where=self.folder.path,
                    hint="a file is of another step or run; fetch the files of one save",
                )
        self.repeated += first.numel * (len({tensor.identity for tensor in tensors if tensor}) - 1)
        return values[0]

    def _add(self, ranks: list[dict[str, Any]], before: Mapping[str, int]) -> dict[str, int]:
        """Take the tensors of one chunk. Each list of layers follows as many as BEFORE has for it. Returns how many
        layers each has here.
        """
        self._require_same_names(ranks)
        layers: dict[str, int] = {}
        for name in ranks[0]:
            match = _LAYER.fullmatch(name)
            new = name
            if match:
                head, number = match["before"], int(match["number"])
                layers[head] = max(layers.get(head, 0), number + 1)
                new = f"{head}{number + before.get(head, 0)}{match['behind']}"
            values = [rank[name] for rank in ranks]
            if name.endswith(_STATE):
                self.states += values[0] is not None
                continue
            tensors = [as_dense(value) for value in values]
            known = [tensor for tensor in tensors if tensor is not None]
            if len(known) != len(values):
                raise CannotCarry(f"{printable(repr(name), 80)} is not a tensor", where=self.folder.path)
            try:
                made = self._one(name, known, ranks[0])
            except CheckpointError as error:
                error.where = error.where or str(self.folder.path)
                raise
            there = self.entries.get(new)
            if there is None:
                self.entries[new] = made
                self.used += made.numel
                continue
            if there.shape != made.shape or not same_values(there, made):
                raise Malformed(f"{printable(repr(new), 80)} has two values, on two stages", where=self.folder.path)
            self.repeated += made.numel
        return layers

    def _one(self, name: str, parts: list[LazyTensor], others: dict[str, Any]) -> LazyTensor:
        """The tensor that the parts of all tensor-parallel ranks are together."""
        said, rule = self.plan.find(name)
        if not said and parts[0].shape:
            rule = self._rule(name, parts, others)
        if rule is not None:
            self.divided += len(parts) > 1
            made = parts[0] if len(parts) == 1 else put_together(parts, rule, name)
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
        self.repeated += parts[0].numel * (len(parts) - 1)
        return parts[0]

    def _rule(self, name: str, parts: list[LazyTensor], others: dict[str, Any]) -> Rule | None:
        if self.thirds and name.endswith(_THIRDS) and len(parts) > 1:
            self.projections += name.endswith("weight")
            return Along(0, 3)
        if name.endswith(_ROWS):
            return Along(0)
        if _COLUMNS.fullmatch(name):
            return Along(1)
        if name.endswith(_EXPERTS_IN_ONE) and len(parts) > 1:
            raise CannotCarry(
                f"{printable(repr(name), 80)} holds several experts in one tensor, which ckptool does not put together",
                hint="a save of the distributed format (torch_dist) is read",
            )
        module, _, kind = name.rpartition(".")
        above, _, layer = module.rpartition(".")
        kind, number = re.fullmatch(r"(.*?)(\d*)", kind, re.ASCII | re.DOTALL).groups()  # type: ignore[union-attr]
        if layer not in _GATED or kind not in ("weight", "bias"):
            return None
        second = as_dense(others.get(f"{above}.{_GATED[layer]}.weight{number}"))
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
        """For the receipt: what became of what the files hold of it."""
        lines = []
        if self.gated:
            lines.append(f"{counted(self.gated, 'gated layer')}: of each rank the first half is of the gate")
        if self.projections:
            lines.append(
                f"{counted(self.projections, 'query_key_value')} put together in three runs (queries, keys, values), "
                "as before checkpoint_version 1.0, which a file without a version is taken for; --parts says otherwise"
            )
        if self.experts:
            layers = {name.rstrip("0123456789") for name in self.experts}
            count = f"{counted(len(self.experts), 'expert')} in {counted(len(layers), 'place')}"
            lines.append(f"{count} numbered through, which each rank counts from 0")
        lines += [f"the vocabulary has {rows:,} rows, as Megatron filled it up" for rows in sorted(self.vocabulary)]
        if self.repeated:
            lines.append(f"left behind: {counted(self.repeated, 'element')} that other ranks hold as well")
        if self.states:
            lines.append(f"left behind: {counted(self.states, 'extra state')} of modules")
        return lines
