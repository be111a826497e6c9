"""The table of the steps that bring both sides into the common form, in their order.

A step takes the source and the target. A step that changes one side by what the other side has is run in both
directions. Pieces keep the names of the steps that made them, for `--explain`.
"""

from __future__ import annotations

from collections.abc import Callable

from ..rules import Rule, Strength, in_order
from .adapters import merge_adapters
from .affine import divide_pairs, join_affine
from .biases import attach_biases, divide_biases
from .fusing.fused import missing_key_bias, split_again, split_first
from .fusing.initials import split_by_initials
from .gates import join_gates, of_recurrent_kernels
from .heads import add_key_biases, flat_heads, flat_vectors, repeat_shared_heads
from .implied import (
    count_letters,
    forget_plain_words,
    name_in_company,
    name_listed_attention,
    name_norm_of_layer,
    name_seen_gates,
    name_third_norm,
)
from .joining import join_parts
from .joining.complex_parts import join_complex_parts
from .kernels import channels_first, lay_down, turn_kernels
from .layouts import follow_names, general_dense, turn_all, turn_bare_matrices, turn_by_vote
from .permuted import permute
from .pieces import Canon
from .reparametrized import merge_masks, merge_norms, take_means, take_unknown_as_plain
from .scanned import divide_layers
from .sides import cut_sides
from .stacked import unstack, unstack_together
from .stated import name_exported, take_what_is_stated

#: What a step does with (source, target).
Step = Callable[[Canon, Canon], None]


def each(step: Step) -> Step:
    """Return a step that runs STEP for the source (with the target as the other side), then for the target."""

    def run(source: Canon, target: Canon) -> None:
        step(source, target)
        step(target, source)

    return run


def target_first(step: Step) -> Step:
    """Return a step that runs STEP for the target (with the source as the other side), then for the source."""

    def run(source: Canon, target: Canon) -> None:
        step(target, source)
        step(source, target)

    return run


def alone(step: Callable[[Canon], None]) -> Step:
    """Return a step that runs STEP on the source, then on the target, without the other side."""

    def run(source: Canon, target: Canon) -> None:
        step(source)
        step(target)

    return run


def of_source(step: Callable[[Canon], None]) -> Step:
    """Return a step that runs STEP on the source only."""

    def run(source: Canon, target: Canon) -> None:
        step(source)

    return run


