"""What the weights of an ONNX graph are: told by the operators that take them and the place among their inputs.

Operators and inputs are those of onnx's `docs/Operators.md`, and of the contributed operators of ONNX Runtime. Through
nodes that only rename, cast or turn a weight (Identity, Cast, DequantizeLinear, Transpose) it is followed to what takes
it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...checkpoint import Role
from .tensor_roles import SPACE

_OPERATOR = "operator"
#: Operator -> its inputs that are weights: place -> part.
_NORM = {1: "gamma", 2: "beta"}
_PARTS: dict[str, dict[int, str]] = {
    "Conv": {1: "kernel", 2: "bias"},
    "FusedConv": {1: "kernel", 2: "bias"},
    "ConvInteger": {1: "kernel"},
    "QLinearConv": {3: "kernel", 8: "bias"},
    "ConvTranspose": {1: "kernel", 2: "bias"},
    "Gemm": {0: "kernel", 1: "kernel", 2: "bias"},
    "MatMul": {0: "kernel", 1: "kernel"},
    "FusedMatMul": {1: "kernel"},
    "MatMulInteger": {1: "kernel"},
    "QLinearMatMul": {3: "kernel"},
    "BatchNormalization": {1: "gamma", 2: "beta", 3: "moving_mean", 4: "moving_variance"},
    "InstanceNormalization": _NORM,
    "GroupNormalization": _NORM,
    "LayerNormalization": _NORM,
    "RMSNormalization": {1: "gamma"},
    "SimplifiedLayerNormalization": {1: "gamma"},
    "PRelu": {1: "alpha"},
    "LSTM": {1: "kernel", 2: "recurrent_kernel", 3: "bias"},
    "GRU": {1: "kernel", 2: "recurrent_kernel", 3: "bias"},
    "RNN": {1: "kernel", 2: "recurrent_kernel", 3: "bias"},
    "Gather": {0: "embeddings"},
}
#: What is followed, and for how many steps at most: a file may say anything.
_FOLLOWED = ("Identity", "Cast", "DequantizeLinear", "Transpose")
_MOST_STEPS = 10_000_000


@dataclass(slots=True)
class Node:
    """A node of a graph: its operator, its inputs and outputs by their full names, and its attributes of numbers."""

    operator: str
    inputs: list[str]
    outputs: list[str]
    numbers: dict[str, list[int]] = field(default_factory=dict)


def roles_in(nodes: Sequence[Node], shapes: Mapping[str, tuple[int, ...]], real: set[str]) -> dict[str, Role]:
    """Name of a weight -> what it is, for those that an operator tells anything of.

    Args:
        nodes: the nodes of all graphs.
        shapes: the weights, by their full names.
        real: those of them whose values are no integers: others that are looked up are no tables.
    """
    graph = _Graph(nodes, set(shapes))
    found: dict[str, Role] = {}
    for name, shape in shapes.items():
        said = list(dict.fromkeys(graph.said(name, len(shape), name in real)))
        if said:
            found[name] = _agreed(said)
    return found


class _Graph:
    """Which nodes take and make what."""

    def __init__(self, nodes: Sequence[Node], weights: set[str]) -> None:
        self._takers: dict[str, list[tuple[Node, int]]] = defaultdict(list)
        self._makers: dict[str, Node] = {}
        self._weights = weights
        self._steps = 0
        for node in nodes:
            for place, name in enumerate(node.inputs):
                if name:
                    self._takers[name].append((node, place))
            self._makers.update((name, node) for name in node.outputs)

    def said(self, weight: str, rank: int, real: bool) -> Iterator[Role]:
        """What each operator says that takes a weight of RANK dimensions."""
        pending = [(weight, tuple(range(rank)), real)]
        seen = set(pending)
        while pending:
            name, order, real = pending.pop()
            for node, place in self._takers.get(name, ()):
                self._steps += 1
                if self._steps > _MOST_STEPS:
                    return
                if node.operator not in _FOLLOWED or place:
                    role = self._taken(node, place, rank, real)
                    if role is not None:
                        letters = dict(zip(order, role.axes, strict=False))
                        yield Role(role.layer, role.part, "".join(letters[at] for at in sorted(letters)), _OPERATOR)
                    continue
                turned = order
                if node.operator == "Transpose":
                    perm = node.numbers.get("perm") or list(range(rank))[::-1]
                    if sorted(perm) != list(range(rank)):
                        continue
                    turned = tuple(order[at] for at in perm)
                for output in node.outputs[:1]:
                    further = (output, turned, real or node.operator == "DequantizeLinear")
                    if further not in seen:
                        seen.add(further)
                        pending.append(further)

    def _taken(self, node: Node, place: int, rank: int, real: bool) -> Role | None:
        """What an operator says of its input at PLACE, which has RANK dimensions."""
        kind = node.operator
        if kind == "Add" and rank == 1 and len(node.inputs) == 2:
            other = self._makers.get(node.inputs[1 - place])
            weighs = other is not None and "kernel" in _PARTS.get(other.operator, {}).values()
            return Role(other.operator, "bias") if other is not None and weighs else None
        part = _PARTS.get(kind, {}).get(place)
        if part is None or (
            place == 0 and kind in ("Gemm", "MatMul") and not self._weights.isdisjoint(node.inputs[1:2])
        ):
            return None
        if part == "embeddings":
            return Role(kind, part, "VO") if rank == 2 and real and not any(node.numbers.get("axis", [])) else None
        return Role(kind, part, _axes(node, part, place, rank))


def _agreed(said: list[Role]) -> Role:
    """What a weight is that several operators take: a table, if one looks it up; else what all say."""
    for role in said:
        if role.part == "embeddings":
            return role
    layer, part, axes = (
        words.pop() if len(words := {getattr(role, name) for role in said}) == 1 else ""
        for name in ("layer", "part", "axes")
    )
    return Role(layer, part, axes, _OPERATOR)


def _axes(node: Node, part: str, place: int, rank: int) -> str:
    kind = node.operator
    space = SPACE.get(rank - 2, "")
    if kind in ("LSTM", "GRU", "RNN"):
        return "NOI" if part != "bias" and rank == 3 else "NO" if part == "bias" and rank == 2 else ""
    if part != "kernel":
        return ""
    if "Conv" in kind:
        return (f"IO{space}" if kind == "ConvTranspose" else f"OI{space}") if space else ""
    if rank != 2:
        return ""
    turned = node.numbers.get("transA" if place == 0 else "transB", [0]) != [0]
    return "OI" if turned == (place == 1) else "IO"
