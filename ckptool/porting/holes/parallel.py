"""Add up branches that the source runs in parallel, where the model has one layer in their place.

Networks such as RepVGG (Ding et al., 2021) are trained with several convolutions of one input, each with a batch norm
behind it, and a batch norm of the input itself; the outputs of all are added. For use, each branch becomes a kernel of
one size with its norm folded in, and the kernels are added.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .. import expression as ex
from ..expression import Expr
from ..forms.pieces import Piece
from ..matching.units import Pair, Path, Unit
from ..questions import Question, Reason, ask
from .filling import Filled, Filling
from .folded import FoldedNorm, is_batch_norm

#: So many components of its path name a layer inside of the module with its branches: 3 in `block.rbr_conv.0.conv`.
_DEEPEST = 3


def add_branches(filling: Filling) -> None:
    """Plan to fill layers of the model that have a bias with the sum of parallel branches of the source, and add all
    units of these branches but the partner itself to `filling.planned`. `finish_folds` makes the sums. A branch is a
    layer with its batch norm folded in, or such a norm alone; the first one is the partner of the layer.

    The branches are in the first module around the partner, from the outside (`_modules`), in which all units without a
    partner are such branches (`_branches`). Nothing is planned if the model's weight has other sizes than its
    partner's, or one of the two is a transposed convolution (`_may_be_sum`); nor in a module in which another unit with
    a partner has as many outputs and inputs.
    """
    free = filling.matching.free_sources
    if not any(map(is_batch_norm, free)):
        return
    inside, taken = _by_module(free), _by_module(s for _, s in filling.matching.pairs)
    place = {id(u): at for at, u in enumerate(sorted(filling.matcher.cells.sources, key=lambda u: u.order))}
    for t, s in filling.matching.pairs:
        for module in _modules(s) if _may_be_sum(t, s) else ():
            alone = not any(_is_like(u, s) for u in taken[module] if u is not s)
            branches = _branches(s, module, inside[module], place) if alone else []
            if branches:
                _Sum((t, s), branches).plan(filling)
                break


def _modules(unit: Unit) -> list[Path]:
    """Return the paths of the three innermost modules around UNIT, or of fewer, the outermost of them first: [`a`,
    `a.b`] for `a.b.conv`. The model as a whole is left out.
    """
    return [unit.path[:end] for end in range(max(len(unit.path) - _DEEPEST, 1), len(unit.path))]


def _by_module(units: Iterable[Unit]) -> dict[Path, list[Unit]]:
    """Return path of a module -> those of UNITS that have the module among their `_modules`, in order of registration.
    A path without such units gives [].
    """
    found: dict[Path, list[Unit]] = defaultdict(list)
    for unit in sorted(units, key=lambda u: u.order):
        for module in _modules(unit):
            found[module].append(unit)
    return found


def _may_be_sum(t: Unit, s: Unit) -> bool:
    """Return whether T, of the model, has a bias, and T and its partner S have weights of equal sizes: matrices, or
    kernels of convolutions that are not transposed.
    """
    weights = t.pieces.get("weight"), s.pieces.get("weight")
    if "bias" not in t.pieces or any(w is None or w.entry.how.startswith("conv_transpose") for w in weights):
        return False
    own, theirs = (w.shape for w in weights if w is not None)
    return own == theirs and len(own) > 1


def _is_like(unit: Unit, s: Unit) -> bool:
    """Return whether UNIT has a weight with as many outputs and inputs (the first two sizes) as that of S, so that the
    two may be parallel.
    """
    return "weight" in unit.pieces and unit.pieces["weight"].shape[:2] == s.pieces["weight"].shape[:2]


@dataclass(frozen=True, slots=True)
class _Branch:
    """A branch: a layer with the batch norm behind it, or a batch norm of the input itself.

    Attributes:
        norm: the batch norm.
        layer: the layer, or None.
    """

    norm: Unit
    layer: Unit | None = None

    def weight(self, like: Piece) -> Expr:
        """Return the expression of the weight of this branch as a kernel of the sizes of LIKE, without its norm: the
        weight of the layer, with equally many zeros on both sides if its kernel is smaller. For a norm alone, it is a
        kernel that passes on each channel: the identity, or ones for a depthwise kernel.
        """
        rows, columns, *sizes = like.shape
        ones = [1] * len(sizes)
        if self.layer is None:
            groups = [ex.eye(columns)] * (rows // columns)
            made = ex.cat(0, *groups) if columns > 1 else ex.shift(ex.zeros(rows, 1), 1.0)
            inner, is_flat = ones, True
        else:
            weight = self.layer.pieces["weight"]
            made, inner = weight.expr, [*weight.shape[2:]] or ones
            is_flat = len(weight.shape) == 2
        if is_flat and sizes:
            made = ex.reshape(made, (rows, columns, *ones), (rows, columns))
        for dim, (size, own) in enumerate(zip(sizes, inner, strict=True)):
            made = ex.pad(made, 2 + dim, (size - own) // 2)
        return made

    def bias(self) -> Expr:
        """Return the expression of the bias of the layer, without the norm; as many zeros as the norm has numbers, if
        the layer has no bias or there is no layer.
        """
        piece = None if self.layer is None else self.layer.pieces.get("bias")
        return ex.zeros(*self.norm.main.shape) if piece is None else piece.expr


def _branches(s: Unit, module: Path, free: Sequence[Unit], place: dict[int, int]) -> list[_Branch]:
    """Return the branches in MODULE, that of the layer S first, then those of other layers, then a norm alone. FREE are
    the units of the source in MODULE without a partner, in the order of the file, and PLACE has id of a unit -> its
    place in the file.

    [] unless FREE and S are the layers and norms of two or more branches:

      - Each norm is a batch norm with as many numbers as S has outputs, and each layer has a kernel that fits into the
        middle of that of S (`_fits`).
      - Each layer has a norm behind it: the norm for which it is the only layer directly in the same module, if that is
        not MODULE itself, or else the norm directly behind it in the file.
      - At most one norm is left over without a layer. This needs as many inputs as outputs in S, or one input for each
        output.
    """
    norms = [u for u in free if is_batch_norm(u)]
    layers = [s, *(u for u in free if not is_batch_norm(u))]
    weight = s.pieces["weight"]
    if not all(_fits(layer, weight) for layer in layers[1:]) or any(n.main.shape != weight.shape[:1] for n in norms):
        return []
    behind: dict[int, Unit] = {}  # id of a layer -> the norm behind it
    alone = []
    for norm in norms:
        beside = [u for u in layers if u.path[:-1] == norm.path[:-1]]
        if norm.path[:-1] == module or len(beside) != 1:
            beside = [u for u in layers if place[id(u)] == place[id(norm)] - 1]
        if beside and id(beside[0]) not in behind:
            behind[id(beside[0])] = norm
        else:
            alone.append(norm)
    if len(behind) < len(layers) or len(alone) > 1 or len(norms) < 2:
        return []
    if alone and weight.shape[0] % weight.shape[1]:
        return []
    return [*(_Branch(behind[id(layer)], layer) for layer in layers), *map(_Branch, alone)]


def _fits(layer: Unit, weight: Piece) -> bool:
    """Return whether LAYER has nothing but a weight, and perhaps a bias, and its weight has the outputs and inputs of
    WEIGHT and a kernel that fits into the middle of that of WEIGHT: as large, or smaller by an even number in each
    dimension. A matrix counts as a kernel of size 1.
    """
    own = layer.pieces.get("weight")
    if own is None or layer.pieces.keys() - {"weight", "bias"} or own.shape[:2] != weight.shape[:2]:
        return False
    sizes = weight.shape[2:]
    inner = own.shape[2:] or (1,) * len(sizes)
    around = [size - one for size, one in zip(sizes, inner, strict=False)]
    return len(inner) == len(sizes) and all(n >= 0 and n % 2 == 0 for n in around)


@dataclass(frozen=True, slots=True)
class _Sum:
    """The branches of the source in the place of one layer of the model.

    Attributes:
        pair: the layer of the model, and its partner, which is that of the first branch.
        branches: the branches.
    """

    pair: Pair
    branches: Sequence[_Branch]

    def plan(self, filling: Filling) -> None:
        """Add the sum, with all units that it reads but the partner, to `filling.planned`. Until the sum is made, the
        bias of the model's layer keeps what fills it, or gets zeros if the partner has no bias.
        """
        (t, s), bias = self.pair, self.branches[0].bias()
        if "bias" not in s.pieces:
            filling.put(t.pieces["bias"], self.pair, Filled(bias, "added up", []))
        units = [u for one in self.branches for u in (one.norm, one.layer) if u is not None and u is not s]
        filling.planned.append((units[0], self._fill))
        filling.planned += [(unit, lambda _: None) for unit in units[1:]]

    def _fill(self, filling: Filling) -> None:
        """Change what fills weight and bias of the layer into the sums over all branches. Each gets a question, whose
        option is the first branch alone, with its norm.
        """
        t, s = self.pair
        norms = [self._norm(branch) for branch in self.branches]
        weights = [branch.weight(s.pieces["weight"]) for branch in self.branches]
        eps = " and ".join(dict.fromkeys(f"{norm.eps_or_usual():g}" for norm in norms))
        asked: Question[Expr] = ask(Reason.PARALLEL, eps)
        more = list(zip(norms, weights, self.branches, strict=True))[1:]
        sums = {
            "weight": (norms[0].folded_weight, [norm.folded_weight(w) for norm, w, _ in more]),
            "bias": (lambda e: norms[0].folded_bias(e, weights[0]), [n.folded_bias(b.bias(), w) for n, w, b in more]),
        }
        for role, (fold, others) in sums.items():
            filled = filling.holes[t.pieces[role].name]
            filled.change(fold)
            filled.questions.append(asked.about(filled.expr))
            filled.expr, filled.evidence = ex.add(filled.expr, *others), "added up"

    def _norm(self, branch: _Branch) -> FoldedNorm:
        """Return the norm of BRANCH, to be folded into the layer of the pair. Its eps is the one that the source's code
        shows for this norm, or else for the first other branch for which it shows one, or None.
        """
        shown = (one.norm.pieces["running_mean"].entry.facts.behind for one in (branch, *self.branches))
        eps = next((behind.eps for behind in shown if behind is not None), None)
        return FoldedNorm(branch.norm, *self.pair, eps, outputs_second=False)


__all__ = ["add_branches"]
