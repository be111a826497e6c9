"""The table of the steps that bring both sides into the common form, in their order.

A step takes the source and the target. A step that changes one side for the other is taken in both directions. Pieces
keep the names of the steps that made them, for `--explain`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..rules import Rule, Strength, in_order
from .adapters import merge_adapters
from .affine import join_affine
from .between.stated import take_what_is_stated
from .biases import attach_biases, divide_biases
from .exported import name_exported
from .fused import missing_key_bias, split_again, split_by_initials, split_first
from .gates import join_gates, of_recurrent_kernels
from .heads import flat_heads, flat_vectors
from .implied import IMPLIED, count_letters, forget_plain_words
from .joining import join_parts
from .joining.complex_parts import join_complex_parts
from .kernels import channels_first, lay_down, turn_kernels, turn_transposed
from .layouts import follow_names, general_dense, turn_all, turn_bare_matrices, turn_by_vote
from .permuted import permute
from .pieces import Canon
from .reparametrized import merge_masks, merge_norms, take_unknown_as_plain
from .scanned import divide_layers
from .shared_heads import add_key_biases, repeat_shared_heads
from .sides import cut_sides
from .stacked import unstack, unstack_together

#: What a step does with (source, target).
Step = Callable[[Canon, Canon], None]


def each(step: Step) -> Step:
    """Return a step that does STEP to the source (with the target as the other side), then to the target."""

    def run(source: Canon, target: Canon) -> None:
        step(source, target)
        step(target, source)

    return run


def target_first(step: Step) -> Step:
    """Return a step that changes the target for the source, then the source for the target."""

    def run(source: Canon, target: Canon) -> None:
        step(target, source)
        step(source, target)

    return run


def alone(step: Callable[[Canon], None]) -> Step:
    """Return a step that changes each side without the other."""

    def run(source: Canon, target: Canon) -> None:
        step(source)
        step(target)

    return run


def of_source(step: Callable[[Canon], None]) -> Step:
    """Return a step that changes only the source."""

    def run(source: Canon, target: Canon) -> None:
        step(source)

    return run


STEPS: tuple[Rule[Step], ...] = in_order(
    Rule(
        "as the file states",
        5,
        "A tensor got torch's layout and torch's name for its part, as the file of another framework states them.",
        "Its operator or the class of its layer says it; what only a name says has to fit the model's sizes.",
        take_what_is_stated,
        when="the reader of the file states roles (docs/formats.md)",
    ),
    Rule(
        "numbered exports",
        10,
        "A number that an export to ONNX left in place of a name got the name of its layer.",
        "Numbers follow the order of use, and the biases keep their names; so each matrix is known by its bias.",
        name_exported,
    ),
    Rule(
        "scanned layers",
        20,
        "A tensor that stacks all layers of a scanned list was split into one tensor for each layer.",
        "Frameworks that scan over blocks stack the weights of all blocks along one dimension; sizes show which.",
        divide_layers,
    ),
    Rule(
        "general dense layers",
        30,
        "A kernel with several input or output dimensions was seen as a matrix.",
        "`DenseGeneral` and `EinsumDense` keep heads in a dimension of their own; values stand in the same order.",
        general_dense,
    ),
    Rule(
        "layout of torch",
        40,
        "A kernel whose first dimension is the inputs was transposed to torch's layout.",
        "The name of the leaf (`kernel`, `w`) or the forward pass says that inputs stand first.",
        each(turn_all),
    ),
    Rule(
        "recurrent kernels",
        50,
        "The kernels of a recurrent layer became the two matrices of torch.",
        "`kernel` and `recurrent_kernel` are the names of Keras, whose gates and layout are documented.",
        of_source(of_recurrent_kernels),
    ),
    Rule(
        "turned as its kin",
        60,
        "A square matrix was transposed, as the other matrices with its name were.",
        "Layers of one name are laid out in one way, and those that are not square show which.",
        alone(turn_by_vote),
    ),
    Rule(
        "bias without keys",
        70,
        "`q_bias` and `v_bias` became the bias of the fused projection, with zeros for the keys.",
        "A bias of keys adds the same to all scores of a query, so code leaves it out.",
        alone(missing_key_bias),
    ),
    Rule(
        "one bias for several",
        80,
        "The one bias of several projections was shared out among them.",
        "`in_proj_bias` beside `q_proj_weight` is the layout of torch's own attention.",
        alone(divide_biases),
    ),
    *IMPLIED,
    Rule(
        "words that say nothing here",
        160,
        "`fc1` and `fc2` of one size were no longer read as what expands and what contracts.",
        "The other side shows that layers of these sizes are a gate and what it is multiplied with.",
        each(forget_plain_words),
    ),
    Rule(
        "adapters",
        170,
        "A low-rank adapter was merged into the weight that it adapts.",
        "The model has no adapters, and the product of the two factors has the sizes of the weight.",
        merge_adapters,
    ),
    Rule(
        "channels last",
        180,
        "Kernels with their channels last were put into the order of torch.",
        "MLX and TFLite keep channels last; all kernels of the file fit the model's so and not otherwise.",
        channels_first,
    ),
    Rule(
        "weight norm",
        190,
        "Weight norm or spectral norm became the plain weight that it stands for.",
        "The other side has a plain weight of these sizes, and the formula is that of torch.",
        each(merge_norms),
    ),
    Rule(
        "scale beside statistics",
        200,
        "Scale and shift in one layer and statistics in another became one batch norm.",
        "Caffe keeps them in two layers of which one follows the other.",
        each(join_affine),
    ),
    Rule(
        "pruned weights",
        210,
        "A pruned weight and its mask became the plain weight.",
        "`weight_orig` times `weight_mask` is what torch computes.",
        merge_masks,
    ),
    Rule(
        "unknown parametrization",
        220,
        "A tensor from which code computes a weight was taken for the weight.",
        "Nothing shows what is computed: always a question.",
        each(take_unknown_as_plain),
        Strength.OPEN,
    ),
    Rule(
        "gates of cells",
        230,
        "The gates of a recurrent cell became one matrix in the order of torch.",
        "Their names say which gate each is, and the other side holds them in one.",
        join_gates,
    ),
    Rule(
        "two inputs in one matrix",
        240,
        "A matrix over input and hidden state was cut into one for each.",
        "The other side has the two apart, and their widths add up.",
        each(cut_sides),
    ),
    Rule(
        "turned as its namesake",
        250,
        "A matrix was transposed to the layout of the model's matrix with the same name.",
        "What has one name and one shape is laid out in one way, unless the sizes of others show that it is not.",
        follow_names,
    ),
    Rule(
        "heads in a dimension",
        260,
        "Heads in a dimension of their own were laid flat.",
        "The other side has a matrix with as many rows; heads stand one after the other in both.",
        target_first(flat_heads),
    ),
    Rule(
        "vectors with dimensions",
        270,
        "A vector with several dimensions was laid flat.",
        "The other side has a plain vector of that length.",
        target_first(flat_vectors),
    ),
    Rule(
        "fused projections",
        280,
        "A fused projection was split into its parts.",
        "Its name says what it holds, and the other side has the parts; what is fused on both sides stays so.",
        split_first,
    ),
    Rule(
        "shared heads",
        290,
        "Heads of keys and values that several queries share were repeated.",
        "The model has one for each query; queries of a group stand together (Ainslie et al., 2023).",
        repeat_shared_heads,
    ),
    Rule(
        "biases of keys",
        300,
        "A bias of keys that the file leaves out was filled with zeros.",
        "It changes nothing in an attention.",
        add_key_biases,
    ),
    Rule(
        "projections by initials",
        310,
        "A layer whose name spells the initials of other layers was split into these layers.",
        "`qkvg_proj` spells `q_proj`, `k_proj`, `v_proj` and `gate_proj`, and the sizes add up.",
        each(split_by_initials),
    ),
    Rule(
        "stacked layers",
        320,
        "A stack of experts or layers was split into its members.",
        "The other side has a list of that length, with members of these sizes.",
        each(unstack),
    ),
    Rule(
        "layers in several stacks",
        330,
        "Several tensors that together stack the layers of one list were split into these layers.",
        "Together they have as many layers as the list of the other side.",
        each(unstack_together),
    ),
    Rule(
        "complex numbers",
        335,
        "Two tensors of real and imaginary parts became one whose last dimension holds both.",
        "`view_as_complex` of torch takes them so, the real part first; names say which is which.",
        each(join_complex_parts),
    ),
    Rule(
        "parts in one",
        340,
        "Tensors of one list or one module were joined into one tensor.",
        "The other side has as many more of the whole as it has fewer of the parts.",
        each(join_parts),
    ),
    Rule(
        "fused projections of experts",
        350,
        "A fused projection was split into its parts, after the stack around it was split.",
        "Experts that were stacked, and heads that were joined, are projections only now.",
        split_again,
    ),
    Rule(
        "kernels laid down",
        360,
        "A kernel over a whole row of one channel became one over its columns as channels.",
        "A convolution in two dimensions that takes a whole row at once is one in one dimension.",
        each(lay_down),
    ),
    Rule(
        "transposed convolutions",
        370,
        "A transposed convolution over one pixel became a linear layer.",
        "Over one pixel both multiply with one matrix, which stands the other way round.",
        each(turn_transposed),
    ),
    Rule(
        "transposed kernels",
        375,
        "A kernel of a transposed convolution was swapped and flipped for a convolution.",
        "With stride 1 both compute the same; code, biases and sizes show the kind of the source's layer.",
        turn_kernels,
        Strength.OPEN,
        when="the model has no transposed convolutions",
    ),
    Rule(
        "biases apart",
        380,
        "A bias that stood apart joined the matrix that it belongs to.",
        "The other side has no lone bias of that size; names, sizes or neighbours say which matrix it is.",
        each(attach_biases),
    ),
    Rule(
        "letters that count",
        390,
        "Letters at the end of names were read as numbers.",
        "Names that end in a, b, c without a gap count; and the other side has no such letters.",
        count_letters,
    ),
    Rule(
        "bare matrices",
        400,
        "Matrices that are parameters without a layer were transposed.",
        "Both layouts are compared with the model's shapes in order, and the one that fits more of them is taken.",
        turn_bare_matrices,
    ),
    Rule(
        "dimensions in another order",
        410,
        "The dimensions of a parameter were put in another order.",
        "Its sizes fit the model's in one order only.",
        permute,
    ),
)


def bring_together(source: Canon, target: Canon) -> None:
    """Run every step of the table."""
    for step in STEPS:
        source.step = target.step = step.name
        step.run(source, target)
