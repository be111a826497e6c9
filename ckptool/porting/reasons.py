"""The table of sentences: every reason for which a rule may ask, in the words of the report.

A sentence says what is not certain, names what it speaks of, and says what to check. No rule reads one.
"""

from __future__ import annotations

from enum import Enum, auto


class Topic(Enum):
    """What a question is about, so that a later rule can answer it, whichever rule asked."""

    #: Which of several look-alikes it is, by orders alone. What excludes every swap by other means answers it.
    ORDER = auto()
    #: Which of equal parts of the model it is in, by orders. What excludes every swap of single layers answers it.
    PARTS = auto()
    #: From which end equal parts are counted, which no swap of single layers answers.
    COUNT = auto()
    #: How a matrix stands in the code: with its inputs or its outputs first.
    TURNED = auto()
    #: How parts stand inside of a fused projection, which does not matter where it is put together again.
    LAYOUT = auto()
    #: All else, which only the user or a proof answers.
    OTHER = auto()


class Reason(Enum):
    """Why a rule asks: the topic, and the sentence of the report, where `{}` stands for what it speaks of by name."""

    def __init__(self, topic: Topic, says: str) -> None:
        self.topic = topic
        self.says = says

    # Which of several look-alikes
    SEVERAL_FIT = Topic.ORDER, "{} tensors of the source fit equally well; check which one the source's code uses here"
    GUESSED_OF_SEVERAL = (
        Topic.OTHER,
        "{} tensors of the source fit equally well, and this one was taken by its name; check which one the "
        "source's code uses here",
    )
    ORDERS_DIFFER = (
        Topic.ORDER,
        "the model and the file list their tensors in different orders, and only an order tells these apart; "
        "check them by name",
    )
    ORDERS_DIFFER_ELSEWHERE = (
        Topic.ORDER,
        "only an order tells these apart, and elsewhere the model and the file are in different orders; check "
        "them by name",
    )
    ORDERS_DISAGREE = Topic.ORDER, "the {} and the {} pair these differently; check them by name"
    ORDER_SPEAKS_FOR_ANOTHER = Topic.ORDER, "the {} pairs this with another tensor; check which one is meant"
    ONLY_NUMBERS = (
        Topic.ORDER,
        "only the numbers in the names tell these apart; check that both sides count from the same end",
    )
    ONLY_FOLLOWS = (
        Topic.ORDER,
        "this only follows the layer before it, and no name confirms it; check that no layer is missing before it",
    )
    LEFT_OUT_OF_A_ROW = (
        Topic.OTHER,
        "one side has more layers in this row, and only their order tells which ones are left out; check which "
        "layers are missing",
    )
    NAMES_FOR_SWAP = Topic.OTHER, "the names fit better if this is swapped with {}; check which of the two it is"
    COMPANY_FOR_SWAP = (
        Topic.OTHER,
        "the layers beside it fit better if this is swapped with {}; check which of the two it is",
    )
    ORDER_FOR_SWAP = Topic.OTHER, "the {} fits better if this is swapped with {}; check which of the two it is"
    ORDERS_ABOUT_SWAP = (
        Topic.OTHER,
        "the {} and the {} disagree whether this is swapped with {}; check which of the two it is",
    )
    NO_ORDER_KEPT = (
        Topic.OTHER,
        "only an order tells this from {}, and the two sides do not keep one order elsewhere; check which of the "
        "two it is",
    )
    RUNS_BESIDE = (
        Topic.OTHER,
        "this runs in parallel with {}, and only the order of registration tells the two apart; check which "
        "branch is which in the source's code",
    )
    CONVENTION_OF_TWO = (
        Topic.OTHER,
        "the names do not say whether this or {} is the gate; check which one the source's code passes through "
        "the activation",
    )
    AGAINST_NUMBERS = (
        Topic.OTHER,
        "everything except the numbers in the names fits better if this is swapped with {}; check which of the "
        "two it is",
    )
    IN_ANOTHER_BLOCK = (
        Topic.OTHER,
        "the layers around it are filled from the block that holds {}, and this is not; check which block it "
        "comes from",
    )
    IN_ANOTHER_MODULE = (
        Topic.OTHER,
        "the layers beside it are filled from the module {} of the source, and this is not; check which module it"
        " comes from",
    )
    WANTED_ELSEWHERE = (
        Topic.OTHER,
        "the same tensor fits {} as well, which has no source; check which of the two it belongs to",
    )
    OUT_OF_ORDER = (
        Topic.OTHER,
        "this is out of order with the layers around it, and {}, which is left over, is in order; check which of "
        "the two it is",
    )
    FROM_ANOTHER_BLOCK = (
        Topic.OTHER,
        "the rest of {} in the model does not come from {}, and this does; check which block it belongs to",
    )
    BLOCKS_CHANGE_PLACES = (
        Topic.OTHER,
        "{} and {} of the source change places here, and each fits the place of the other; check their order",
    )
    ANOTHER_IN_OTHER_BLOCKS = (
        Topic.OTHER,
        "in the other blocks this comes from {} of the source, and here from {}; check that this block is different",
    )
    FROM_ANOTHER_PART = (
        Topic.OTHER,
        "the layers beside it come from {} of the source, and this comes from {}; check that it is the same layer",
    )
    WITHOUT_NAMES = (
        Topic.OTHER,
        "the file has no names, and only its order tells this from the tensor of {}; check the order in which the"
        " source's code lists them",
    )

    # Which of equal parts of the model
    PARTS_IN_ANOTHER_ORDER = (
        Topic.PARTS,
        "the model uses equal blocks in another order than it registers or numbers them; check which block of the"
        " source is which",
    )
    FROM_THE_OTHER_END = (
        Topic.COUNT,
        "one pair shows that the two sides count equal blocks from opposite ends; check which block comes first "
        "in the source",
    )
    AGAINST_LEVELS = (
        Topic.COUNT,
        "the model numbers equal blocks as it uses them, and the source may number them by resolution; check "
        "which block comes first in the source",
    )

    ONLY_THE_BLOCK = (
        Topic.OTHER,
        "nothing but the block around it tells this from {}, and the two stand in another order in the source; check "
        "which of the two it is",
    )

    # Whether it is the same thing at all
    ONLY_ITS_SHAPE = Topic.OTHER, "only the shape matches; check that both sides mean the same layer"
    ONLY_ITS_PLACE = (
        Topic.OTHER,
        "only the shape and the position beside a resized layer match; check that both sides mean the same layer",
    )
    ANOTHER_NAME = (
        Topic.OTHER,
        "every other layer has the same name on both sides, and this one does not; check that it is not a new layer",
    )
    OTHER_WORDS = (
        Topic.OTHER,
        "the names contradict each other: the model says {}, the source says {}; check that both mean the same layer",
    )
    AUXILIARY = (
        Topic.OTHER,
        "one of the two names marks an auxiliary layer, and the other does not; check that both mean the same layer",
    )
    PARTS_UNNAMED = (
        Topic.OTHER,
        "one side does not name which of these are queries, keys and values; check their order in that code",
    )
    UNUSUAL_ATTENTION = (
        Topic.OTHER,
        "{} is not where an attention usually computes it; check the order of queries, keys and values in the "
        "source's code",
    )
    LEFT_BESIDE = (
        Topic.OTHER,
        "{} belongs to the same layer of the source, and the model does not read it; check that the layer works "
        "without it",
    )
    SEVERAL_COPIES = Topic.OTHER, "the file holds several copies of this model; --at chooses one"
    SEVERAL_SETS = Topic.OTHER, "the file holds several state dicts that fit: {}; --at chooses one"

    # How a tensor is laid out
    INPUTS_FIRST = (
        Topic.TURNED,
        "this matrix is square, and the file does not show whether rows are inputs or outputs; check whether the "
        "source's code transposes it",
    )
    INPUTS_FIRST_OF_SEVERAL = (
        Topic.TURNED,
        "these matrices are square, and the file does not show whether rows are inputs or outputs; check whether "
        "the source's code transposes them",
    )
    HIDDEN_FIRST = (
        Topic.OTHER,
        "this matrix takes the input and the hidden state side by side, and the file does not show which comes "
        "first; check the order in the source's code",
    )
    GATE_ORDER = (
        Topic.OTHER,
        "the file does not show the order of the gates in this matrix; check it in the source's code",
    )
    BY_HEADS = (
        Topic.LAYOUT,
        "the name does not say whether queries, keys and values are stored in blocks or head by head; check how "
        "the source's code splits this projection",
    )
    JOINED_BY_HEADS = (
        Topic.OTHER,
        "the names do not say whether queries, keys and values are stored in blocks or head by head; check how "
        "the source's code splits this projection",
    )
    ROWS_TAKE_TURNS = (
        Topic.LAYOUT,
        "the file does not show whether the rows of gate and up stand in two halves or alternate; check how the "
        "source's code splits this projection",
    )
    WHICH_HALF = (
        Topic.LAYOUT,
        "the file does not show which half of this projection is the gate; check which half the source's code "
        "passes through the activation",
    )
    PARTS_NAMED_OTHERWISE = (
        Topic.LAYOUT,
        "the name of this projection lists its parts as {}, and the model holds them as {}; check the order in "
        "the source's code",
    )
    ORDER_OF_PARTS = (
        Topic.OTHER,
        "the file does not show the order in which these parts stand in one tensor; check where the source's code"
        " joins or splits them",
    )
    PARTS_TAKE_TURNS = (
        Topic.OTHER,
        "the file does not show whether these parts stand one after the other or alternate; check where the "
        "source's code joins or splits them",
    )
    NORMS_AS_ONE = (
        Topic.OTHER,
        "several norms replace one norm over all channels, or the other way round; check that the source's code "
        "normalises each part alone",
    )
    STATED_BY_NAME = (
        Topic.TURNED,
        "only its name says how this kernel is laid out, and its sizes fit in another order as well; check which layer "
        "the source's code has there",
    )
    SEVERAL_OPERATORS = (
        Topic.OTHER,
        "several operators of this kind take tensors of these sizes, and they were put together in the order of the "
        "file; check in the graph which belong to one operator",
    )
    LAYERS_IN_SEVERAL = (
        Topic.OTHER,
        "the layers of one list are stored in {}; check which of these holds the first layer",
    )
    SHARED_HEADS = (
        Topic.OTHER,
        "the source has {} heads of keys and values, and each is repeated for {} adjacent query heads; check that"
        " the source's code groups adjacent heads",
    )
    EXPORTED_NUMBERS = (
        Topic.OTHER,
        "the ONNX export numbers its matrices in the order of use, and several have this shape; check which "
        "matrix belongs to which bias",
    )
    SHARES_OF_RANKS = (
        Topic.OTHER,
        "each rank holds a share of several projections; check in which order the source's code joins the shares",
    )
    EITHER_DIMENSION = (
        Topic.OTHER,
        "the ranks' shares also fit the model if they are joined along dimension {}; check along which dimension "
        "the source splits this tensor",
    )

    # What is computed from what is stored
    GAIN = (
        Topic.OTHER,
        "the name of {} says that it is the gain of a weight norm on this matrix; check that the source's code "
        "normalises the matrix",
    )
    PRUNED = (
        Topic.OTHER,
        "zeros of the source count as pruned elements; check that no weight is zero for another reason",
    )
    PARAMETRIZED_HERE = (
        Topic.OTHER,
        "the model computes its {} from this tensor by a parametrization; check that the source stores the same "
        "quantity",
    )
    PARAMETRIZED_THERE = (
        Topic.OTHER,
        "the source computed its {} from this tensor by a parametrization; check what its code computes",
    )
    SEVERAL_ADAPTERS = (
        Topic.OTHER,
        "the file has {} adapters for this weight ({}), and none is merged; merge one of them first",
    )
    UNKNOWN_ADAPTER = (
        Topic.OTHER,
        "the file has an adapter for this weight with an unknown part, {}, and it is not merged; merge it first",
    )
    UNFIT_ADAPTER = (
        Topic.OTHER,
        "the adapter {} does not have the sizes of this weight and is not merged; check what it adapts",
    )
    ADAPTER_SCALE = (
        Topic.OTHER,
        "the file does not hold the scale of its low-rank adapters, and 1 is used; check alpha divided by rank in"
        " the adapter's configuration",
    )
    ADAPTER_MAGNITUDES = (
        Topic.OTHER,
        "the file does not show whether the adapter's magnitudes belong to rows or to columns; check the "
        "adapter's code",
    )
    FOLDED_NORM = (
        Topic.OTHER,
        "the source has a batch norm here and the model has none; it is folded into this layer with eps {}; "
        "check the eps in the source's code",
    )
    UNREAD_NORM = (
        Topic.OTHER,
        "the source has a batch norm behind this layer, {}, and the model does not read it; check what the model "
        "has in its place",
    )

    # Conventions of code
    HALF_ARRANGED = (
        Topic.OTHER,
        "the file does not show which half of this projection is the gate; check which half the source's code "
        "passes through the activation",
    )
    ROWS_ARRANGED = (
        Topic.OTHER,
        "the file does not show whether the rows of gate and up stand in two halves or alternate; check how the "
        "source's code splits this projection",
    )
    ROTARY = (
        Topic.OTHER,
        "the model rotates queries and keys (rotary embedding), and the file does not show whether the source "
        "pairs halves or neighbours; check rotate_half or its like in the source's code",
    )
    FLATTENED = (
        Topic.OTHER,
        "the model flattens feature maps as {}, and the source most likely as {}; check the layout in the "
        "source's code",
    )
    BRANCHES_JOINED = (
        Topic.OTHER,
        "this layer takes concatenated branches, and the source holds them in another order; check the order of "
        "torch.cat in the source's code",
    )
    BRANCHES_GUESSED = (
        Topic.OTHER,
        "this layer takes concatenated branches, and some of them are guesses; settle those first",
    )
    NORMS_AROUND_0 = (
        Topic.OTHER,
        "the source's norm weights lie around 0, as if its code adds 1 to them, and the model does not; check the"
        " norm in the source's code",
    )
    NORMS_AROUND_1 = (
        Topic.OTHER,
        "the model adds 1 to its norm weights, and those of the source look as if its code does not; check the "
        "norm in the source's code",
    )
    EQUALISED = (
        Topic.OTHER,
        "the source's weights have one spread whatever their inputs, as if its code multiplies them by 1 / "
        "sqrt(inputs); check for equalised learning rates in it",
    )
    MODULATION_ELSEWHERE = (
        Topic.OTHER,
        "the model takes scale and shift from this layer in another order than from the others; check whether the"
        " source's code does so, too",
    )
    MODULATION = (
        Topic.OTHER,
        "the file does not show whether this layer gives scale or shift first; check the order in the source's code",
    )
    MODULATION_UNSEEN = (
        Topic.OTHER,
        "this layer gives scale and shift, and the model could not be traced to see in which order; check the "
        "order in both codes",
    )
    GATE_HALF = (
        Topic.OTHER,
        "the file does not show which half of this layer is the gate; check which half the source's code passes "
        "through the activation",
    )
    BACKGROUND = (
        Topic.OTHER,
        "one of these classes is the background; check whether the source's code counts it first or last",
    )
    COLOURS = (
        Topic.OTHER,
        "the source's code speaks of {} and the model's of {}, which equal outputs on random numbers do not tell "
        "apart; check the order of colours in both",
    )

    # Other sizes, and what is put where nothing was found
    PATCHES = (
        Topic.OTHER,
        "a linear layer over patches becomes a convolution, or the other way round; check in which order the "
        "source's code lists the pixels of a patch",
    )
    GROUPS = (
        Topic.OTHER,
        "the blocks of a layer with groups are stacked into one matrix; check how the source's code stacks them",
    )
    TURNED_LAYER = (
        Topic.OTHER,
        "a linear layer becomes a transposed convolution, and is transposed; check that the source's code "
        "computes the same",
    )
    OTHER_CHANNELS = (
        Topic.OTHER,
        "the file has {} input channels, the model {}: {} (--input-channels takes another rule: {})",
    )
    FRAMES_REPEATED = (
        Topic.OTHER,
        "the kernel for pictures is repeated for {} frames and divided by {}; accept it if the model reads films",
    )
    FRAMES_SUMMED = (
        Topic.OTHER,
        "the kernels of {} frames are summed to one for pictures; accept it if the model reads single pictures",
    )
    FEWER_WORDS = Topic.OTHER, "the first {} of {} words are kept; check that both vocabularies begin alike"
    MORE_WORDS = (
        Topic.OTHER,
        "the model has {} more words than the source, which get the mean of its {}; check that both vocabularies "
        "begin alike",
    )
    GRID_RESIZED = (
        Topic.OTHER,
        "the position table is resized from {} to {} (bicubic, {}); accept it if the model reads larger or "
        "smaller pictures",
    )
    PADDING_LEFT_OUT = (
        Topic.OTHER,
        "the first {} of {} positions are dropped as padding; check that the source's code reserves them",
    )
    FEWER_POSITIONS = (
        Topic.OTHER,
        "the first {} of {} positions are kept; check that both sides count positions from the front",
    )
    PADDING_ADDED = Topic.OTHER, "{} positions are added in front as padding; check that the model reserves them"
    POSITIONS_RESIZED = (
        Topic.OTHER,
        "the position table is resized from {} to {} positions (bicubic); check that the model wants it stretched",
    )
    PART_OF = (
        Topic.OTHER,
        "several layers stand in {} on one side, and the file does not show which comes first; check the order in"
        " the code",
    )
    NO_SEGMENTS = (
        Topic.OTHER,
        "the source has no segment table, and zeros are used, which add nothing; accept it if the model reads one"
        " segment",
    )
    ONE_FOR_ALL = (
        Topic.OTHER,
        "the source has one layer for all of {}, and each gets a copy; check that the source's code shares it",
    )
    ONE_TABLE = (
        Topic.OTHER,
        "the source has one table of words, which fills this table as well; check that encoder and decoder share it",
    )
    TIED_HEAD = (
        Topic.OTHER,
        "the source has no output layer, and its word embedding is used; check that the source's code ties the two",
    )

    # What a proof leaves open
    COPIES_OF_CODE = Topic.OTHER, "the file holds several copies of the source's model; --at chooses one"
    FOUND_BY_TRIAL = Topic.OTHER, "the proof found this by trial, and no output confirmed it; check it by name"
    NOT_FELT = Topic.OTHER, "the outputs do not depend on it, so that the proof says nothing about it; check it by name"
    TAKEN_BY_ANOTHER = (
        Topic.OTHER,
        "the proof uses the same tensor for {}, and the outputs do not depend on this one; check it by name",
    )
    NO_OUTPUT_SHOWS_IT = (
        Topic.OTHER,
        "this layer takes the same input as a layer of the source, and no output confirms that it is that layer; "
        "check it by name",
    )
    ROWS_NOT_SEEN = Topic.OTHER, "the proof read none of the rows {} to {}; check where they come from"

    # What a user said
    CALLED_A_GUESS = Topic.OTHER, "the mapping file calls it a guess; take guess( ) away if it is right"

    # Why nothing goes there
    NOTHING = Topic.OTHER, "nothing in the source goes here"
    OTHER_SIZES = Topic.OTHER, "in its place the source has {} {}"
    COMPUTED_OR_READ = (
        Topic.OTHER,
        "the model may compute this buffer itself, or {} of the source, which nothing reads, may fill it; check "
        "the model's code",
    )
    LEFT_BY_FILE = Topic.OTHER, "the mapping file leaves it as the model has it"
    BEYOND_FIRST = Topic.OTHER, "this is not among the first {}"
