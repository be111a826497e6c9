"""Ask about weights that one of the two codes multiplies by a number on every call."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import isclose, log10, prod

from .. import expression as ex
from ..forms.fusing.projections import part_label
from ..forms.pieces import Name, Piece
from ..matching.evidence import Kind
from ..questions import Reason
from ..words import label, table
from .filling import Filled, Filling, Values

#: The hole of the weight of a layer, what fills it, and how many inputs the layer has.
_Layer = tuple[Name, Filled, int]

#: Weights this many times as wide as code initialises them (1 / sqrt(inputs)) are multiplied by it, if all of them are.
_WIDE = 4.0
#: The same for layers with few inputs, whose spread says less.
_VERY_WIDE = 16.0
#: Layers of so many inputs tell, and so many of them are looked at.
_MANY_INPUTS, _FEWEST, _MOST_SEEN = 64, 4, 24


def equalised(filling: Filling) -> None:
    """Ask about the weights of all linear layers and convolutions that no name paired (`_renamed_layers`) if nearly all
    of up to 24 of them (`_mean_squares`) have values so large that code multiplies them by a factor on every call
    (`_are_wide`). Whether the model's code does so, too, is not looked at. The weights stay; the options are the weight
    times sqrt(2 / inputs) and times 1 / sqrt(inputs).

    Such weights are normally distributed (Karras et al., "Progressive Growing of GANs", 2018, section 4.1). Some code
    multiplies the output of the layer instead, and with it the bias: biases that are not 0 are asked about with the
    same factors. If weights are even wider, code also has a learning rate multiplier for weights and biases (`_rate`;
    "A Style-Based Generator", 2019, appendix C): then the options are times this number, too, and all biases are asked
    about, with the bias times this number alone as the option.

    Nothing is asked if no values may be read, if the source has the keys of all parameters of the model (`same_names`),
    or if the source's code shows factors in nearly all of these layers (`multiplied_in_code` follows it).
    """
    if filling.values is None or filling.same_names:
        return
    layers = _renamed_layers(filling)
    if _most([_is_multiplied(filling, hole) for hole, _, _ in layers]):
        return
    squares = _mean_squares(filling.values, layers)
    if not _are_wide(squares):
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


def _renamed_layers(filling: Filling) -> list[_Layer]:
    """Return (hole of the weight, `Filled` of it, number of inputs) for each linear layer and convolution of the model
    whose weight is a copy of one tensor of the source, if no name told its pair. The inputs of a kernel are its input
    channels times its positions.
    """
    layers = []
    for hole, filled in filling.holes.items():
        piece = filling.target.pieces.get(hole)
        if piece is None or piece.role != "weight" or len(piece.shape) < 2 or not filled.expr.is_copy:
            continue
        used = piece.entry.how or piece.entry.module.lower()
        if used.startswith(("linear", "conv")) and not filling.unit_of[hole][0].told_by(Kind.NAME):
            layers.append((hole, filled, prod(piece.shape[1:])))
    return layers


def _is_multiplied(filling: Filling, hole: Name) -> bool:
    """Return whether the source's code multiplies what fills the weight HOLE, or its layer's input, by a number."""
    own = filling.unit_of[hole][1].pieces.get(hole.role)
    return own is not None and own.entry.facts.times not in (None, 1.0)


def _mean_squares(values: Values, layers: Sequence[_Layer]) -> list[tuple[float, int]]:
    """Return (mean square of the weight, number of inputs) for the first 24 of LAYERS whose values can be read, those
    with 64 or more inputs before others.
    """
    squares: list[tuple[float, int]] = []
    for _, filled, inputs in sorted(layers, key=lambda layer: layer[2] < _MANY_INPUTS):
        found = values(filled.expr.key) if len(squares) < _MOST_SEEN else None
        if found is not None:
            squares.append((float((found.astype("float64") ** 2).mean()), inputs))
    return squares


def _are_wide(squares: Sequence[tuple[float, int]]) -> bool:
    """Return whether weights are wider than code initialises them, with a spread of 1 / sqrt(inputs). SQUARES has (mean
    square, number of inputs) of each weight.

    True if there are four or more weights with 64 or more inputs, and at least 85 percent of these are more than 4
    times as wide; or if there are four or more weights in all, and at least 85 percent of all are more than 16 times as
    wide.
    """
    wide = [square * inputs > _WIDE**2 for square, inputs in squares if inputs >= _MANY_INPUTS]
    return _most(wide) or _most([square * inputs > _VERY_WIDE**2 for square, inputs in squares])


def _is_zero(filling: Filling, bias: Filled) -> bool:
    """Return whether BIAS is a copy of a tensor of the source that holds zeros alone, which no factor changes. False if
    it is no copy, or if its values cannot be read.
    """
    found = filling.values(bias.expr.key) if filling.values is not None and bias.expr.is_copy else None
    return found is not None and not found.any()


def _most(wide: list[bool]) -> bool:
    """Return whether WIDE, one value per layer, has at least four values, at least 85 percent of which are True."""
    return len(wide) >= _FEWEST and sum(wide) >= 0.85 * len(wide)


def _rate(squares: list[float]) -> float:
    """Return the learning rate multiplier of code whose weights have the mean SQUARES, one per layer and at least one:
    the power of ten, at most 1, that is nearest to 1 / sqrt(median of SQUARES); 1 if the median is 0.
    """
    middle = sorted(squares)[len(squares) // 2]
    return float(10.0 ** -max(round(log10(middle) / 2), 0)) if middle else 1.0


def scaled_tables(filling: Filling) -> None:
    """Ask about each table that is a copy of the source's, if the model adds its rows to something as they are
    (`_is_added`), and its values are as small as in code that multiplies the rows by sqrt(width). The table stays; the
    option is the table times sqrt(width).

    Transformers with computed positions multiply the rows so that they outweigh the positions (Vaswani et al., 2017,
    section 3.4), and their code begins with values of spread 1 / sqrt(width): the spread of the table is less than 0.5,
    and within a factor of 1.5 of this. Tables of equal names, or of the same code, are not asked about.

    Nothing is asked if no values may be read, if the source has the keys of all parameters of the model or was traced,
    or if the model is no transformer with computed positions (`_computes_positions`).
    """
    values = filling.values
    if values is None or filling.same_names or filling.source.signature.traced or not _computes_positions(filling):
        return
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        piece = filling.target.pieces.get(hole)
        if piece is None or not _is_added(piece) or not filled.expr.is_copy:
            continue
        if t.told_by(Kind.NAME) or filling.same_code(t, s):
            continue
        found = values(filled.expr.key)
        spread = 1.0 if found is None else float((found.astype("float64") ** 2).mean()) ** 0.5
        width = piece.shape[1] ** 0.5
        if spread < _SMALL and 1 / _ABOUT < spread * width < _ABOUT:
            filled.ask(Reason.TABLE_SCALED, options=[ex.scale(filled.expr, width)])


def _computes_positions(filling: Filling) -> bool:
    """Return whether the model computes queries, and has neither rotary embeddings nor a position table. In models with
    these, small values in word tables are usual.
    """
    group, pieces = table().group("embedding"), filling.target.pieces.values()
    attends = any(part_label(piece.path) == "q" for piece in pieces)
    learned = any(label(group, piece.words) == "position" for piece in pieces)
    return attends and not learned and not filling.target.signature.rotary


def _is_added(piece: Piece) -> bool:
    """Return whether the model looks up rows of the matrix PIECE, adds something to them, and multiplies them by
    nothing.
    """
    facts = piece.entry.facts
    return piece.entry.how == "embedding" and len(piece.shape) == 2 and facts.rows == "added" and facts.times == 1.0


#: A table of words that nothing multiplies has a larger spread than this where it outweighs computed positions, and one
#: that is multiplied has a spread of 1 / sqrt(width), up to this factor.
_SMALL, _ABOUT = 0.5, 1.5


def multiplied_in_code(filling: Filling) -> None:
    """Multiply each tensor that is a copy of a source tensor by the source's number divided by the model's, if both
    forward passes show that the two codes multiply it, or the input of the layer of which it is the weight, by
    different numbers. Nothing is done if one of the numbers is 0 or not known, or if one code looks up rows of the
    tensor and the other does not.

    Each such tensor gets a question with the plain tensor as the option, which is right if the model has the missing
    factor at another place, such as on the layer's output. But if the numbers differ only in layers that take the input
    of one of the two codes (`_takes_input`), and in no others, the two codes expect inputs of other ranges (0 to 1, 0
    to 255): then the tensors stay, and the multiplied ones are the options.
    """
    differing: list[tuple[Filled, float, float, bool]] = []
    equal = 0
    for hole, filled in filling.holes.items():
        t, s = filling.unit_of[hole]
        piece, own = t.pieces.get(hole.role), s.pieces.get(hole.role)
        if piece is None or own is None or not filled.expr.is_copy or own.expr != filled.expr:
            continue
        if (piece.entry.how == "embedding") != (own.entry.how == "embedding"):
            continue  # of a matrix tied to a table, the number is known that the rows of the table are multiplied by
        here, there = piece.entry.facts.times, own.entry.facts.times
        if here and there and isclose(here, there, rel_tol=1e-6):  # 1 / 3 and a number that stands for it
            equal += 1
        elif here and there:
            differing.append((filled, there, here, _takes_input(piece) or _takes_input(own)))
    of_input = bool(equal) and all(first for *_, first in differing)
    reason = Reason.FACTOR_OF_INPUT if of_input else Reason.FACTOR_IN_CODE
    for filled, there, here, _ in differing:
        factor = partial(ex.scale, value=there / here)
        filled.ask(reason, f"{there:g}", f"{here:g}", other=factor, exchange=not of_input)


def _takes_input(piece: Piece) -> bool:
    """Return whether PIECE is the weight of a linear layer or convolution that is before all others in the forward pass
    of its code.
    """
    flow, how = piece.entry.facts.flow, piece.entry.how
    return flow is not None and not flow.before and how.startswith(("linear", "conv"))


__all__ = ["equalised", "multiplied_in_code", "scaled_tables"]
