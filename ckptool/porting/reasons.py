"""The table of sentences: every reason why a rule may ask, in the words of the report.

A sentence says what is uncertain and what was done, then what to check or to type. `the alternative below` is the first
option, which the report shows after `or`. No rule reads a sentence. Reasons of the topic `LEFT` are no questions: they
say why a key has no source. The topic of a reason lets a later rule answer the question, whichever rule asked.
"""

from __future__ import annotations

from enum import Enum


class Topic(Enum):
    """The topic of a question, so that a later rule can answer the question; the text says what the question is about,
    and what answers it.
    """

    ORDER = "which of several look-alikes it is, by orders; answered if no swap fits"
    PARTS = "which of several equal blocks it is in; answered if no swap fits"
    SWAP = "which of two look-alikes has which tensor, by all evidence; answered by their places in both graphs"
    #: Excluding the swaps of single layers does not answer it.
    COUNT = "from which end blocks are counted"
    #: Its rows are outputs (as in torch.nn.Linear) or inputs.
    TURNED = "whether a matrix is transposed"
    LAYOUT = "how a projection stores its parts; answered if the model joins them again"
    OTHER = "all else; answered by the user or a proof"
    #: A fact about a key, not a question: there is nothing to answer.
    LEFT = "why a key has no source"


class Reason(Enum):
    """Why a rule asks. Each member has its `topic` and what it `says`: the sentence of the report, with `{}` for each
    name in it.
    """

    def __init__(self, topic: Topic, says: str) -> None:
        self.topic = topic
        self.says = says

    # Which of several look-alikes
    SEVERAL_FIT = (
        Topic.ORDER,
        "{} tensors of the source fit this layer equally well, and this one was chosen by its name and its "
        "neighbours; check which of them the source's code uses in this layer, and if it is another one, take it among "
        "the alternatives below or name it with --hint OLD=NEW",
    )
    GUESSED_OF_SEVERAL = (
        Topic.SWAP,
        "{} tensors of the source fit this layer equally well, and this one was chosen because its name is the most "
        "similar; check which of them the source's code uses in this layer, and if it is another one, take it among "
        "the alternatives below or name it with --hint OLD=NEW",
    )
    ORDERS_DIFFER = (
        Topic.ORDER,
        "several tensors have this shape, and this one was chosen by its place among them, but the layers that are "
        "certain have no common order in the model and in the source; check which tensor of this shape the source's "
        "code uses in this layer, and correct a wrong pair with --hint OLD=NEW",
    )
    ORDERS_DIFFER_ELSEWHERE = (
        Topic.ORDER,
        "several tensors have this shape, and this one was chosen by its place among them, but many other layers have "
        "another order in the model than in the source; check which tensor of this shape the source's code uses in "
        "this layer, and correct a wrong pair with --hint OLD=NEW",
    )
    ORDERS_DISAGREE = (
        Topic.ORDER,
        "this tensor was chosen by the {} of the layers, but by the {} another tensor of the source would go here; "
        "check which tensor of this shape the source's code uses in this layer, and correct a wrong pair with --hint "
        "OLD=NEW",
    )
    ORDER_SPEAKS_FOR_ANOTHER = (
        Topic.ORDER,
        "this tensor was chosen by its place among other layers, but by the {} another tensor of this shape would go "
        "here; check which of them the source's code uses in this layer, and correct a wrong pair with --hint OLD=NEW",
    )
    ONLY_NUMBERS = (
        Topic.ORDER,
        "this layer and others of its shape have other numbers in the source than in the model, and were paired from "
        "the lowest number to the highest; check in both codes that they count from the same end and that no layer is "
        "missing, and correct wrong pairs with --hint OLD=NEW",
    )
    ONLY_FOLLOWS = (
        Topic.ORDER,
        "this layer was paired only because the layers directly before it in the model and in the source are a pair, "
        "and the names do not confirm it; check in both codes that the same layer comes before it, and correct a "
        "wrong pair with --hint OLD=NEW",
    )
    ONLY_FIRST = (
        Topic.ORDER,
        "this layer was paired only because it is the first in the model and its tensor the first in the source, and "
        "the names do not confirm it; check in both codes that these are the same layer, and correct a wrong pair "
        "with --hint OLD=NEW",
    )
    LEFT_OUT_OF_A_ROW = (
        Topic.OTHER,
        "the model and the source have different numbers of layers of this shape in a row; they were paired from the "
        "front, but any of them may be the one without a partner; check in both codes which layer is missing, and "
        "correct wrong pairs with --hint OLD=NEW",
    )
    NAMES_FOR_SWAP = (
        Topic.SWAP,
        "the names fit better if this layer and the layer that got {} of the source exchange their tensors; check "
        "which of these two tensors the source's code uses in this layer, and if it is not the chosen one, exchange "
        "the tensors of the two layers (among the alternatives below)",
    )
    COMPANY_FOR_SWAP = (
        Topic.SWAP,
        "certain pairs of nearby layers show, by their paths, words, numbers or places in the forward pass, that this "
        "layer and the layer that got {} of the source may have each other's tensor; check which of these two tensors "
        "the source's code uses in this layer, and if it is not the chosen one, exchange the tensors of the two "
        "layers (among the alternatives below)",
    )
    BESIDE_FOR_SWAP = (
        Topic.SWAP,
        "the modules beside this layer, or beside the layer that got {} of the source, come from another module of "
        "the source than the layer itself, as if the two should exchange their tensors; check which of these two "
        "tensors the source's code uses in this layer, and if it is not the chosen one, exchange the tensors of the "
        "two layers (among the alternatives below)",
    )
    RUN_BY_ONE_CODE = (
        Topic.SWAP,
        "the model and the source's code each run only one of two layers, this one and the one that got {} of the "
        "source, and the layer that the model runs got the tensor that the source's code does not use; check which of "
        "these two tensors the model needs in the layer that it runs, and if it has the wrong one, exchange the "
        "tensors of the two layers (among the alternatives below)",
    )
    ORDER_FOR_SWAP = (
        Topic.SWAP,
        "by the {}, this layer and the layer that got {} of the source should exchange their tensors; check which of "
        "these two tensors the source's code uses in this layer, and if it is not the chosen one, exchange the "
        "tensors of the two layers (among the alternatives below)",
    )
    ORDERS_ABOUT_SWAP = (
        Topic.SWAP,
        "the {} supports this pair, but by the {}, this layer and the layer that got {} of the source would have each "
        "other's tensor; check which of these two tensors the source's code uses in this layer, and if it is not the "
        "chosen one, exchange the tensors of the two layers (among the alternatives below)",
    )
    NO_ORDER_KEPT = (
        Topic.SWAP,
        "only their order tells the chosen tensor from {} of the source, which another layer got, and other layers "
        "are in another order in the model than in the source; check which of these two tensors the source's code "
        "uses in this layer, and if it is not the chosen one, exchange the tensors of the two layers (among the "
        "alternatives below)",
    )
    RUNS_BESIDE = (
        Topic.SWAP,
        "this layer and the layer that got {} of the source are parallel branches in the model, and their tensors "
        "were chosen only by the order in which code registers or runs the branches; check in the source's code which "
        "branch is which, and if each layer got the other's tensor, exchange the two (among the alternatives below)",
    )
    NAMED_AS_ADDED = (
        Topic.SWAP,
        "only the order of the file tells the chosen tensor from {} of the source, which another layer got, and this "
        "order may mislead: one of the two names has a word more, as several layers of this block have "
        "(temporal_norm beside norm), so these layers may have been added to the code later; check which of these "
        "two tensors the source's code uses in this layer, and if it is not the chosen one, exchange the tensors of "
        "the two layers (among the alternatives below)",
    )
    CONVENTION_OF_TWO = (
        Topic.SWAP,
        "one of the codes does not name its gate, so the gate may be the chosen tensor or {} of the source, which "
        "another layer got; check which of these two tensors the source's code passes through the activation, and if "
        "the model's gate did not get that one, exchange the tensors of the two layers (among the alternatives below)",
    )
    GATE_BY_NAME = (
        Topic.SWAP,
        "one of the codes calls a layer of a feed-forward network its gate, and may still pass the layer beside it "
        "through the activation, so the gate may be the chosen tensor or {} of the source, which another layer got; "
        "check which of these two tensors the source's code passes through the activation, and if the model's gate did "
        "not get that one, exchange the tensors of the two layers (among the alternatives below)",
    )
    AGAINST_NUMBERS = (
        Topic.SWAP,
        "names and neighbouring layers chose this tensor, but by order or number, this layer and the layer that got "
        "{} of the source would have each other's tensor; check which of these two tensors the source's code uses in "
        "this layer, and if it is not the chosen one, exchange the tensors of the two layers (among the alternatives "
        "below)",
    )
    WANTED_ELSEWHERE = (
        Topic.OTHER,
        "this tensor of the source fits the model's {} as well, and that layer has no source; check in both codes "
        "which of these two layers the tensor belongs to, and correct a wrong pair with --hint OLD=NEW",
    )
    SPARE_BESIDE = (
        Topic.SWAP,
        "the source has {} and {} of equal sizes, the model has one layer of these two, and names do not tell which; "
        "the first was chosen; check which of them the source's code uses in this layer, and if it is not the first, "
        "take the alternative below",
    )
    OUT_OF_ORDER = (
        Topic.OTHER,
        "{} of the source is not used, and in this layer it would be in order with the other layers, while the chosen "
        "tensor is not; check which of these two tensors the source's code uses in this layer, and correct a wrong "
        "pair with --hint OLD=NEW",
    )
    OUT_OF_ORDER_HERE = (
        Topic.OTHER,
        "the model's {} has no source, and there this tensor would be in order with the other layers, while here it "
        "is not; check in both codes which of these two layers the tensor belongs to, and correct a wrong pair with "
        "--hint OLD=NEW",
    )
    FROM_ANOTHER_BLOCK = (
        Topic.SWAP,
        "the other layers of {} in the model come from another block of the source, but this layer comes from {}; "
        "check in both codes which block this layer belongs to, and correct a wrong pair with --hint OLD=NEW",
    )
    BLOCKS_CHANGE_PLACES = (
        Topic.SWAP,
        "this block and another block of the model got {} and {} of the source, which are in the opposite order "
        "there, although the same order would fit as well; check the order in which the source's code calls these two "
        "blocks, and if it is the order in the model, exchange them with --hint OLD=NEW",
    )
    ANOTHER_IN_OTHER_BLOCKS = (
        Topic.SWAP,
        "in the other blocks of the model this layer comes from {} of the source, but in this block from {}; check in "
        "the source's code whether this block differs from the others, and if not, correct the pair with --hint "
        "OLD=NEW",
    )
    TO_ANOTHER_IN_OTHER_BLOCKS = (
        Topic.SWAP,
        "in the other blocks, {} of the source goes to {} of the model, but that of one block, {}, went to this layer; "
        "check in the source's code whether that block differs from the others, and if not, correct the pair with "
        "--hint OLD=NEW",
    )
    FROM_ANOTHER_PART = (
        Topic.OTHER,
        "the other layers of this module come from {} of the source, but this layer comes from {}; check in both "
        "codes that the model's tensor and the source's tensor belong to the same layer, and correct a wrong pair "
        "with --hint OLD=NEW",
    )
    WITHOUT_NAMES = (
        Topic.OTHER,
        "the file has no names, so its tensors were paired in order, but the tensors for this key and for {} have the "
        "same shape and may be exchanged; check in which order the source's code registers these two parameters, and "
        "if it is the other order, exchange their sources in the mapping file",
    )

    # Which of equal parts of the model
    PARTS_IN_ANOTHER_ORDER = (
        Topic.PARTS,
        "this block and others that are equal to it were paired by the {}, but by the {} they would be paired "
        "differently; check in both codes which of these blocks comes first, and correct wrong pairs with --hint "
        "OLD=NEW",
    )
    PARTS_BY_REGISTRATION = (
        Topic.PARTS,
        "this block and others that are equal to it were paired by the order in which the model registers them, and "
        "the order in which it runs them is not known; check in both codes which of these blocks comes first, and "
        "correct wrong pairs with --hint OLD=NEW",
    )
    OUTPUTS_TURNED = (
        Topic.OTHER,
        "the outputs of the model equal those of the source's code, but in another order: either the two codes return "
        "them in different orders, or the layers of two outputs are exchanged; check in both codes which output comes "
        "first: if it is the same one, exchange the layers of the two outputs in the mapping file",
    )
    INPUTS_TURNED = (
        Topic.OTHER,
        "the outputs are equal only if two inputs of one size, or two dimensions of one input, change places: "
        "either the two codes take them in different orders, or the weights of these layers are in wrong places; "
        "check in which order both codes take inputs and dimensions: if it is the same order, exchange or turn the "
        "weights of these layers in the mapping file",
    )
    HINT_NOT_FOLLOWED = (
        Topic.OTHER,
        "the hint {} was not followed, because other evidence filled this module with other tensors; give a hint for "
        "each block or layer that looks like it, or write the pair into the file of --save-mapping",
    )
    NAMED_ALONG = (
        Topic.SWAP,
        "in the model, this layer is connected to a layer whose tensor is certain, and the name of the chosen tensor "
        "has a word in common with the name of that tensor; check in the source's code that the layers of these two "
        "tensors are connected, and if they are not, correct the pair with --hint OLD=NEW",
    )
    BIAS_OF_SUM = (
        Topic.OTHER,
        "one of the codes has this bias in a layer and the other code has it beside several layers, so it was taken as "
        "the bias of their sum; check that both codes add the outputs of these layers, and correct it in the mapping "
        "file if not",
    )
    RUN_BACKWARDS = (
        Topic.COUNT,
        "these equal blocks were paired by their numbers, but the model runs them from the last to the first, and the "
        "source may number them in the order in which they run; check in the source's code which of its blocks runs "
        "first; if its block 0 runs first, pair the first with the last and so on, each pair with a --hint OLD=NEW",
    )
    FROM_THE_OTHER_END = (
        Topic.COUNT,
        "known pairs show that the model and the source number these blocks from opposite ends, so the first block "
        "was paired with the last; check in the source's code which block comes first, and correct wrong pairs with "
        "--hint OLD=NEW",
    )
    AGAINST_LEVELS = (
        Topic.COUNT,
        "blocks with equal numbers were paired, but one code may number them in the order in which they run, and the "
        "other code by resolution, or from the other end; check in both codes which block comes first; if they "
        "differ, pair the first with the last and so on, each pair with a --hint OLD=NEW",
    )
    LEVELS_FROM_THE_OTHER_END = (
        Topic.COUNT,
        "the model numbers these blocks in the order in which they run, and the source seems to number them by "
        "resolution, so the first block was paired with the last; check in the source's code which block comes first; "
        "if it numbers its blocks as the model does, pair equal numbers, each pair with a --hint OLD=NEW",
    )

    ONLY_THE_BLOCK = (
        Topic.SWAP,
        "the chosen tensor and {} of the source have the same shape and are in the same block, no name tells which is "
        "which, and the source lists them in another order than the model; check which of these two tensors the "
        "source's code uses in this layer, and correct a wrong pair with --hint OLD=NEW",
    )

    # Whether it is the same thing at all
    ONLY_ITS_SHAPE = (
        Topic.OTHER,
        "this tensor was chosen because no other tensor of its shape is left, and the names do not confirm it; check "
        "in both codes that the model's tensor and the source's tensor belong to the same layer: if they do not, list "
        "the key under left: in the mapping file",
    )
    ONLY_ITS_PLACE = (
        Topic.OTHER,
        "the shape and the place of this pair match, but the names do not, and the place was found from a "
        "neighbouring layer whose tensor was changed to another size, which is a guess; check in both codes that the "
        "model's tensor and the source's tensor belong to the same layer: if they do not, list the key under left: in "
        "the mapping file",
    )
    ANOTHER_NAME = (
        Topic.OTHER,
        "nearly all other layers have the same name in the model and in the source, but this layer was paired with a "
        "layer of another name; check that it is not a new layer of the model, which would have no source: if it is "
        "one, list the key under left: in the mapping file",
    )
    BEHIND_NEW = (
        Topic.OTHER,
        "the model runs this layer directly behind {}, a new layer without a source, and its name is not that of the "
        "source's layer, so that it may be a new layer as well, of the same size by accident; check whether the model "
        "trains it anew: if it does, list the key under left: in the mapping file",
    )
    RENAMED_PART = (
        Topic.OTHER,
        "the source's layers have the same names in {} and in {}, but the model keeps these names only for {}, so that "
        "the other part may be another network, of the same sizes by accident; check what it is in the model: if it is "
        "another network, list its keys under left: in the mapping file",
    )
    OTHER_WORDS = (
        Topic.OTHER,
        "this pair was made although its names contradict each other (the model's says {}, the source's says {}); "
        "check in both codes that the model's tensor and the source's tensor belong to the same layer, and correct a "
        "wrong pair with --hint OLD=NEW",
    )
    AUXILIARY = (
        Topic.OTHER,
        "in this pair, only one of the names marks a layer that is used only in training (such as an auxiliary head); "
        "check in both codes that the model's tensor and the source's tensor belong to the same layer, and correct a "
        "wrong pair with --hint OLD=NEW",
    )
    PARTS_UNNAMED = (
        Topic.OTHER,
        "the {} stores queries, keys and values as one tensor, and the names in the {} do not show which of its three "
        "layers is which, so they were paired without their names; check in the code of the {} which layer makes "
        "queries, keys and values, and correct wrong pairs with --hint OLD=NEW",
    )
    LEFT_BESIDE = (
        Topic.OTHER,
        "the source has {} beside this tensor, and the model has no place for it, so it was left out; check "
        "in the source's code that the layer computes the same without it: if it does not, the model needs a place "
        "for that tensor",
    )
    BIAS_FOR_ALL = (
        Topic.OTHER,
        "the source has a bias of this size in other layers ({}), and the model has no place for it there, so this "
        "bias was filled with the sum of all; check in both codes that the outputs of these layers are added: if they "
        "are not, take the alternative below",
    )
    SEVERAL_COPIES = (
        Topic.OTHER,
        "the file holds several copies of this model under different prefixes, and one of them was chosen by its "
        "prefix; choose another copy by its prefix: --hint PREFIX=",
    )
    AVERAGE_OF_IT = (
        Topic.OTHER,
        "the source holds another tensor of this size behind the name of this one, such as an average over the steps "
        "of its training, and the plain one was taken; if you want the other one, take the alternative below",
    )
    SEVERAL_SETS = (
        Topic.OTHER,
        "the file holds several state dicts that fit ({}), and the first of these was taken; choose another one by "
        "its path: --at PATH",
    )

    # How a tensor is laid out
    INPUTS_FIRST = (
        Topic.TURNED,
        "this matrix fits as it is and transposed, and the file does not show whether its rows are outputs (as in "
        "torch.nn.Linear) or inputs; check in both codes whether they compute x @ W.T or x @ W: if both do the same, "
        "take the line without transpose, and if not, the line with transpose",
    )
    INPUTS_FIRST_OF_SEVERAL = (
        Topic.TURNED,
        "these matrices fit as they are and transposed, and the file does not show whether their rows are outputs "
        "(as in torch.nn.Linear) or inputs; check in both codes whether they compute x @ W.T or x @ W: if both do "
        "the same, take the lines without transpose, and if not, the lines with transpose",
    )
    MEMBERS_ALONG = (
        Topic.LAYOUT,
        "several dimensions of this stack have the size {}, and the file does not show which of them counts the "
        "layers; check in the code of the side that stacks them along which dimension it takes one layer: if the "
        "expression takes another one, take the alternative for it",
    )
    SQUARE_KERNEL = (
        Topic.TURNED,
        "one of the codes has a 2d convolution over the whole width of its input where the other code has a 1d "
        "convolution, and the kernel is square ({} x {}), so its last dimension was taken as the width; check along "
        "which dimension the 2d convolution moves: if it is the last one, take the line without transpose, or leave "
        "out the transpose in the mapping file",
    )
    SQUARE_SCORES = (
        Topic.TURNED,
        "this matrix is square and used element by element, so it fits as it is and transposed, and it was copied; "
        "check in both codes whether its entry [i, j] is for i to j or for j to i: if they differ, take the "
        "transposed one",
    )
    TURNED_KERNEL = (
        Topic.TURNED,
        "the source has a transposed convolution here (known from {}), and the model has a convolution, so inputs and "
        "outputs were swapped and the kernel was flipped; check in both codes that the layer has stride 1: with "
        "another stride, the model needs a transposed convolution",
    )
    KERNEL_BY_NAME = (
        Topic.TURNED,
        "the source's name suggests a transposed convolution, and the model has a convolution; the kernel was taken "
        "as it is; check the kind of the layer in the source's code, and if it is a transposed one, take the "
        "alternative below",
    )
    HIDDEN_FIRST = (
        Topic.OTHER,
        "one matrix multiplies the input and the hidden state, concatenated, and the file does not show which of them "
        "comes first; the input was taken as the first; check the order of torch.cat in the code that has this "
        "matrix: if the hidden state comes first, take the alternative below, or, if there is none, exchange the two "
        "parts in the mapping file",
    )
    GATE_ORDER = (
        Topic.OTHER,
        "the file does not show the order of the gates in this matrix of an LSTM or GRU, and {} was assumed; check "
        "the order in the code that has this matrix: if it is another one, take the alternative below, or "
        "put the gates in order in the mapping file (cat of part)",
    )
    RESET_BEFORE = (
        Topic.OTHER,
        "the source's GRU has one bias for each gate and the model's GRU has two, so the source's bias became the "
        "first and the second was filled with zeros; but the source's code may apply the reset gate before the "
        "recurrent matrix (Keras: reset_after=False), which torch.nn.GRU cannot do; check where the source's code uses "
        "the reset gate: if it does so before that matrix, the model needs a GRU of its own that does the same",
    )
    BY_HEADS = (
        Topic.LAYOUT,
        "queries, keys and values are stored as one tensor, and the file does not show whether its "
        "rows are all queries, then all keys, then all values, or q, k and v of the first head, then of the next "
        "(written of_heads or by_heads); check how the code that has this tensor splits it: if it does not split it "
        "as the expression shows, write the other way in the mapping file",
    )
    JOINED_BY_HEADS = (
        Topic.OTHER,
        "two or three of queries, keys and values, with different numbers of rows, are one tensor in only one of the "
        "codes, and it was taken to hold one after the other, but it may hold the rows of each of them for the first "
        "head, then for the next; check how the code that has this tensor splits it: if it makes heads first (view), "
        "write of_heads (which takes a part out) or by_heads (which joins parts) in the mapping file",
    )
    HEADS_ARRANGED = (
        Topic.OTHER,
        "both codes store queries, keys and values as one tensor, so it was copied, but one code may store all "
        "queries, then all keys, then all values, and the other code q, k and v of one head after the other; check "
        "how both codes split this tensor: if they differ, reorder the rows with of_heads and by_heads in the mapping "
        "file",
    )
    ROWS_TAKE_TURNS = (
        Topic.LAYOUT,
        "only one of the codes stores gate and up projection as one tensor, and nothing shows whether all rows of the "
        "gate come before all rows of the up projection, as assumed, or their rows alternate; check how the code that "
        "has this tensor splits it: if the rows alternate, take the alternative below",
    )
    WHICH_HALF = (
        Topic.LAYOUT,
        "only one of the codes stores gate and up projection as one tensor, and the file does not show which half of "
        "it is the gate; the usual order was assumed; check which half is passed through the activation: if it is not "
        "the half assumed to be the gate, exchange the two in the mapping file",
    )
    PARTS_NAMED_OTHERWISE = (
        Topic.LAYOUT,
        "this projection was split in the order that its name gives ({}), but the model lists these parts in the "
        "order {}; check how the source's code splits its output: if in the model's order, take the alternative below",
    )
    PARTS_MAY_DIFFER = (
        Topic.LAYOUT,
        "this projection was split in the order that its name gives ({}), but not all code with such a name keeps this "
        "order, and some code cuts the rows into groups for several devices first; check how the source's code splits "
        "its output: if it has keys and values in the other order, take the alternative below, and if it has other "
        "groups, correct the expression in the mapping file",
    )
    ORDER_OF_PARTS = (
        Topic.OTHER,
        "several tensors in one of the codes are one tensor in the other code, and the file does not show in which "
        "order it holds them, so the likeliest order was assumed; check the order in the code where the tensors are "
        "concatenated or split, and correct it in the mapping file if it is another one",
    )
    PARTS_TAKE_TURNS = (
        Topic.OTHER,
        "several tensors in one of the codes are one tensor in the other code, and the file does not show whether "
        "their rows follow one another or alternate; alternating rows were assumed; check in the code where the "
        "tensors are concatenated or split: if the rows follow one another, take the alternative below",
    )
    LAYERS_OF_BLOCK = (
        Topic.OTHER,
        "several tensors in one of the codes are one tensor in the other code, and this one tensor was taken to hold "
        "the same layer of all blocks (such as the queries of each block), but it may hold all layers of one block "
        "(its queries, keys and values); check in the code that has the one tensor what it splits it into, and if "
        "that is the layers of one block, write the expressions so in the mapping file",
    )
    NORMS_AS_ONE = (
        Topic.OTHER,
        "the {} has several norms where the {} has one norm over all their channels, and the weights were "
        "concatenated; check over which channels each code normalises: if these are not the same, the two layers do "
        "not compute the same, and the keys belong under left: in the mapping file",
    )
    STATED_BY_NAME = (
        Topic.TURNED,
        "the order of this kernel's dimensions was taken from its name, but its sizes fit another order as well; "
        "check in the source's code which kind of layer it belongs to: if its dimensions are in the other order, take "
        "the alternative below",
    )
    SEVERAL_OPERATORS = (
        Topic.OTHER,
        "the ONNX graph has several operators of this kind and size, and their tensors were grouped in the order of "
        "the file; check in the graph which tensors belong to one operator, and correct wrong pairs in the mapping "
        "file",
    )
    LAYERS_IN_SEVERAL = (
        Topic.OTHER,
        "the tensors {} together hold one tensor for each layer, and were used in this order; check which of them "
        "holds the first layer, and correct the order in the mapping file if it is another one",
    )
    SHARED_HEADS = (
        Topic.OTHER,
        "the source has {} heads of keys and values, and each was repeated {} times for adjacent heads of queries; "
        "check that the source's code shares them between adjacent heads (repeat_interleave): if it repeats all heads "
        "one after the other, take the alternative below",
    )
    EXPORTED_NUMBERS = (
        Topic.OTHER,
        "the ONNX export numbers its matrices in the order of use, and several have this shape, so they were paired "
        "with the biases in that order; check in the graph which matrix is used with which bias, and correct wrong "
        "pairs in the mapping file",
    )
    SHARES_OF_RANKS = (
        Topic.OTHER,
        "this tensor holds several projections (such as q, k and v), and the file's shares of it, one for each rank, "
        "were concatenated as a whole; if each share holds a part of every projection, this is wrong: join the shares "
        "with the merge script of the source first",
    )
    EITHER_DIMENSION = (
        Topic.OTHER,
        "the shares of the ranks were joined along dimension {}, and would also fit if joined along dimension {}; "
        "check along which dimension the source's code splits this tensor, and correct it in the mapping file if it "
        "is the other one",
    )

    # What is computed from what is stored
    GAIN = (
        Topic.OTHER,
        "{} was taken as the gain of a weight norm on this matrix, because their names differ only in one letter (g "
        "for w); check that the source's code normalises the matrix, and if it does not, take the alternative below, "
        "which is the plain matrix",
    )
    PRUNED = (
        Topic.OTHER,
        "the model is pruned and the source is not, so the zeros of the source's weight were taken as pruned "
        "elements; check that no weight is zero for another reason: if one is, set its element of the model's mask to "
        "1 afterwards",
    )
    PARAMETRIZED_HERE = (
        Topic.OTHER,
        "the model computes its {} from this tensor by a parametrization (torch.nn.utils.parametrize) that ckptool "
        "does not know, and the source's tensor was copied; check that the source stores the tensor before this "
        "computation: if it stores the result, invert the computation yourself",
    )
    PARAMETRIZED_THERE = (
        Topic.OTHER,
        "the source's code computes its {} from this tensor by a parametrization that ckptool does not know, and the "
        "tensor was used as it is; check what this computation does, and save the computed weight if it changes the "
        "tensor",
    )
    NORM_OF_INPUTS = (
        Topic.OTHER,
        "the sizes of this weight do not show along which dimension its spectral norm counts, the first or, as torch "
        "does in transposed convolutions, the second; check in the source's code whether the layer is transposed, and "
        "if it does not fit, choose the alternative below",
    )
    SEVERAL_ADAPTERS = (
        Topic.OTHER,
        "the file has {} adapters for this weight ({}), and none was merged into it; merge one of them into the "
        "weights with the library that made them, and port the merged file",
    )
    UNKNOWN_ADAPTER = (
        Topic.OTHER,
        "the file has an adapter for this weight with the unknown part {}, and it was not merged; merge it with the "
        "library that made it",
    )
    UNFIT_ADAPTER = (
        Topic.OTHER,
        "the sizes of the adapter {} do not fit this weight, and it was not merged; check which weight the adapter's "
        "code changes, and merge it with the library that made it",
    )
    ADAPTER_SCALE = (
        Topic.OTHER,
        "the file does not hold the scale of its low-rank adapters (LoRA), and 1 was used; compare with alpha / rank "
        "in the adapter's configuration: if that is not 1, correct the scale in the mapping file",
    )
    ADAPTER_MAGNITUDES = (
        Topic.OTHER,
        "the file does not show whether the adapter's magnitudes (DoRA) scale the outputs or the inputs of the "
        "weight, and outputs were assumed; check the adapter's code: if they scale the inputs, merge the adapter with "
        "the library that made it",
    )
    NORM_AS_SCALE = (
        Topic.OTHER,
        "the model has a scale and a shift where the source has a batch norm, so the norm was folded into them with "
        "eps {}; check that the model's code computes no mean or variance there (if it does, write the weight and the "
        "bias of the source's norm in the mapping file), and check the eps in the source's code (the last number of "
        "fold_weight and fold_bias in the file of --save-mapping)",
    )
    FOLDED_NORM = (
        Topic.OTHER,
        "the source lists a batch norm directly after this layer, and the model has none here, so it was folded into "
        "weight and bias of this layer with eps {}; check in the source's code that the norm takes the output of "
        "this layer (if not, take the alternatives below for both), and check its eps (the last number of "
        "fold_weight and fold_bias in the file of --save-mapping)",
    )
    FOLDED_NORM_BY_ORDER = (
        Topic.OTHER,
        "the model has no batch norm in the module of this layer, and the source has, so the norm that follows this "
        "layer by the order of both was folded into weight and bias of this layer with eps {}; check in the source's "
        "code which norm takes the output of this layer (if none does, take the alternatives below for both), and "
        "check its eps (the last number of fold_weight and fold_bias in the file of --save-mapping)",
    )
    FOLDED_NORM_BEFORE = (
        Topic.OTHER,
        "the source lists a batch norm directly before this layer in its module, and the model has none here, so it "
        "was folded into weight and bias of this layer with eps {}; check in the source's code that this layer takes "
        "the output of the norm, with nothing between the two (if not, take the alternatives below for both), and "
        "check its eps (the last number of fold_weight and fold_bias in the file of --save-mapping)",
    )
    PARALLEL = (
        Topic.OTHER,
        "the source has several branches where the model has this layer, so they were added up, each with its batch "
        "norm folded in with eps {}; check in the source's code that all of them take one input and that their outputs "
        "are added (if not, take the alternatives below for weight and bias, which leave the other branches out), and "
        "check the eps (the last number of each fold_weight and fold_bias in the file of --save-mapping)",
    )
    LEFT_OUT_BESIDE = (
        Topic.OTHER,
        "the source's code also passes the input of this layer through {}, and the model has no place for that layer,"
        " so it was left out; check in the source's code whether what comes of it is added to the output of this layer:"
        " if so, add its weight to this one",
    )
    NEW_BESIDE = (
        Topic.OTHER,
        "this tensor comes from a layer of the source with another name, which has no {}, as the model's layer has, "
        "so the two may be different layers of equal size; check in both codes what the two layers do, and if the "
        "model's layer is new, list the key under left: in the mapping file",
    )
    UNREAD_NORM = (
        Topic.OTHER,
        "the source lists the batch norm {} directly after this layer, and it is not known what the model has in its "
        "place, so it was left out; check what the model does there: if nothing, the model needs that norm, or it has "
        "to be folded into weight and bias of this layer",
    )

    # Conventions of code
    HALF_ARRANGED = (
        Topic.OTHER,
        "both codes store gate and up projection as one tensor, so it was copied, but it is not known which half is "
        "the gate in the model or in the source; check in both codes which half is passed through the activation: if "
        "they differ, exchange the two halves in the mapping file with cat(0, slice(…), slice(…))",
    )
    ROWS_ARRANGED = (
        Topic.OTHER,
        "both codes store gate and up projection as one tensor, so it was copied, but one code may store all rows of "
        "the gate before all rows of the up projection, and the other code alternate them; check how both codes split "
        "this tensor: if they differ, reorder the rows in the mapping file",
    )
    ROTARY = (
        Topic.OTHER,
        "the model rotates queries and keys (rotary embedding), and the file does not show whether the source's code "
        "rotates element i of a head with element i + half of the head, or with element i + 1; check rotate_half or a"
        " similar function in the source's code, and reorder the rows with rotary(…) only if the two codes differ",
    )
    HEADS_INSIDE = (
        Topic.OTHER,
        "the source computes queries, keys and values by 1d convolutions, and the file does not show whether its code "
        "splits their channels into (heads, width) or (width, heads); check where the source's code splits them into "
        "heads: if into (heads, width), take the tensor as it is for all layers of the attention, else the rearranged "
        "one (one of the two is among the alternatives below)",
    )
    FLATTENED = (
        Topic.OTHER,
        "the model flattens feature maps in the order {}, and the source's code most likely in the order {}, so the "
        "columns were reordered; check the order of the dimensions before flatten or view in the source's code: if it"
        " is the model's order, take the plain tensor",
    )
    FLATTENED_AS_HERE = (
        Topic.OTHER,
        "the model flattens feature maps in the order {}, which code mostly has because its weights came in this "
        "order, so the columns were kept; check the order of the dimensions before flatten or view in the source's "
        "code: if it is {}, take the alternative below, with reordered columns",
    )
    UNFLATTENED = (
        Topic.OTHER,
        "the model makes feature maps of the output of this layer in the order {}, and the source's code most likely "
        "in the order {}, so the rows were reordered; check the order of the dimensions in reshape or view behind this "
        "layer in the source's code: if it is the model's order, take the plain tensor",
    )
    UNFLATTENED_AS_HERE = (
        Topic.OTHER,
        "the model makes feature maps of the output of this layer in the order {}, which code mostly has because its "
        "weights came in this order, so the rows were kept; check the order of the dimensions in reshape or view "
        "behind this layer in the source's code: if it is {}, take the alternative below, with reordered rows",
    )
    FLATTENED_PAIR = (
        Topic.OTHER,
        "the model flattens two dimensions, {}, for this layer, and the file does not show in which order the source's "
        "code flattens them, so the columns were kept; check the order of the two before flatten or view in the "
        "source's code: if it is {}, take the alternative below, with reordered columns",
    )
    NEIGHBOURS = (
        Topic.OTHER,
        "the model's code puts four neighbours of a feature map side by side for this layer, row by row, and most code "
        "for such layers does so column by column, all channels of one neighbour together, so the channels were "
        "reordered; check the order of the neighbours in the source's code, before this layer: if it is the model's, "
        "take the plain tensor",
    )
    PATCH_ORDER = (
        Topic.OTHER,
        "this layer takes patches, whose numbers the model's code lists in the order {} (c: channel, t: frame, h: row, "
        "w: column), and the source's code may list them in the order {}, so the tensor may have to be reordered; "
        "check how the source's code cuts pictures: if its order is the model's, take the line without permute, and if "
        "not, the line with permute",
    )
    BRANCHES_JOINED = (
        Topic.OTHER,
        "this layer takes several branches, joined by torch.cat, and the order of the source's layers suggests that "
        "its code joins them in another order than the model; check torch.cat in both codes: if they have the same "
        "order, take the line without slices, and if not, the line with cat of slices",
    )
    TABLES_JOINED = (
        Topic.OTHER,
        "this layer takes rows of several tables, concatenated, and the file does not show in which order the "
        "source's code concatenates them; the plain tensor was taken, as for the model's order, in which the file "
        "lists the tables, too; check torch.cat in both codes: if the two orders are opposite, take the alternative "
        "below, and if they differ otherwise, reorder the columns in the mapping file",
    )
    BRANCHES_GUESSED = (
        Topic.OTHER,
        "this layer takes the output of a torch.cat, and the pairs of some of the concatenated branches are guesses; "
        "check those guesses first, because they decide the order of this layer's inputs, and correct wrong pairs "
        "with --hint OLD=NEW",
    )
    NORMS_AROUND_0 = (
        Topic.OTHER,
        "the source's norm weights lie around 0, as if the source's code adds 1 to them, and the model's code does "
        "not add 1; the first line below is the likelier choice; check the forward of the norm in the source's code: "
        "take the line with shift(…, 1.0) if it adds 1, and the plain one if not",
    )
    NORMS_AROUND_1 = (
        Topic.OTHER,
        "the model's code adds 1 to its norm weights, and the source's norm weights are hardly ever negative, as if "
        "its code does not add 1; they were copied as they are; check the forward of the norm in the source's code: "
        "take the line with shift(…, -1.0) if it does not add 1, and leave the plain one if it does",
    )
    PLUS_IN_CODE = (
        Topic.OTHER,
        "the source's code adds {} to this tensor before it uses it, and the model's code adds {}, so the difference "
        "was added to the tensor; check the forward of this layer in both codes: if both add the same number, take "
        "the plain tensor",
    )
    EQUALISED = (
        Topic.OTHER,
        "the source's weights in nearly all layers are so large that its code may multiply them by 1 / sqrt(number of "
        "inputs) or a similar factor (equalised learning rate), and they were copied without a factor; check the "
        "forward of these layers in both codes: if only the source's code has such a factor, take the alternative "
        "below with the same factor",
    )
    EQUALISED_BIAS = (
        Topic.OTHER,
        "the source's weights are so wide in every layer that its code most likely multiplies weights and biases by a"
        " learning rate multiplier, and this bias was copied without it; check the forward of the source's layers for"
        " a factor on the bias: if it is there, take the alternative below",
    )
    EQUALISED_OUTPUT = (
        Topic.OTHER,
        "the source's weights have the same spread in every layer, as if its code multiplies by a factor (equalised "
        "learning rate), and some code multiplies the whole output of a layer; this bias and the weight beside it "
        "were copied without a factor; check the forward of the source's layers: if the factor is on the output, take "
        "the alternatives with one factor for both, the bias and the weight",
    )
    FACTOR_IN_CODE = (
        Topic.OTHER,
        "the source's code multiplies this tensor, or the input of its layer, by {}, and the model's code by {}, so "
        "the tensor was rescaled; check the model's code: if it applies the missing factor elsewhere (such as to the "
        "output of this layer), take the plain tensor",
    )
    FACTOR_OF_INPUT = (
        Topic.OTHER,
        "the source's code multiplies its input by {}, and the model's code by {}, as if the two expect inputs of "
        "other ranges (0 to 1, and 0 to 255), so the tensor was taken as it is; check which inputs the model will get: "
        "if they are the same numbers that the source's code gets, take the alternative below",
    )
    TABLE_SCALED = (
        Topic.OTHER,
        "the values of this table are as small as in code that multiplies its rows by the square root of their width, "
        "and the model does not multiply them; check in the source's code whether the output of the embedding is "
        "multiplied: if so, take the alternative below",
    )
    MAY_ADD_1 = (
        Topic.OTHER,
        "the source calls this norm weight {} and has no bias beside it, as code that adds 1 to its norm weights "
        "often does, and the model does not add 1; the tensor was copied; check the forward of the norm in the "
        "source's code: take the line with shift(…, 1.0) if it adds 1, and the plain one if not",
    )
    MODULATION_ELSEWHERE = (
        Topic.OTHER,
        "the model's code splits the output of this layer into scale and shift in another order than in its other "
        "layers, so the source's parts were exchanged; check the order in this layer of the source's code: take the "
        "plain tensor if it is the model's order",
    )
    MODULATION = (
        Topic.OTHER,
        "the output of this layer is split into scale and shift, and the file does not show whether the source's code "
        "takes scale first or shift first, so the likelier order was chosen; check the order of chunk or split in "
        "both codes: if it is the same, take the plain tensor, and if not, the one with exchanged parts",
    )
    MODULATION_UNSEEN = (
        Topic.OTHER,
        "the output of this layer is split into scale and shift, and the model could not be traced, so it is not "
        "known whether the model takes scale first or shift first; compare the order of chunk or split in both codes: "
        "if they differ, take the alternative below",
    )
    GATE_HALF = (
        Topic.OTHER,
        "the output of this layer is a value and its gate, and the file does not show which half is the gate in the "
        "source's code, so the likelier order was assumed; check in both codes which half is passed through the "
        "activation: if it is the same, take the plain tensor, and if not, the one with exchanged halves",
    )
    BYPASS = (
        Topic.OTHER,
        "the channels of this layer are cut into equal parts, of which one passes unchanged and the others go through "
        "layers of their own, and the file does not show which part passes in the source's code; check in both codes "
        "which part has no layer: if it is the same, take the plain tensor, and if not, the one with a moved part",
    )
    THIRDS = (
        Topic.OTHER,
        "the model's code cuts the output of this layer into three parts for three uses, and the file does not show in "
        "which order the source's code takes them, so the model's order was assumed; compare the names where chunk or "
        "split stands in both codes: if the order is another one, take the alternative with that order",
    )
    HALVES_BESIDE_THIRDS = (
        Topic.OTHER,
        "this layer takes or gives two halves of one size, in a module with a layer of three parts whose order is "
        "not certain, so the halves may be in another order, too; they were copied as they are; check torch.cat, "
        "chunk or split in both codes: if they have another order in the source's code, take the alternative below",
    )
    BROADCAST = (
        Topic.OTHER,
        "in one of the codes, the sizes of 1 of this table show along which dimension it is added, and in the other "
        "code only the forward pass shows it; check in both codes along which dimension this table is added: if it "
        "is not the same one, take the other table (the alternative below)",
    )
    BACKGROUND = (
        Topic.OTHER,
        "one of these classes is the background, and the rows were copied in the source's order; check in both codes "
        "whether the background is the first or the last class: if they differ, move its row (of the alternatives "
        "below, one moves the last row to the front, and one the first row to the end)",
    )
    COLOURS = (
        Topic.OTHER,
        "the source's code mentions {} and the model's code mentions {}, and a proof on random inputs cannot show "
        "this difference, so the channels may be in the wrong order; check the order of the colour channels in both "
        "codes: if they differ, take the alternative below, with the channels reversed",
    )

    # Other sizes, and what is put where nothing was found
    FROM_ONE_PIXEL = (
        Topic.OTHER,
        "a linear layer in one of the codes is a transposed convolution of one pixel in the other code, so the weight "
        "was transposed and reshaped; check that the linear layer gives all pixels of one channel first, then those of "
        "the next channel: if it does not, reorder its rows in the mapping file",
    )
    PATCHES = (
        Topic.OTHER,
        "patches go through a linear layer in one of the codes and through a convolution in the other code, so the "
        "weight was reshaped; check whether the linear layer takes all pixels of one channel first, as assumed, or "
        "all channels of one pixel (the alternative below)",
    )
    RESHAPED = (
        Topic.OTHER,
        "the source's tensor has as many elements as the model's, but other dimensions, so it was reshaped; check in "
        "both codes that the elements are in the same order: if they are not, reorder them in the mapping file",
    )
    GROUPS = (
        Topic.OTHER,
        "a stack of matrices in the source became one grouped layer, with the outputs of each matrix as rows; check "
        "in the source's code that each matrix is one group, and whether its rows are outputs or inputs: if the "
        "expression does not do the same, correct it in the mapping file",
    )
    TURNED_LAYER = (
        Topic.OTHER,
        "the matrix of a linear layer was transposed to become a transposed convolution, or the other way round; "
        "check in both codes that the two layers compute the same: if they do not, list the key under left: in the "
        "mapping file",
    )
    OTHER_CHANNELS = (
        Topic.OTHER,
        "the kernel's number of input channels is {} in the file and {} in the model, so {}; check that this suits "
        "your inputs: if not, choose another rule with --input-channels ({})",
    )
    FRAMES_REPEATED = (
        Topic.OTHER,
        "the source's kernel takes single pictures, so it was repeated for {} frames and divided by {}; accept it with "
        "--accept-guesses if the model takes videos",
    )
    FRAMES_SUMMED = (
        Topic.OTHER,
        "the source's kernel takes {} frames of a video, so its frames were summed to one; accept it with "
        "--accept-guesses if the model takes single pictures",
    )
    FEWER_WORDS = (
        Topic.OTHER,
        "the model has fewer rows (words), so the first {} of {} rows were kept; check that the words of the model "
        "are the first words of the source, in the same order: if they are not, list the key under left: in the "
        "mapping file, and copy the rows in Python, word by word",
    )
    MORE_WORDS = (
        Topic.OTHER,
        "the model has {} more rows (words) than the source, and they were filled with the mean of the source's {} "
        "rows; check that the vocabulary of the source is the beginning of the model's: if it is not, place the rows "
        "by their words yourself",
    )
    GRID_RESIZED = (
        Topic.OTHER,
        "the position table was resized from {} to {} patches (bicubic, {} kept at its start); accept it with "
        "--accept-guesses if the model takes pictures of another size than the source",
    )
    PADDING_LEFT_OUT = (
        Topic.OTHER,
        "the model has fewer positions, so the first {} of {} were dropped as padding; check that the source's code "
        "adds this offset to its positions: if not, take the alternative below, which drops the last ones",
    )
    FEWER_POSITIONS = (
        Topic.OTHER,
        "the model has fewer positions, so the first {} of {} were kept; check that both codes count positions from "
        "the front, without an offset: if not, take the alternative below, which keeps the last ones",
    )
    PADDING_ADDED = (
        Topic.OTHER,
        "the model has {} more positions, and zeros were added in front as padding; check that the model's code adds "
        "this offset to its positions: if not, take the alternative below, which adds them at the end",
    )
    POSITIONS_OF_AXES = (
        Topic.OTHER,
        "the source has a table of frames and a table of places in a frame, and their sums became the positions of the "
        "model, frame after frame; check in the model's code in which order it lists the places of a video: if the "
        "frames of one place come first, take the alternative below",
    )
    POSITIONS_RESIZED = (
        Topic.OTHER,
        "the position table was resized from {} to {} positions (bicubic); check that the model's positions cover the"
        " same range as the source's: if the range is longer, take the alternative below, which adds new positions at"
        " the end",
    )
    PART_OF = (
        Topic.OTHER,
        "the model has several layers where the source has one layer, {}, and its {} were divided in the order in "
        "which the model registers these layers; check in both codes in which order these parts are used: if the one "
        "is the opposite of the other, take the alternative below",
    )
    JOINED_LAYERS = (
        Topic.OTHER,
        "the model has one layer, {}, where the source has several, and their {} were concatenated in the order in "
        "which the file lists these layers; check in both codes in which order these parts are used: if the one is the "
        "opposite of the other, take the alternative below",
    )
    NO_SEGMENTS = (
        Topic.OTHER,
        "the source has no segment table (token types), and this one was filled with zeros, which add nothing; accept"
        " this if the model's inputs have one segment; for inputs with two segments, train this table",
    )
    ONE_FOR_ALL = (
        Topic.OTHER,
        "the source has one layer for all of {} in the model, and each got a copy of it; check that the source's code "
        "uses this layer for all of them: if it does not, list the key under left: in the mapping file",
    )
    ONE_TABLE = (
        Topic.OTHER,
        "the source has one word embedding, and this second one of the model got a copy of it; check that the "
        "source's code uses one word embedding for the encoder and the decoder: if it does not, list the key under "
        "left: in the mapping file",
    )
    TARGET_NETWORK = (
        Topic.OTHER,
        "this is part of a target network, which the source does not have, and it got a copy of what {} got; accept it "
        "if training shall start with equal networks: if not, list the key under left: in the mapping file",
    )
    TIED_IN_MODEL = (
        Topic.OTHER,
        "the model has one tensor for this key and {}, and the source has a tensor for each, so {} was left out; check "
        "whether the source's code uses both: if it does, give the model's layer its own weight (in Hugging Face's "
        "models: tie_word_embeddings=False)",
    )
    TIED_HEAD = (
        Topic.OTHER,
        "the source has no output layer, and its word embedding was used here; check that the source's code ties its "
        "output layer to the word embedding: if it does not, list the key under left: in the mapping file",
    )

    # What a proof leaves open
    COPIES_OF_CODE = (
        Topic.OTHER,
        "the file holds several copies of the weights of the source's model (such as averaged weights), the proof "
        "used this one, and equal outputs cannot show which copy you want; choose one with --at PATH if the copies "
        "are in dicts of their own, or with --hint PREFIX= if their keys have different prefixes",
    )
    FOUND_BY_TRIAL = (
        Topic.OTHER,
        "the proof put this tensor here as a trial, and no output confirmed it; compare its name with the name of "
        "this layer in the source's code: if it is another one, correct the pair with --hint OLD=NEW",
    )
    NOT_FELT = (
        Topic.OTHER,
        "the proof changed the tensor for this key, but the outputs do not depend on this layer, so nothing confirms "
        "the change; compare the two names, and check the source's code: if the change is wrong, undo it in the "
        "mapping file",
    )
    TAKEN_BY_ANOTHER = (
        Topic.OTHER,
        "the proof showed that this tensor of the source belongs to {}, and the outputs do not depend on this layer; "
        "check in the source's code which tensor belongs here, and correct a wrong pair with --hint OLD=NEW",
    )
    NO_OUTPUT_SHOWS_IT = (
        Topic.OTHER,
        "the proof filled this layer with the weights of a layer of the source that takes the same input, but no "
        "equal output confirms that the two are the same layer; compare the names of these two layers: if they name "
        "different layers, correct the pair with --hint OLD=NEW",
    )
    ROWS_NOT_SEEN = (
        Topic.OTHER,
        "the inputs of the proof never used rows {} to {} of this table, so these rows are not confirmed; check that "
        "the part of the expression that fills these rows is right, and correct it in the mapping file if not",
    )

    # What a user said
    CALLED_A_GUESS = (
        Topic.OTHER,
        "the mapping file marks this with guess( ); if it is right, remove guess( ) around it, and if not, write "
        "another expression",
    )

    # Why nothing goes there
    NOTHING = (
        Topic.LEFT,
        "no tensor of the source belongs to this key",
    )
    OTHER_SIZES = (
        Topic.LEFT,
        "in its place the source has {} with sizes {}, and no rule changes them to the model's sizes",
    )
    COMPUTED_OR_READ = (
        Topic.OTHER,
        "the tensor {} of the source may fill this buffer, or the model may compute the buffer itself; nothing was "
        "filled in; check the model's code: if it does not compute the buffer, name that tensor in the mapping file",
    )
    GIVES_SOMETHING_ELSE = (
        Topic.LEFT,
        "{} of the source has these sizes, but the proof showed that no layer of the source's code gives what this "
        "layer gives with it, so the key was left without a source; name the right tensor with --hint OLD=NEW, if the "
        "source has one",
    )
    LEFT_BY_FILE = (
        Topic.LEFT,
        "the mapping file lists this key under left:, so it keeps the model's initial value",
    )
    BEYOND_FIRST = (
        Topic.LEFT,
        "only the first {} tensors of the model are filled (--first), and this one comes after them",
    )
