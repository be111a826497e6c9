"""Fold batch norms that the model does not have into what it has in their place."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

from .. import expression as ex
from ..expression import Expr, Shape
from ..matching.units import Path, Unit, label_of
from ..questions import Question, Reason, ask, ask_code
from .filling import Filled, Filling


def fold_norms(filling: Filling) -> None:
    """Fold each batch norm of the source that has no partner into the layer before it (`_norm_behind`), or, if no layer
    there fits, into the layer after it in its module (`_norm_ahead`); or fill the scale and shift that the model has in
    its place. Nothing is done for a norm without a layer that fits, nor for one in `filling.planned`. The layer before
    it is the one that the source's code shows, else the one that the order in its module gives (`_Layers._in_order`),
    else the one directly before it in the file.

    The first of these that applies decides for a norm and its layer:

    - Another norm has the same layer: the norms are left out, with a question about the layer.
    - The layer is before the norm, and right behind it the model multiplies each channel by a number and adds one
      (`_scales`): these numbers are filled from the norm, with a question.
    - In the place of the norm (`_beside`), the model has something else that may be a norm of this size
      (`_other_norms`): nothing is done.
    - The model has that elsewhere, in the place of none of these norms: the norm is left out, with a question about the
      layer.
    - The layer of the model has a bias: folding is planned, and `finish_folds` does it.
    - It has none: the norm is left out, with a question about the layer.

    In the last three cases, if the layer comes after the norm, each further layer that may take the output of the norm
    (`_Layers.after_too`) gets the question that the norm was left out.
    """
    planned = {id(u) for u, _ in filling.planned}
    free = [u for u in filling.matching.free_sources if is_batch_norm(u) and id(u) not in planned]
    layers = _Layers(filling, free)
    norms = [norm for unit in free if (norm := _norm_behind(layers, unit) or _norm_ahead(layers, unit)) is not None]
    count = Counter(id(norm.t) for norm in norms)
    others = _other_norms(filling)
    missing = []
    for norm in norms:
        beside = _beside(filling, norm)
        place = next((place for place, held in others.items() if beside in held), None)
        if count[id(norm.t)] > 1:  # code runs the layer several times, each with a norm of its own
            norm.leave_out(filling)
        elif beside is None or place is None or beside.main.shape != norm.unit.main.shape:
            missing.append(norm)
        else:
            del others[place]
            if not norm.ahead and _scales(beside, norm.unit.main.shape):
                norm.become(filling, beside)
    for norm in missing:
        is_clear = all(held[0].main.shape != norm.unit.main.shape for held in others.values())
        norm.plan(filling) if is_clear and "bias" in norm.t.pieces else norm.leave_out(filling)
        for t in layers.after_too(norm) if norm.ahead else ():
            replace(norm, t=t).leave_out(filling)


def finish_folds(filling: Filling) -> None:
    """Fold each norm that `fold_norms` planned into the weight and bias of its layer (the layer before the norm, or
    else the one after it), and add a question about each of the two. Call this after all that decides about the layers.
    """
    for _, fold in filling.planned:
        fold(filling)


@dataclass(frozen=True, slots=True)
class FoldedNorm:
    """A batch norm of the source behind or before a layer.

    Attributes:
        unit: the norm.
        t, s: the layer, in the model and in the source.
        eps: the eps that the source's code shows right behind the layer; None if it does not show it, or if nothing in
            the module of the norm has a partner, as in a head that the model lacks.
        outputs_second: whether the layer is a transposed convolution, whose second dimension has the outputs.
        ahead: whether the layer takes the output of the norm.
        reason: why the folding is a question.
    """

    unit: Unit
    t: Unit
    s: Unit
    eps: float | None
    outputs_second: bool
    ahead: bool = False
    reason: Reason = Reason.FOLDED_NORM

    def become(self, filling: Filling, scale: Unit) -> None:
        """Fill weight and bias of SCALE, a unit of the model, with what the norm multiplies and adds, with one question
        about each, and with the norm as their source. The layer before the norm stays as it is.
        """
        one, zero = ex.shift(ex.zeros(*scale.main.shape), 1.0), ex.zeros(*scale.main.shape)
        asked: list[Question[Expr]] = [ask(Reason.NORM_AS_SCALE, f"{self.eps_or_usual():g}")]
        for role, expr in (("weight", self.folded_weight(one)), ("bias", self.folded_bias(zero, one))):
            filling.put(scale.pieces[role], (scale, self.unit), Filled(expr, "folded", asked))

    def leave_out(self, filling: Filling) -> None:
        """Ask about each filled tensor of the layer whether the norm may be left out. The tensors stay as they are."""
        for piece in [piece for piece in self.t.pieces.values() if piece.name in filling.holes]:
            filling.holes[piece.name].ask(Reason.UNREAD_NORM, ".".join(self.unit.path))

    def plan(self, filling: Filling) -> None:
        """Add the folding of the norm into the layer to `filling.planned`. Until it is folded, the bias of the model's
        layer keeps what fills it; it gets zeros if nothing fills it, or if the source's layer has no bias.
        """
        bias = self.t.pieces["bias"]
        known = filling.holes.get(bias.name) if "bias" in self.s.pieces else None
        filling.put(bias, (self.t, self.s), known or Filled(self.zeros(), "folded", []))
        filling.planned.append((self.unit, self._fold))

    def _fold(self, filling: Filling) -> None:
        """Fold the norm into weight and bias of the layer. The questions about each stay, with the norm folded into
        their options. One more has the plain tensor as its option; it is answered if the source's code shows the eps.
        """
        weight = filling.holes[self.t.pieces["weight"].name].expr
        for role, fold in (("weight", self.folded_weight), ("bias", partial(self.folded_bias, weight=weight))):
            name = self.t.pieces[role].name
            filled = filling.holes[name]
            plain = filled.expr
            filled.change(fold)
            filled.questions.append(self._question().about(plain))
            filled.evidence = "folded"

    def _question(self) -> Question[Expr]:
        """Return the question about the folding, with the eps in its sentence: answered if the source's code shows the
        eps, else open, with torch's eps.
        """
        if self.eps is None:
            return ask(self.reason, "1e-05")
        shows = f"has eps {self.eps:g}, and the norm right behind the layer"
        return ask_code(self.reason, f"{self.eps:g}", shows=shows)

    def eps_or_usual(self) -> float:
        """Return the eps that the source's code shows; 1e-05, as in torch, if it shows none."""
        return 1e-05 if self.eps is None else self.eps

    def zeros(self) -> Expr:
        """Return zeros as the bias of a layer that has none: as many as the weight of the source has outputs."""
        return ex.zeros(self.s.pieces["weight"].shape[self.outputs_second])

    def _gamma(self) -> Expr:
        """Return the expression of the factors of the norm: its weight, or as many ones if it has none."""
        pieces = self.unit.pieces
        return pieces["weight"].expr if "weight" in pieces else ex.shift(ex.zeros(*self.unit.main.shape), 1.0)

    def folded_weight(self, e: Expr) -> Expr:
        """Return the expression E, the weight of the layer, with the norm folded in: each output is multiplied by gamma
        / sqrt(var + eps). If the layer takes the output of the norm (`ahead`), each input is multiplied instead.
        """
        gamma, var = self._gamma(), self.unit.pieces["running_var"].expr
        if self.ahead:
            return ex.transpose(ex.fold_weight(ex.transpose(e), gamma, var, self.eps_or_usual()))
        dims = [*range(len(self.s.pieces["weight"].shape))]
        dims[:2] = dims[1::-1] if self.outputs_second else dims[:2]
        return ex.permute(ex.fold_weight(ex.permute(e, *dims), gamma, var, self.eps_or_usual()), *dims)

    def folded_bias(self, e: Expr, weight: Expr) -> Expr:
        """Return the bias E of the layer with the norm folded in. WEIGHT is the weight of the layer without the norm.
        If the norm comes first, what it adds (beta - mean * gamma / sqrt(var + eps)) goes through WEIGHT and is added
        to E.
        """
        pieces, size = self.unit.pieces, self.unit.main.shape[0]
        beta = pieces["bias"].expr if "bias" in pieces else ex.zeros(size)
        mean, var = pieces["running_mean"].expr, pieces["running_var"].expr
        folded = partial(ex.fold_bias, gamma=self._gamma(), beta=beta, mean=mean, var=var, eps=self.eps_or_usual())
        if not self.ahead:
            return folded(e)
        rows = self.s.pieces["weight"].shape[0]
        added = ex.lora(ex.reshape(e, (rows, 1)), ex.reshape(folded(ex.zeros(size)), (size, 1)), weight, 1.0)
        return ex.reshape(added, (rows,), (rows, 1))


