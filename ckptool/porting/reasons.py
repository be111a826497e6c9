"""The table of sentences: every reason why a rule may ask, in the words of the report.

A sentence says what is uncertain, names it, and says what to check. No rule reads a sentence.
"""

from __future__ import annotations

from enum import Enum

from .topics import Topic


class Reason(Enum):
    """Why a rule asks: the topic, and the sentence of the report, with `{}` for each name."""

    def __init__(self, topic: Topic, says: str) -> None:
        self.topic = topic
        self.says = says

    # Which of several look-alikes
    SEVERAL_FIT = (
        Topic.ORDER,
        "{} tensors of the source fit equally well; check which of them the source's code uses here",
    )
    GUESSED_OF_SEVERAL = (
        Topic.OTHER,
        "{} tensors of the source fit equally well, and this one was chosen because its name is the most similar; "
        "check which of them the source's code uses in this layer",
    )
    ORDERS_DIFFER = (
        Topic.ORDER,
        "only the order of the tensors tells this one from others of its shape, and the model and the file list their "
        "tensors in different orders; compare the two names, and correct a wrong pair with --hint OLD=NEW",
    )
    ORDERS_DIFFER_ELSEWHERE = (
        Topic.ORDER,
        "only the order of the tensors tells this one from others of its shape, and other tensors are in different "
        "orders in the model and in the file; compare the two names, and correct a wrong pair with --hint OLD=NEW",
    )
    ORDERS_DISAGREE = (
        Topic.ORDER,
        "the {} and the {} pair this tensor with different tensors; compare the two names, and correct a wrong pair "
        "with --hint OLD=NEW",
    )
    ORDER_SPEAKS_FOR_ANOTHER = (
        Topic.ORDER,
        "the {} pairs this tensor with another tensor of the source; check which tensor the source's code uses in this "
        "layer",
    )
    ONLY_NUMBERS = (
        Topic.ORDER,
        "only the numbers in the names tell these layers apart; check that both codes count from the same end",
    )
    ONLY_FOLLOWS = (
        Topic.ORDER,
        "this layer was paired only because the layers before it were paired, and the names do not confirm it; check "
        "in both codes that the same layer comes before it",
    )
    LEFT_OUT_OF_A_ROW = (
        Topic.OTHER,
        "one side has more layers in this row, and only the order of the layers shows which ones the other side lacks; "
        "check in both codes which layers are missing",
    )
    NAMES_FOR_SWAP = (
        Topic.OTHER,
        "the names fit better if {} of the source goes here, and the two change places; check which of the two the "
        "source's code uses here",
    )
    COMPANY_FOR_SWAP = (
        Topic.OTHER,
        "the neighbouring layers fit better if {} of the source goes here, and the two change places; check which of "
        "the two the source's code uses here",
    )
    ORDER_FOR_SWAP = (
        Topic.OTHER,
        "the {} fits better if {} of the source goes here, and the two change places; check which of the two the "
        "source's code uses here",
    )
    ORDERS_ABOUT_SWAP = (
        Topic.OTHER,
        "the {} supports this pair, but the {} fits better if {} of the source goes here, and the two change places; "
        "check which of the two the source's code uses here",
    )
    NO_ORDER_KEPT = (
        Topic.OTHER,
        "only the order tells the source of this layer from {}, and the model and the file list other layers in "
        "different orders; check which of the two the source's code uses here",
    )
    RUNS_BESIDE = (
        Topic.OTHER,
        "the source of this layer and {} are parallel branches, and only the order of registration tells them apart; "
        "check in the source's code which branch is which",
    )
    CONVENTION_OF_TWO = (
        Topic.OTHER,
        "the names do not show whether the source of this layer or {} is the gate; check which one the source's code "
        "passes through the activation",
    )
    AGAINST_NUMBERS = (
        Topic.OTHER,
        "by order or number, {} of the source would go here, and the two would change places, but names and "
        "neighbouring layers support this pair; check which of the two the source's code uses here",
    )
    IN_ANOTHER_MODULE = (
        Topic.OTHER,
        "the neighbouring layers come from the module {} of the source, but this layer does not; check in the source's "
        "code which module it belongs to",
    )
    WANTED_ELSEWHERE = (
        Topic.OTHER,
        "the same tensor of the source also fits {}, which has no source; check which of the two it belongs to",
    )
    OUT_OF_ORDER = (
        Topic.OTHER,
        "the order of the neighbouring layers supports {}, which has no partner, better than this pair; check which of "
        "the two the source's code uses here",
    )
    FROM_ANOTHER_BLOCK = (
        Topic.OTHER,
        "the other layers of {} in the model do not come from {} of the source, but this layer does; check in the "
        "source's code which block it belongs to",
    )
    BLOCKS_CHANGE_PLACES = (
        Topic.OTHER,
        "{} and {} of the source are in the opposite order in the model, and would also fit in the same order; check "
        "the order in which the source's code calls these blocks",
    )
    ANOTHER_IN_OTHER_BLOCKS = (
        Topic.OTHER,
        "in the other blocks this layer comes from {} of the source, but here from {}; check in the source's code "
        "whether this block differs from the others",
    )
    FROM_ANOTHER_PART = (
        Topic.OTHER,
        "the neighbouring layers come from {} of the source, but this layer comes from {}; check in the source's code "
        "that it is the same layer",
    )
    WITHOUT_NAMES = (
        Topic.OTHER,
        "the file has no names, and only the order of its tensors tells the tensor for this key from the tensor for "
        "{}; check the order in which the source's code lists its parameters",
    )

    # Which of equal parts of the model
    PARTS_IN_ANOTHER_ORDER = (
        Topic.PARTS,
        "the model runs equal blocks in one order and registers or numbers them in another; check in the source's code "
        "which block runs first",
    )
    FROM_THE_OTHER_END = (
        Topic.COUNT,
        "another pair of layers shows that the model and the source count equal blocks from opposite ends; check in "
        "the source's code which block comes first",
    )
    AGAINST_LEVELS = (
        Topic.COUNT,
        "the model numbers equal blocks in the order in which they run, and the source may number them by resolution; "
        "check in the source's code which block comes first",
    )

    ONLY_THE_BLOCK = (
        Topic.OTHER,
        "only the block that holds this layer tells its source from {}, and the source lists the two in another order; "
        "check in both codes which of the two belongs to this block",
    )

    # Whether it is the same thing at all
    ONLY_ITS_SHAPE = (
        Topic.OTHER,
        "only the shapes match, not the names; check in both codes that the two tensors belong to the same layer",
    )
    ONLY_ITS_PLACE = (
        Topic.OTHER,
        "only the shape and the place next to a resized layer match, not the names; check in both codes that the two "
        "tensors belong to the same layer",
    )
    ANOTHER_NAME = (
        Topic.OTHER,
        "the other layers have the same names on both sides, but this one does not; check that it is not a new layer "
        "of the model",
    )
    OTHER_WORDS = (
        Topic.OTHER,
        "the names contradict each other: the model's says {}, the source's says {}; check in both codes that the two "
        "tensors belong to the same layer",
    )
    AUXILIARY = (
        Topic.OTHER,
        "one of the two names marks a layer that is used only in training, and the other does not; check in both codes "
        "that the two tensors belong to the same layer",
    )
    PARTS_UNNAMED = (
        Topic.OTHER,
        "one side does not name its queries, keys and values; check their order in the code of that side",
    )
    UNUSUAL_ATTENTION = (
        Topic.OTHER,
        "by its name this layer is the {} of an attention (q, k, v or o), but the other side uses its layers in "
        "another order than queries, keys, values, output; check the order in the source's code",
    )
    LEFT_BESIDE = (
        Topic.OTHER,
        "the source has {} in the same layer, and nothing in the model takes it; check in the source's code that the "
        "layer works without it",
    )
    SEVERAL_COPIES = (
        Topic.OTHER,
        "the file holds several copies of this model, and this copy is a guess; choose one with --at PATH, or by its "
        "prefix with --hint PREFIX=",
    )
    SEVERAL_SETS = Topic.OTHER, "the file holds several state dicts that fit: {}; choose one with --at PATH"

    # How a tensor is laid out
    INPUTS_FIRST = (
        Topic.TURNED,
        "this matrix is square, and the file does not show whether its rows are outputs (as in torch.nn.Linear) or "
        "inputs; check whether the source's code transposes it",
    )
    INPUTS_FIRST_OF_SEVERAL = (
        Topic.TURNED,
        "these matrices are square, and the file does not show whether their rows are outputs (as in torch.nn.Linear) "
        "or inputs; check whether the source's code transposes them",
    )
    SQUARE_SCORES = (
        Topic.TURNED,
        "this matrix is square and used element by element, and the file does not show whether its rows or its columns "
        "come first; check in both codes whether an entry [i, j] is for i to j or for j to i",
    )
    TURNED_KERNEL = (
        Topic.TURNED,
        "the source has a transposed convolution here, as {} shows, and the model has a convolution, so inputs and "
        "outputs were swapped and the kernel was flipped; check in both codes that the two layers have stride 1",
    )
    KERNEL_BY_NAME = (
        Topic.TURNED,
        "the source's name suggests a transposed convolution, and the model has a convolution; check the kind of the "
        "layer in the source's code, and swap inputs and outputs and flip the kernel if it is transposed",
    )
    HIDDEN_FIRST = (
        Topic.OTHER,
        "this matrix multiplies the input and the hidden state, concatenated, and the file does not show which of them "
        "comes first; check the order of torch.cat in the source's code",
    )
    GATE_ORDER = (
        Topic.OTHER,
        "the file does not show the order of the gates in this matrix of an LSTM or GRU; check the order in the "
        "source's code",
    )
    RESET_BEFORE = (
        Topic.OTHER,
        "the source's GRU has one bias for each gate and the model's GRU has two, so the source's code may apply the "
        "reset gate before the recurrent matrix (Keras: reset_after=False), where torch.nn.GRU applies it after; check "
        "where the source's code uses the reset gate",
    )
    BY_HEADS = (
        Topic.LAYOUT,
        "the file does not show whether this projection stores all queries, then all keys, then all values, or the "
        "three of each head together; check how the source's code splits its output",
    )
    JOINED_BY_HEADS = (
        Topic.OTHER,
        "the names do not show whether this projection stores all queries, then all keys, then all values, or the "
        "three of each head together; check how the source's code splits its output",
    )
    ROWS_TAKE_TURNS = (
        Topic.LAYOUT,
        "the file does not show whether this projection stores all rows of the gate before all rows of the up "
        "projection, or the two in turns; check how the source's code splits its output",
    )
    WHICH_HALF = (
        Topic.LAYOUT,
        "the file does not show which half of this projection is the gate; check which half the source's code passes "
        "through the activation",
    )
    PARTS_NAMED_OTHERWISE = (
        Topic.LAYOUT,
        "the name of this projection lists its parts in the order {}, and the model lists them in the order {}; check "
        "how the source's code splits its output",
    )
    ORDER_OF_PARTS = (
        Topic.OTHER,
        "several tensors of one side are one tensor on the other side, and the file does not show their order in it; "
        "check the order where the source's code joins or splits them",
    )
    PARTS_TAKE_TURNS = (
        Topic.OTHER,
        "several tensors of one side are one tensor on the other side, and the file does not show whether their rows "
        "are stored one tensor after the other or in turns; check where the source's code joins or splits them",
    )
    NORMS_AS_ONE = (
        Topic.OTHER,
        "one side has several norms where the other has one norm over all channels; check that the source's code "
        "normalises each part on its own",
    )
    STATED_BY_NAME = (
        Topic.TURNED,
        "the order of this kernel's dimensions was taken from its name, and its sizes fit another order, too; check in "
        "the source's code which kind of layer it belongs to",
    )
    SEVERAL_OPERATORS = (
        Topic.OTHER,
        "the ONNX graph has several operators of this kind and size, and their tensors were grouped in the order of "
        "the file; check in the graph which tensors belong to one operator",
    )
    LAYERS_IN_SEVERAL = (
        Topic.OTHER,
        "the layers of one list are stored in several tensors of the file ({}); check which of these the source's code "
        "uses for the first layer",
    )
    SHARED_HEADS = (
        Topic.OTHER,
        "the source has {} heads of keys and values, and each is repeated for {} adjacent heads of queries; check that "
        "the source's code shares them between adjacent heads",
    )
    EXPORTED_NUMBERS = (
        Topic.OTHER,
        "the ONNX export numbers its matrices in the order of use, and several have this shape; check in the graph "
        "which matrix is used with which bias",
    )
    SHARES_OF_RANKS = (
        Topic.OTHER,
        "this tensor holds several projections, and each rank's file holds a share of it; check whether the source's "
        "code joins the shares of each projection or of the whole tensor",
    )
    EITHER_DIMENSION = (
        Topic.OTHER,
        "the shares of the ranks were joined along one dimension, and would also fit if joined along dimension {}; "
        "check along which dimension the source's code splits this tensor",
    )

    # What is computed from what is stored
    GAIN = (
        Topic.OTHER,
        "{} was taken as the gain of a weight norm on this matrix, because of its name; check that the source's code "
        "normalises the matrix",
    )
    PRUNED = (
        Topic.OTHER,
        "the zeros of the source's weight were taken as pruned elements; check that no weight is zero for another "
        "reason",
    )
    PARAMETRIZED_HERE = (
        Topic.OTHER,
        "the model computes its {} from this tensor by a parametrization (torch.nn.utils.parametrize); check that the "
        "source stores the tensor before this computation",
    )
    PARAMETRIZED_THERE = (
        Topic.OTHER,
        "the source's code computed its {} from this tensor by a parametrization that ckptool does not know; check "
        "what this computation does",
    )
    SEVERAL_ADAPTERS = (
        Topic.OTHER,
        "the file has {} adapters for this weight ({}), and none was merged into it; merge one of them into the "
        "weights first",
    )
    UNKNOWN_ADAPTER = (
        Topic.OTHER,
        "the file has an adapter for this weight with the unknown part {}, and it was not merged; merge it with the "
        "library that made it",
    )
    UNFIT_ADAPTER = (
        Topic.OTHER,
        "the sizes of the adapter {} do not fit this weight, and it was not merged; check which weight the adapter's "
        "code changes",
    )
    ADAPTER_SCALE = (
        Topic.OTHER,
        "the file does not hold the scale of its low-rank adapters, and 1 was used; compare with alpha / rank in the "
        "adapter's configuration",
    )
    ADAPTER_MAGNITUDES = (
        Topic.OTHER,
        "the file does not show whether the adapter's magnitudes scale the rows or the columns of the weight; check "
        "the adapter's code",
    )
    FOLDED_NORM = (
        Topic.OTHER,
        "the source has a batch norm after this layer, and the model has none, so the batch norm was folded into this "
        "layer with eps {}; if the source's code has another eps, change the last number of fold_weight and "
        "fold_bias in the file of --save-mapping",
    )
    LEFT_OUT_BESIDE = (
        Topic.OTHER,
        "the source's code also passes the input of this layer through {}, and nothing in the model takes that; check "
        "in the source's code whether the two outputs are added, and use the sum of their weights if so",
    )
    UNREAD_NORM = (
        Topic.OTHER,
        "the source has the batch norm {} after this layer, and nothing in the model takes it; check what the model "
        "does in its place",
    )

    # Conventions of code
    HALF_ARRANGED = (
        Topic.OTHER,
        "the file does not show which half of this projection is the gate; check which half the source's code passes "
        "through the activation",
    )
    ROWS_ARRANGED = (
        Topic.OTHER,
        "the file does not show whether this projection stores all rows of the gate before all rows of the up "
        "projection, or the two in turns; check how the source's code splits its output",
    )
    ROTARY = (
        Topic.OTHER,
        "the model rotates queries and keys (rotary embedding), and the file does not show whether the source's code "
        "rotates element i with element i + half of the head, or with element i + 1; check rotate_half or a similar "
        "function in the source's code",
    )
    FLATTENED = (
        Topic.OTHER,
        "the model flattens feature maps in the order {}, and the source's code most likely in the order {}; check the "
        "order of the dimensions before flatten or view in the source's code",
    )
    BRANCHES_JOINED = (
        Topic.OTHER,
        "this layer takes the output of a torch.cat, and the order of the source's layers suggests that its code "
        "concatenates the branches in another order; check torch.cat in the source's code",
    )
    BRANCHES_GUESSED = (
        Topic.OTHER,
        "this layer takes the output of a torch.cat, and some of the concatenated branches are guesses; check those "
        "guesses first",
    )
    NORMS_AROUND_0 = (
        Topic.OTHER,
        "the source's norm weights lie around 0, as if the source's code adds 1 to them, and the model's code does not "
        "add 1; check the forward of the norm in the source's code",
    )
    NORMS_AROUND_1 = (
        Topic.OTHER,
        "the model's code adds 1 to its norm weights, and the source's norm weights lie around 1, as if its code does "
        "not add 1; check the forward of the norm in the source's code",
    )
    EQUALISED = (
        Topic.OTHER,
        "the source's weights have the same spread in every layer, as if the source's code multiplies each by 1 / "
        "sqrt(its number of inputs); check the forward of the layers in the source's code for such a factor (equalised "
        "learning rate)",
    )
    EQUALISED_BIAS = (
        Topic.OTHER,
        "the source's weights are so wide in every layer that its code most likely multiplies weights and biases by a "
        "learning rate multiplier; check the forward of the layers in the source's code for a factor on the bias",
    )
    FACTOR_IN_CODE = (
        Topic.OTHER,
        "the source's code multiplies this tensor by {} before it uses it, and the model's code by {}; check that the "
        "other code does not have this factor at another place in this layer",
    )
    MAY_ADD_1 = (
        Topic.OTHER,
        "the source calls this norm weight {} and has no bias beside it, as code that adds 1 to its norm weights often "
        "does, and the model does not add 1; check the forward of the norm in the source's code",
    )
    MODULATION_ELSEWHERE = (
        Topic.OTHER,
        "the model's code splits the output of this layer into scale and shift in another order than in its other "
        "layers; check the order in this layer of the source's code",
    )
    MODULATION = (
        Topic.OTHER,
        "the file does not show whether the output of this layer is split into scale and shift or into shift and "
        "scale; check the order of chunk or split in the source's code",
    )
    MODULATION_UNSEEN = (
        Topic.OTHER,
        "the output of this layer is split into scale and shift, and the model could not be traced, so the order is "
        "not known; compare the order of chunk or split in both codes",
    )
    GATE_HALF = (
        Topic.OTHER,
        "the file does not show which half of this layer is the gate; check which half the source's code passes "
        "through the activation",
    )
    BACKGROUND = (
        Topic.OTHER,
        "one of these classes is the background, and the file does not show which; check whether the source's code "
        "counts it first or last",
    )
    COLOURS = (
        Topic.OTHER,
        "the source's code mentions {} and the model's code mentions {}, and a proof on random inputs cannot show this "
        "difference; check the order of the colour channels in both codes",
    )

    # Other sizes, and what is put where nothing was found
    PATCHES = (
        Topic.OTHER,
        "a linear layer over patches becomes a convolution, or a convolution becomes a linear layer; check the order "
        "of channels, rows and columns in the source's patches",
    )
    GROUPS = (
        Topic.OTHER,
        "the blocks of a grouped layer are put together as one matrix; check how the source's code arranges the groups",
    )
    TURNED_LAYER = (
        Topic.OTHER,
        "a linear layer is transposed to become a transposed convolution, or the other way round; check in both codes "
        "that the two layers compute the same",
    )
    OTHER_CHANNELS = (
        Topic.OTHER,
        "input channels: {} in the file, {} in the model; {}; check that this suits your inputs; --input-channels "
        "chooses another rule ({})",
    )
    FRAMES_REPEATED = (
        Topic.OTHER,
        "the kernel for pictures is repeated for {} frames and divided by {}; accept this if the model takes videos",
    )
    FRAMES_SUMMED = (
        Topic.OTHER,
        "the kernels of {} frames are summed to one kernel for pictures; accept this if the model takes single "
        "pictures",
    )
    FEWER_WORDS = (
        Topic.OTHER,
        "the first {} of {} rows (words) are kept; check that the vocabulary of the model is the beginning of the "
        "source's",
    )
    MORE_WORDS = (
        Topic.OTHER,
        "the model has {} more rows (words) than the source; they are filled with the mean of the source's {} rows; "
        "check that the vocabulary of the source is the beginning of the model's",
    )
    GRID_RESIZED = (
        Topic.OTHER,
        "the position table is resized from {} to {} (bicubic, {}); accept this if the model takes pictures of another "
        "size",
    )
    PADDING_LEFT_OUT = (
        Topic.OTHER,
        "the first {} of {} positions are dropped as padding; check that the source's code adds this offset to its "
        "positions",
    )
    FEWER_POSITIONS = (
        Topic.OTHER,
        "the first {} of {} positions are kept; check that both codes count positions from the front, without an "
        "offset",
    )
    PADDING_ADDED = (
        Topic.OTHER,
        "{} positions are added in front as padding; check that the model's code adds this offset to its positions",
    )
    POSITIONS_RESIZED = (
        Topic.OTHER,
        "the position table is resized from {} to {} positions (bicubic); check that the model's positions cover the "
        "same range as the source's, not a longer one",
    )
    PART_OF = (
        Topic.OTHER,
        "several layers of one side are one layer, {}, on the other side, and the file does not show their order in "
        "it; check the order where the source's code joins or splits them",
    )
    NO_SEGMENTS = (
        Topic.OTHER,
        "the source has no segment table, and this one is filled with zeros, which add nothing; accept this if the "
        "model's inputs have one segment",
    )
    ONE_FOR_ALL = (
        Topic.OTHER,
        "the source has one layer for all of {}, and each gets a copy of it; check that the source's code uses this "
        "layer for all of them",
    )
    ONE_TABLE = (
        Topic.OTHER,
        "the source has one table of words, which fills this table, too; check that the source's code uses one table "
        "for the encoder and the decoder",
    )
    TIED_HEAD = (
        Topic.OTHER,
        "the source has no output layer, and its word embedding is used here; check that the source's code ties the "
        "two",
    )

    # What a proof leaves open
    COPIES_OF_CODE = (
        Topic.OTHER,
        "the file holds several copies of the source's model, and no output shows which of them is meant; choose one "
        "with --at PATH",
    )
    FOUND_BY_TRIAL = (
        Topic.OTHER,
        "the proof tried this tensor here, and no output confirmed it; compare its name with the name in the source's "
        "code",
    )
    NOT_FELT = (
        Topic.OTHER,
        "the outputs do not depend on this tensor, so the proof does not confirm it; compare its name with the name in "
        "the source's code",
    )
    TAKEN_BY_ANOTHER = (
        Topic.OTHER,
        "the proof showed that this tensor of the source belongs to {}, and the outputs do not depend on this layer; "
        "compare its name with the names in the source's code",
    )
    NO_OUTPUT_SHOWS_IT = (
        Topic.OTHER,
        "this layer takes the same input as the layer of the source, but no output of the proof depends on it; compare "
        "the names of the two layers",
    )
    ROWS_NOT_SEEN = (
        Topic.OTHER,
        "the inputs of the proof never used the rows {} to {}, so they are not confirmed; check in the mapping where "
        "they come from",
    )

    # What a user said
    CALLED_A_GUESS = Topic.OTHER, "the mapping file marks this as a guess; if it is right, remove guess( ) around it"

    # Why nothing goes there
    NOTHING = Topic.OTHER, "nothing in the source goes here"
    OTHER_SIZES = Topic.OTHER, "in its place the source has {} {}"
    COMPUTED_OR_READ = (
        Topic.OTHER,
        "the tensor {} of the source may fill this buffer, or the model may compute the buffer itself; check the "
        "model's code",
    )
    LEFT_BY_FILE = Topic.OTHER, "the mapping file says that this keeps the model's initial value"
    BEYOND_FIRST = Topic.OTHER, "only the first {} tensors are filled, and this is not one of them"
