"""Ask about conventions of code that neither names nor shapes show, such as the order of the parts of a projection."""

from __future__ import annotations

from collections.abc import Callable

from ..forms.fusing.fused import other_arrangement
from ..rules import Rule, Strength, in_order
from .broadcast import doubt_broadcast
from .bypassed import doubt_bypasses
from .channel_order import doubt_flattened, doubt_heads_of_channels, doubt_unflattened
from .concatenated import doubt_concatenated
from .factors import equalised, multiplied_in_code, scaled_tables
from .filling import Filling
from .gathered import doubt_neighbours
from .modulation import doubt_gates, doubt_modulation
from .norms_around_1 import doubt_norms_around_1
from .patch_order import doubt_patch_order
from .rotary import doubt_rotary
from .squares import AS_IT_IS, turn_bare_squares, turn_squares_of_layers
from .thirds import doubt_thirds


def doubt_conventions(filling: Filling) -> None:
    """Ask about tensors that the two codes may use in different ways, by the rules of the table `CONVENTIONS`, in its
    order.

    Where other evidence shows how the source's code uses a tensor, its expression is changed instead.
    """
    for rule in CONVENTIONS:
        rule.run(filling)


def _arranged(filling: Filling) -> None:
    """Ask about tensors of fused projections (queries, keys and values, or gate and value) that are whole on both
    sides, if the two codes may arrange their rows differently (`other_arrangement`, whose reason is that of the
    question); the question has no options. Nothing is asked if the source has the keys of all parameters of the model,
    nor about tensors made by operations other than select, reshape and transpose.
    """
    for hole, filled in () if filling.same_names else filling.holes.items():
        t, s = filling.unit_of[hole]
        whole = {*filled.expr.operations()} <= AS_IT_IS | {"transpose"}
        reason = other_arrangement(t.main, s.main) if whole else None
        if reason is not None:
            filled.ask(reason)