def is_batch_norm(unit: Unit) -> bool:
    """Return whether UNIT has the running mean and variance of a batch norm."""
    return unit.pieces.keys() >= {"running_mean", "running_var"}


#: So many norms behind all layers of a module are there in the order of the layers; one alone may be of the last layer.
_SEVERAL = 2


class _Layers:
    """The layers around batch norms without partners, as the source's code, the file and the modules show them.

    Args:
        filling: the state of the port.
        free: these norms.

    Attributes:
        partner: id of a unit of the source -> its partner, a unit of the model.
    """

    def __init__(self, filling: Filling, free: Sequence[Unit]) -> None:
        self.partner = {id(s): t for t, s in filling.matching.pairs}
        self._in_file = sorted(filling.matcher.cells.sources, key=lambda u: u.order)
        self._place = {id(u): at for at, u in enumerate(self._in_file)}
        self._of_weight = {u.pieces["weight"].entry.key: u for u in self._in_file if "weight" in u.pieces}
        self._by_order = self._in_order(free)
        paired = [(unit, side) for pair in filling.matching.pairs for side, unit in enumerate(pair)]
        norms = [(unit.pieces["running_mean"], side) for unit, side in paired if "running_mean" in unit.pieces]
        shown = ((norm.entry.facts.behind, side) for norm, side in norms)
        self._normed = {(behind.weight, side) for behind, side in shown if behind is not None}

    def is_kept(self, norm: Unit) -> bool:
        """Return whether another unit in the module of NORM, at any depth, has a partner."""
        return any(u.within(norm.path[:-1]) for u in self._in_file if id(u) in self.partner)

    def has_norm(self, layer: Unit, side: int) -> bool:
        """Return whether the code of SIDE (0 for the model, 1 for the source) shows a batch norm that has a partner
        right behind LAYER, a unit of this side with a weight.
        """
        return (layer.pieces["weight"].entry.key, side) in self._normed

    def before(self, norm: Unit) -> Iterator[tuple[Unit, Reason]]:
        """Yield each unit of the source whose output the batch norm NORM may take, the surest first, with the question
        about it. If the code of the source shows a layer right before NORM, only that one. Else the layer that the
        order in the module gives (`_in_order`), if there is one; then the unit directly before NORM in the file, of
        whatever module and kind, if NORM is not the first.
        """
        behind = norm.pieces["running_mean"].entry.facts.behind
        if behind is not None and behind.weight in self._of_weight:
            yield self._of_weight[behind.weight], Reason.FOLDED_NORM
            return
        if id(norm) in self._by_order:
            yield self._by_order[id(norm)], Reason.FOLDED_NORM_BY_ORDER
        if self._place[id(norm)]:
            yield self._in_file[self._place[id(norm)] - 1], Reason.FOLDED_NORM

    def after(self, norm: Unit) -> Unit | None:
        """Return the unit of the source directly after NORM in the file, or None."""
        return next(iter(self._in_file[self._place[id(norm)] + 1 :]), None)

    def after_too(self, norm: FoldedNorm) -> Iterator[Unit]:
        """Yield, for NORM with the layer after it, the partner of each further layer of the source that has a partner
        and takes as many inputs as NORM has numbers: queries, keys and values may all take the output of NORM. The
        units behind the layer of NORM are looked at, in the order of the file, up to the first one that is not directly
        in the module of NORM or has no weight.
        """
        for u in self._in_file[self._place[id(norm.s)] + 1 :]:
            if u.path[:-1] != norm.unit.path[:-1] or "weight" not in u.pieces:
                return
            if u.pieces["weight"].shape[1:] == norm.unit.main.shape and id(u) in self.partner:
                yield self.partner[id(u)]

    def _in_order(self, free: Sequence[Unit]) -> dict[int, Unit]:
        """Return id of a batch norm -> the layer before it, for norms of FREE that the file lists behind all layers of
        their module (`conv1`, `conv2`, `bn1`, `bn2`). The norms take the layers in the order of the file, each the next
        one with as many outputs as the norm has numbers.

        A module counts only if it has two or more batch norms directly in it, none of them has a partner, and each
        finds a layer; else none of its norms is in the result.
        """
        inside: dict[Path, list[Unit]] = defaultdict(list)
        for unit in self._in_file:
            inside[unit.path[:-1]].append(unit)
        without = {id(unit) for unit in free}
        found: dict[int, Unit] = {}
        for units in [inside[path] for path in dict.fromkeys(unit.path[:-1] for unit in free)]:
            norms = [u for u in units if "running_mean" in u.pieces]
            layers = [u for u in units if "weight" in u.pieces and len(u.pieces["weight"].shape) > 1]
            if len(norms) < _SEVERAL or not layers or norms[0].order < layers[-1].order:
                continue
            left = iter(layers)
            taken = {
                id(norm): layer
                for norm in norms
                if (layer := next((u for u in left if u.pieces["weight"].shape[:1] == norm.main.shape), None))
            }
            if taken.keys() == {id(norm) for norm in norms} <= without:
                found |= taken
        return found