STEPS: tuple[Rule[Step], ...] = in_order(
    Rule(
        "as the file states",
        5,
        "A tensor got torch's layout and torch's name for its part, as the file of another framework states them.",
        "The file states the operator or the class of the layer. A layout that only a name states has to fit the "
        "model's sizes.",
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
        "A kernel with several input or output dimensions was reshaped to a matrix.",
        "`DenseGeneral` and `EinsumDense` keep heads in a dimension of their own; values stand in the same order.",
        general_dense,
    ),
    Rule(
        "layout of torch",
        40,
        "A kernel whose first dimension is the inputs was transposed to torch's layout.",
        "The last part of its name (`kernel`, `w`) or the forward pass shows that its first dimension is the inputs.",
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
        "Matrices of one name have one layout, and those that are not square show which.",
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
        "The one bias of several projections was split into a bias for each of them.",
        "`in_proj_bias` beside `q_proj_weight` is the layout of torch's own attention.",
        alone(divide_biases),
    ),
    Rule(
        "names in company",
        90,
        "Names such as `w1`, `w2` and `w3` were read as gate, down and up.",
        "Code that follows one paper or library has all of these names in one module; `words.yaml` lists them.",
        alone(name_in_company),
    ),
    Rule(
        "gates that were seen",
        110,
        "A layer was read as a gate, or as the value that a gate is multiplied with.",
        "The forward pass shows which layer is the gate, and its name does not matter.",
        name_seen_gates,
    ),
    Rule(
        "listed layers of an attention",
        120,
        "The layers of a list in an attention were read as queries, keys, values and output.",
        "The list `linears` of the Annotated Transformer, and of code that follows it, holds them in this order; the "
        "lists `proj` of SuperGlue and `linear_layers` of BERT in PyTorch hold the first three, and the output has a "
        "name of its own.",
        alone(name_listed_attention),
    ),
    Rule(
        "norm of a layer",
        130,
        "A norm that a layer itself holds was read as the norm before it.",
        "`LayerNormLinear` of Transformer Engine holds the norm that is applied to its input.",
        alone(name_norm_of_layer),
    ),
    Rule(
        "third norm",
        140,
        "In a block with three norms, the norm of the feed-forward part was read as the third norm.",
        "A block with two attentions has a norm before each of them, and the feed-forward part comes last.",
        alone(name_third_norm),
    ),
    Rule(
        "words that say nothing here",
        160,
        "`fc1` and `fc2` of one size were no longer read as the layer that expands and the layer that contracts.",
        "The other side shows that two layers of these sizes are a gate and the value that it is multiplied with.",
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
        "weight norm",
        175,
        "Weight norm or spectral norm became the plain weight that it stands for.",
        "The other side has a plain weight of these sizes, and the formula is that of torch.",
        each(merge_norms),
    ),
    Rule(
        "channels last",
        180,
        "Kernels with their channels last were put into the order of torch.",
        "MLX and TFLite store channels last, and all kernels of the file fit the model's sizes only if they are "
        "reordered.",
        channels_first,
    ),
    Rule(
        "scale beside statistics",
        200,
        "Scale and shift in one layer and statistics in another became one batch norm.",
        "Caffe has a batch norm in two layers, one directly after the other.",
        each(join_affine),
    ),
    Rule(
        "two parameters of an activation",
        205,
        "Two vectors that are called like a scale and a shift became parameters of their own.",
        "An activation has an `alpha` and a `beta`; the other side has two vectors of this size, and no layer with "
        "both.",
        each(divide_pairs),
    ),
    Rule(
        "pruned weights",
        210,
        "A pruned weight and its mask became the plain weight.",
        "`weight_orig` times `weight_mask` is what torch computes.",
        merge_masks,
    ),
    Rule(
        "noisy layers",
        215,
        "The mean of the weights of a noisy layer became the plain weight.",
        "The model has plain layers; in evaluation, code of noisy layers uses the means.",
        take_means,
    ),
    Rule(
        "unknown parametrization",
        220,
        "A tensor from which the code computes a weight was treated as the weight itself.",
        "Nothing shows what the code computes, so this is always a question.",
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
        "A matrix over the concatenated input and hidden state was split into a matrix for each of them.",
        "The other side has two matrices, and their widths add up to the width of this one.",
        each(cut_sides),
    ),
    Rule(
        "turned as its namesake",
        250,
        "A matrix was transposed to the layout of the model's matrix with the same name.",
        "Matrices with one name and one shape have one layout, unless other matrices of this name show by their "
        "sizes that they do not.",
        follow_names,
    ),
    Rule(
        "heads in a dimension",
        260,
        "A tensor with a dimension for attention heads was reshaped to a matrix.",
        "The other side has a matrix with as many rows as all heads together, and stores the heads one after the "
        "other.",
        target_first(flat_heads),
    ),
    Rule(
        "vectors with dimensions",
        270,
        "A vector with several dimensions was reshaped to one dimension.",
        "The other side has a plain vector of that length.",
        target_first(flat_vectors),
    ),
    Rule(
        "fused projections",
        280,
        "A fused projection was split into its parts.",
        "Its name says which parts it holds, and the other side has these parts. A projection that both sides have "
        "fused is not split.",
        split_first,
    ),
    Rule(
        "shared heads",
        290,
        "Heads of keys and values that several queries share were repeated.",
        "The model has keys and values for each head of queries; the heads of queries that share them are adjacent "
        "(Ainslie et al., 2023).",
        repeat_shared_heads,
    ),
    Rule(
        "biases of keys",
        300,
        "A bias of keys that the file leaves out was filled with zeros.",
        "A bias of keys does not change the output of an attention.",
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
        "The other side has more tensors of the joined size and fewer of the parts' sizes, by matching numbers.",
        each(join_parts),
    ),
    Rule(
        "fused projections of experts",
        350,
        "A fused projection was split into its parts, after the stack around it was split.",
        "A projection inside a stack of experts, or with a dimension for heads, can be recognised only after the "
        "stack or the dimension is taken apart.",
        split_again,
    ),
    Rule(
        "kernels laid down",
        360,
        "A kernel over a whole row of one channel became one over its columns as channels.",
        "A 2d convolution whose kernel is as wide as its input computes the same as a 1d convolution.",
        each(lay_down),
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
        "A bias in a place of its own was put beside the matrix that it belongs to.",
        "The other side has no bias of that size without a matrix; names, sizes or neighbours show which matrix it "
        "belongs to.",
        each(attach_biases),
    ),
    Rule(
        "letters that count",
        390,
        "Letters at the end of names were read as numbers.",
        "Names that end in a, b, c without a gap are numbered, and the other side does not use these letters.",
        count_letters,
    ),
    Rule(
        "bare matrices",
        400,
        "Matrices that are parameters without a layer were transposed.",
        "Both layouts are compared with the model's shapes in order, and the layout that fits more shapes is taken.",
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
    """Run every step of `STEPS` on SOURCE and TARGET, in the order of the table. Both are changed. Their `step` is the
    name of the step that runs, and keeps that of the last one.
    """
    for step in STEPS:
        source.step = target.step = step.name
        step.run(source, target)
