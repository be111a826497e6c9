"""Ask about weights that one of the two codes multiplies by a number on every call."""

from __future__ import annotations

from math import log10, prod

from .. import expression as ex
from ..forms.fusing.projections import part_label
from ..forms.pieces import Name
from ..matching.evidence import Kind
from ..questions import Reason
from ..words import label, table
from .filling import Filled, Filling

#: Weights this many times as wide as code initialises them (1 / sqrt(inputs)) are multiplied by it, if all of them are.
_WIDE = 4.0
#: The same for layers with few inputs, whose spread says less.
_VERY_WIDE = 16.0
#: Layers of so many inputs tell, and so many of them are looked at.
_MANY_INPUTS, _FEWEST, _MOST_SEEN = 64, 4, 24


def equalised(filling: Filling) -> None:
    """Ask about weights that have the same spread in every layer: code with equalised learning rates multiplies such
    weights by a factor on every call. The options are the weights times sqrt(2 / inputs) and 1 / sqrt(inputs), and
    times the learning rate multiplier, if there is one.

    Such weights are normally distributed (Karras et al., "Progressive Growing of GANs", 2018, section 4.1); this model
    has no such factor. Linear layers and convolutions that are copies of source tensors under other names are looked
    at, 24 at most, those with 64 or more inputs before others. All are asked about if 90 percent of those with 64 or
    more inputs are more than 4 times as wide as initial weights, or 90 percent of all more than 16 times; it takes four
    layers at least. Some code multiplies the output of the layer instead, and with it the bias, so, without a learning
    rate multiplier, the biases are asked about as well, unless they are 0. Such a multiplier divides the initial
    weights and multiplies weights and biases on every call ("A Style-Based Generator", 2019, appendix C), so that such
    weights are even wider; with one, all biases are asked about, with the bias times the multiplier as the option.
    Nothing is asked if no values may be read, or if the two sides have the same names.
    """
    if filling.values is None or filling.same_names:
        return
    layers: list[tuple[Name, Filled, int]] = []
    for hole, filled in filling.holes.items():
        piece = filling.target.pieces.get(hole)
        if piece is None or piece.role != "weight" or len(piece.shape) < 2 or not filled.expr.is_copy:
            continue
        used = piece.entry.how or piece.entry.module.lower()
        if used.startswith(("linear", "conv")) and not filling.unit_of[hole][0].told_by(Kind.NAME):
            layers.append((hole, filled, prod(piece.shape[1:])))
    squares: list[tuple[float, int]] = []
    for _, filled, inputs in sorted(layers, key=lambda layer: layer[2] < _MANY_INPUTS):
        found = filling.values(filled.expr.key) if len(squares) < _MOST_SEEN else None
        if found is not None:
            squares.append((float((found.astype("float64") ** 2).mean()), inputs))
    wide = [square * inputs > _WIDE**2 for square, inputs in squares if inputs >= _MANY_INPUTS]
    if not _most(wide) and not _most([square * inputs > _VERY_WIDE**2 for square, inputs in squares]):
        return
    rate = _rate([square for square, _ in squares])
    for hole, filled, inputs in layers:
        factors = [rate * (n / inputs) ** 0.5 for n in (2, 1)]
        filled.ask(Reason.EQUALISED, options=[ex.scale(filled.expr, factor) for factor in factors])
        bias = filling.holes.get(hole.beside("bias"))
        if bias is not None and rate < 1:
            bias.ask(Reason.EQUALISED_BIAS, options=[ex.scale(bias.expr, rate)])
        elif bias is not None and not _is_zero(filling, bias):
            bias.ask(Reason.EQUALISED_OUTPUT, options=[ex.scale(bias.expr, factor) for factor in factors])


def _is_zero(filling: Filling, bias: Filled) -> bool:
    """Return whether BIAS is a tensor of the source that holds zeros alone, which no factor changes. False if its
    values cannot be read.
    """
    found = filling.values(bias.expr.key) if filling.values is not None and bias.expr.is_copy else None
    return found is not None and not found.any()


def _most(wide: list[bool]) -> bool:
    """Return whether WIDE, one value per layer, has at least four values, at least 90 percent of which are True."""
    return len(wide) >= _FEWEST and sum(wide) >= 0.9 * len(wide)


def _rate(squares: list[float]) -> float:
    """Return the learning rate multiplier that weights with the mean SQUARES (one per layer, at least one) had, by
    their median: a power of ten, at most 1; 1 if the median is 0.
    """
    middle = sorted(squares)[len(squares) // 2]
    return float(10.0 ** -max(round(log10(middle) / 2), 0)) if middle else 1.0


def scaled_tables(filling: Filling) -> None:
    """Ask about word embeddings whose values are as small as in code that multiplies the rows by sqrt(width). The
    option is the table times sqrt(width).

    Transformers with computed positions multiply the rows so that they outweigh the positions (Vaswani et al., 2017,
    section 3.4), and their code then begins with values of spread 1 / sqrt(width), up to a factor of 1.5. The model
    adds something to the rows, and multiplies them by nothing.
    With learned or rotary positions, small values are usual, and nothing is asked. Nor is it if no values may be read,
    if the model computes no queries, if the names are equal, if one code made both tables, or if the source was traced.
    """
    target = filling.target
    if filling.values is None or filling.same_names or target.signature.rotary or filling.source.signature.traced:
        return
    attends = any(part_label(piece.path) == "q" for piece in target.pieces.values())
    group = table().group("embedding")
    if not attends or any(label(group, p.words) == "position" for p in target.pieces.values()):
        return
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        piece = target.pieces.get(hole)
        if piece is None or piece.entry.how != "embedding" or len(piece.shape) != 2 or not filled.expr.is_copy:
            continue
        if (
            piece.entry.facts.rows != "added"
            or piece.entry.facts.times != 1.0
            or t.told_by(Kind.NAME)
            or filling.same_code(t, s)
        ):
            continue
        found = filling.values(filled.expr.key)
        spread = 1.0 if found is None else float((found.astype("float64") ** 2).mean()) ** 0.5
        width = piece.shape[1] ** 0.5
        if spread < _SMALL and 1 / _ABOUT < spread * width < _ABOUT:
            filled.ask(Reason.TABLE_SCALED, options=[ex.scale(filled.expr, width)])


#: A table of words that nothing multiplies has a larger spread than this where it outweighs computed positions, and one
#: that is multiplied has a spread of 1 / sqrt(width), up to this factor.
_SMALL, _ABOUT = 0.5, 1.5


def multiplied_in_code(filling: Filling) -> None:
    """Rescale, with a question, tensors that the two codes multiply by different numbers before they use them, as both
    forward passes show. Only copies of tensors of the source are rescaled.

    The plain tensor is the option: it is right if the model has the missing factor at another place, such as on the
    layer's input.
    """
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        piece, own = t.pieces.get(hole.role), s.pieces.get(hole.role)
        if piece is None or own is None or not filled.expr.is_copy or own.expr != filled.expr:
            continue
        here, there = piece.entry.facts.times, own.entry.facts.times
        if here and there and here != there:
            made = ex.scale(filled.expr, there / here)
            filled.ask(Reason.FACTOR_IN_CODE, f"{there:g}", f"{here:g}", options=[made], exchange=True)


__all__ = ["equalised", "multiplied_in_code", "scaled_tables"]