def _norm_behind(layers: _Layers, norm: Unit) -> FoldedNorm | None:
    """Return the batch norm NORM with the layer before it: the first of LAYERS that fits it; None if none fits, or if
    the mean of NORM is no vector. The eps is known only if the source's code shows NORM right behind this layer, and
    another unit of the module of NORM has a partner.

    A layer fits if it has a partner in the model, both have a weight, no code shows a norm with a partner behind it,
    and the weight has two or more dimensions and as many outputs as NORM has numbers. Outputs are the second dimension
    of a transposed convolution, and the first of another convolution, as the model's code calls it, and of a matrix. If
    the code calls no convolution, they are the first dimension of other weights, too, or the second if the first does
    not have this size.
    """
    mean = norm.pieces["running_mean"]
    for before, reason in layers.before(norm) if len(mean.shape) == 1 else ():
        t = layers.partner.get(id(before))
        if t is None or "weight" not in before.pieces or "weight" not in t.pieces:
            continue
        if layers.has_norm(t, 0) or layers.has_norm(before, 1):  # this norm is the same once more
            continue
        weight = before.pieces["weight"]
        how = t.pieces["weight"].entry.how
        outputs_second = len(weight.shape) > 2 and weight.shape[:1] != mean.shape
        if how.startswith("conv"):
            outputs_second = how.startswith("conv_transpose")
        if len(weight.shape) > 1 and weight.shape[outputs_second] == mean.shape[0]:
            behind = mean.entry.facts.behind
            shown = behind is not None and behind.weight == weight.entry.key and layers.is_kept(norm)
            eps = behind.eps if behind is not None and shown else None
            return FoldedNorm(norm, t, before, eps, outputs_second, reason=reason)
    return None