#: What code may do in two ways, of which nothing in the file shows which.
CONVENTIONS: tuple[Rule[Callable[[Filling], None]], ...] = in_order(
    Rule(
        "square parameters",
        10,
        "The rows of a square parameter may be its inputs or its outputs.",
        "Other parameters of the file that are not square show it; without any, this is a question.",
        turn_bare_squares,
        Strength.OPEN,
    ),
    Rule(
        "square matrices",
        20,
        "The model stores this square matrix with inputs as rows, so it may have to be transposed.",
        "Other matrices of this name that are not square show it; without any, this is a question.",
        turn_squares_of_layers,
        Strength.OPEN,
    ),
    Rule(
        "arrangement of projections",
        30,
        "Two codes may store the parts of one tensor in different orders, if the tensor has another name in each.",
        "Queries, keys and values are stored one after the other or head by head; the gate is first or second.",
        _arranged,
        Strength.OPEN,
    ),
    Rule(
        "rotary embeddings",
        40,
        "Rotary embeddings pair the rows of queries and keys in one of two ways.",
        "Row i goes with row i + half (GPT-NeoX) or with row i + 1 (GPT-J); names of known code show which.",
        doubt_rotary,
        Strength.OPEN,
    ),
    Rule(
        "heads of channels",
        45,
        "Heads may be the outer or the inner index of channels that 1d convolutions compute.",
        "SuperGlue and code after it have heads inside, and Glow-TTS and code after it have heads outside.",
        doubt_heads_of_channels,
        Strength.OPEN,
        when="the model has linear layers, and the source's layers have no `conv` in their names",
    ),
    Rule(
        "flattened features",
        50,
        "A linear layer takes feature maps that code flattens in one of two orders.",
        "Torch has channels first, TensorFlow channels last.",
        doubt_flattened,
        Strength.OPEN,
    ),
    Rule(
        "maps made of rows",
        52,
        "The output of a linear layer becomes feature maps, whose dimensions code has in one of two orders.",
        "Torch has channels first, TensorFlow channels last; all that code combines with the rows has their order.",
        doubt_unflattened,
        Strength.OPEN,
    ),
    Rule(
        "neighbours side by side",
        55,
        "A layer takes neighbours of a feature map side by side, in an order that only code shows.",
        "Swin Transformer and code after it take four neighbours column by column.",
        doubt_neighbours,
        Strength.OPEN,
        when="the model takes them row by row, in a linear layer or a norm before it, and the source's code was not "
        "followed",
    ),
    Rule(
        "numbers of a patch",
        57,
        "A linear layer takes patches of pictures, whose numbers code lists in one of two orders.",
        "`unfold` lists them channel by channel; rearranging in most code lists them pixel by pixel.",
        doubt_patch_order,
        Strength.OPEN,
        when="the model takes patches, and the source's code is not known to list their numbers in the same order",
    ),
    Rule(
        "branches side by side",
        60,
        "A layer takes concatenated branches, in an order that only code shows.",
        "Most code concatenates branches in the order in which it registers them.",
        doubt_concatenated,
        Strength.OPEN,
        when="the model joins them in another order than the file holds them, they are rows of tables with other names "
        "on the two sides, or some are guesses",
    ),
    Rule(
        "scale and shift",
        70,
        "The output of a layer is split into scale and shift, in an order that only code shows.",
        "As a rule, the shift is first if the layer is beside a norm, and the scale is first if the layer is inside "
        "a norm.",
        doubt_modulation,
        Strength.OPEN,
    ),
    Rule(
        "gate and value",
        80,
        "The output of a layer is split into a gate and the value that the gate is multiplied with, in an order "
        "that only code shows.",
        "As a rule, a gate with silu as its activation is first, and any other gate is second.",
        doubt_gates,
        Strength.OPEN,
    ),
    Rule(
        "a part that passes",
        85,
        "One of the equal parts of a layer's channels passes unchanged, and only code shows which.",
        "Of a Res2Net, code leaves out the first part or the last one; the layers around it have this order.",
        doubt_bypasses,
        Strength.OPEN,
    ),
    Rule(
        "thirds of an output",
        87,
        "The output of a layer is cut into three parts of one size for three uses, in an order that only code shows.",
        "Each code has an order of its own, unless both call the parts by the same names; and if it cuts so, it may "
        "join tensors in an order of its own in the same module.",
        doubt_thirds,
        Strength.OPEN,
    ),
    Rule(
        "tables along dimensions",
        88,
        "Sizes of 1 in one code, and an index in the other, show along which dimension a table is added.",
        "Some code calls a table after the height and gives it the shape of one along the width.",
        doubt_broadcast,
        Strength.OPEN,
        when="the tables of one module differ on one side only, in the places of their sizes of 1",
    ),
    Rule(
        "norms around 0 or 1",
        90,
        "One of the two codes adds 1 to its norm weights.",
        "The file's values lie around 0 and the model's are used around 1, or the other way round.",
        doubt_norms_around_1,
        Strength.OPEN,
    ),
    Rule(
        "equalised learning rates",
        100,
        "The file's weights have the spread of weights that code multiplies by a factor on every call.",
        "Most code starts with weights of spread 1 / sqrt(inputs); if all weights are much wider, their code "
        "applies this factor later.",
        equalised,
        Strength.OPEN,
    ),
    Rule(
        "scaled tables",
        105,
        "Code may multiply the rows of a word embedding by the square root of their width.",
        "Transformers with computed positions do so, and their tables have small values; the model does not do it.",
        scaled_tables,
        Strength.OPEN,
        when="the file's values have about that spread",
    ),
    Rule(
        "factors in the code",
        110,
        "One of the two codes multiplies a tensor by a number on every call.",
        "The forward passes show the numbers. The model may have the same factor at another place.",
        multiplied_in_code,
        Strength.OPEN,
        when="both codes were traced",
    ),
)