def _norm_ahead(layers: _Layers, norm: Unit) -> FoldedNorm | None:
    """Return the batch norm NORM with the linear layer after it: the unit that the source registers directly after NORM
    in the same module. None if there is no such unit, if it has no partner in the model, if one of the two has no
    weight, or if the source's weight is no matrix with as many inputs as NORM has numbers. The eps is not known.
    """
    after = layers.after(norm)
    t = layers.partner.get(id(after))
    if after is None or t is None or after.path[:-1] != norm.path[:-1]:
        return None
    if "weight" not in t.pieces or "weight" not in after.pieces:
        return None
    is_input = after.pieces["weight"].shape[1:] == norm.pieces["running_mean"].shape
    reason = Reason.FOLDED_NORM_BEFORE
    return FoldedNorm(norm, t, after, None, outputs_second=False, ahead=True, reason=reason) if is_input else None


def _beside(filling: Filling, norm: FoldedNorm) -> Unit | None:
    """Return the unit of the model in the place of NORM: the one that the model runs directly after the layer of NORM,
    or directly before it if the layer takes the output of NORM. If it is not known when the layer runs, the one that
    the model registers there. None if there is none.
    """
    here = norm.t.order if norm.t.used is None else norm.t.used
    known = ((u.order if norm.t.used is None else u.used, u) for u in filling.matcher.cells.targets)
    near = [(abs(at - here), u) for at, u in known if at is not None and (at < here if norm.ahead else at > here)]
    return min(near, key=lambda one: one[0], default=(0, None))[1]


def _other_norms(filling: Filling) -> dict[tuple[Path, Shape], list[Unit]]:
    """Return (path, sizes) -> units of the model without a source that may be one norm of these sizes. PATH is that of
    a unit with several tensors, or of one that is a norm by its name or class (`_is_norm`); or it is that of a module
    that has two or more other units of these sizes directly in it, each of one tensor. A single vector that is no norm
    by name or class is left out.
    """
    found: dict[tuple[Path, Shape], list[Unit]] = defaultdict(list)
    for u in filling.matching.free_targets:
        if u.main.name not in filling.holes:
            is_whole = len(u.pieces) > 1 or _is_norm(u)
            found[u.path if is_whole else u.path[:-1], u.main.shape].append(u)
    return {place: held for place, held in found.items() if len(held) > 1 or held[0].path == place[0]}


def _is_norm(unit: Unit) -> bool:
    """Return whether UNIT is a norm by its name or its class."""
    return label_of(unit, "purpose") == "norm" or "norm" in unit.main.entry.module.lower()


def _scales(unit: Unit, shape: Shape) -> bool:
    """Return whether UNIT multiplies each channel by a number and adds one, without being a norm (`_is_norm`): it holds
    exactly a weight and a bias, both of the sizes SHAPE, and the first thing that code does with each is to multiply
    with it, add it, or index it (`_BY_CHANNEL`).
    """
    by_channel = all(p.shape == shape and p.entry.how in _BY_CHANNEL for p in unit.pieces.values())
    return unit.pieces.keys() == {"weight", "bias"} and by_channel and not _is_norm(unit)


#: How code uses a vector with a number for each channel.
_BY_CHANNEL = frozenset("mul __mul__ __rmul__ multiply add __add__ __radd__ addcmul __getitem__ unsqueeze".split())
