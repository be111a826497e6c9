"""What is not certain about a tensor: a question, with everything else that the tensor may be as options.

A rule that cannot be sure asks. A question has a reason, which is a row of the table below, and options: units while
modules are matched, expressions once it is known how a tensor is made. Questions are only ever added, and answered by
what is learned later; none is taken back. An entry with an open question is a guess. The report words questions, the
mapping file lists their options, and a proof tries these before anything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Generic, TypeVar

T = TypeVar("T")
S = TypeVar("S")

#: So many options of one question are kept.
MOST_OPTIONS = 8


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
    SEVERAL_FIT = Topic.ORDER, "{} tensors of the source fit as well"
    GUESSED_OF_SEVERAL = Topic.OTHER, "{} tensors of the source fit as well"
    ORDERS_DIFFER = Topic.ORDER, "the two sides are stored and used in different orders"
    ORDERS_DIFFER_ELSEWHERE = Topic.ORDER, "elsewhere the two sides are stored and used in different orders"
    ORDERS_DISAGREE = Topic.ORDER, "{} and {} do not agree"
    ORDER_SPEAKS_FOR_ANOTHER = Topic.ORDER, "the {} speaks for another"
    ONLY_NUMBERS = Topic.ORDER, "nothing but numbers tells them apart"
    ONLY_FOLLOWS = Topic.ORDER, "it only follows the one before it"
    LEFT_OUT_OF_A_ROW = (
        Topic.OTHER,
        "one side has more of these in a row, and nothing but their order tells which of them are left out",
    )
    NAMES_FOR_SWAP = Topic.OTHER, "the names speak for the swap with {}"
    COMPANY_FOR_SWAP = Topic.OTHER, "what stands beside it speaks for the swap with {}"
    ORDER_FOR_SWAP = Topic.OTHER, "the {} speaks for the swap with {}"
    ORDERS_ABOUT_SWAP = Topic.OTHER, "the {} and the {} do not agree about it and {}"
    NO_ORDER_KEPT = Topic.OTHER, "nothing but an order that is not kept elsewhere tells it from {}"
    RUNS_BESIDE = (
        Topic.OTHER,
        "it runs beside {}, and nothing but the order in which they are registered tells which is which",
    )
    CONVENTION_OF_TWO = Topic.OTHER, "which of the two is which is a convention of the code: {}"
    AGAINST_NUMBERS = Topic.OTHER, "all but the numbers spoke for the swap with {}"
    IN_ANOTHER_BLOCK = Topic.OTHER, "what is around it comes from where {} is"
    IN_ANOTHER_MODULE = Topic.OTHER, "all else beside it comes from {} of the source"
    WANTED_ELSEWHERE = Topic.OTHER, "it fits {} as well, which is left without a source"
    OUT_OF_ORDER = (
        Topic.OTHER,
        "it stands elsewhere than what is around it, where {}, which is left over, would not",
    )
    FROM_ANOTHER_BLOCK = Topic.OTHER, "the rest of {} in the model does not come from {}, which this is taken from"
    BLOCKS_CHANGE_PLACES = (
        Topic.OTHER,
        "{} and {} of the source change places here, and each would fit the other's place as well",
    )
    ANOTHER_IN_OTHER_BLOCKS = Topic.OTHER, "in the other blocks it is {} of the source, and here {}"
    FROM_ANOTHER_PART = Topic.OTHER, "what is beside it comes from {} of the source, and this from {}"
    WITHOUT_NAMES = (
        Topic.OTHER,
        "the file has no names, and nothing but its order tells this from what is used for {}",
    )

    # Which of equal parts of the model
    PARTS_IN_ANOTHER_ORDER = (
        Topic.PARTS,
        "equal parts of the model come in another order than they are registered or numbered",
    )
    FROM_THE_OTHER_END = (
        Topic.COUNT,
        "equal parts of the model are counted from the other end, as far as one of them shows",
    )
    AGAINST_LEVELS = (
        Topic.COUNT,
        "equal parts are counted as they are used, and the source may count them by the levels that they take",
    )

    # Whether it is the same thing at all
    ONLY_ITS_SHAPE = Topic.OTHER, "nothing but its shape speaks for it"
    ONLY_ITS_PLACE = Topic.OTHER, "nothing but its sizes and its place beside such a layer speak for it"
    ANOTHER_NAME = Topic.OTHER, "all else has the same name on both sides, and this has another"
    OTHER_WORDS = Topic.OTHER, "the names speak of different things: {} and {}"
    AUXILIARY = Topic.OTHER, "one of the two is called an auxiliary part, and the other is not"
    PARTS_UNNAMED = Topic.OTHER, "which of these are queries, keys and values is in no name of one side"
    UNUSUAL_ATTENTION = Topic.OTHER, "{} is not where queries, keys and values are computed as a rule"
    LEFT_BESIDE = Topic.OTHER, "{} of the source belongs to the same layer, and nothing reads it"
    SEVERAL_COPIES = Topic.OTHER, "the file holds several copies of this model"
    SEVERAL_SETS = Topic.OTHER, "the file holds several that fit: {} (--at chooses)"

    # How a tensor is laid out
    INPUTS_FIRST = Topic.TURNED, "whether this matrix stands with its inputs or its outputs first is in the code only"
    INPUTS_FIRST_OF_SEVERAL = (
        Topic.TURNED,
        "whether these matrices stand with their inputs or their outputs first is in the code only",
    )
    HIDDEN_FIRST = Topic.OTHER, "whether this matrix takes the input or the hidden state first is in the code only"
    GATE_ORDER = Topic.OTHER, "in which order the gates stand in this matrix is in the code only"
    BY_HEADS = (
        Topic.LAYOUT,
        "the name does not say whether the parts of this projection alternate by attention head",
    )
    JOINED_BY_HEADS = (
        Topic.OTHER,
        "the name does not say whether the parts of this projection alternate by attention head",
    )
    ROWS_TAKE_TURNS = (
        Topic.LAYOUT,
        "whether the rows of gate and up stand one after the other or take turns is in the code only",
    )
    WHICH_HALF = Topic.LAYOUT, "which half of this projection is the gate is in the code only"
    PARTS_NAMED_OTHERWISE = (
        Topic.LAYOUT,
        "the name says {}, and the model holds them as {}: in which order they stand is in the code only",
    )
    ORDER_OF_PARTS = Topic.OTHER, "in which order the parts stand in one tensor is in the code only"
    PARTS_TAKE_TURNS = Topic.OTHER, "whether the parts stand one after the other or take turns is in the code only"
    NORMS_AS_ONE = (
        Topic.OTHER,
        "whether several norms are the same as one over all their channels is in the code only",
    )
    LAYERS_IN_SEVERAL = (
        Topic.OTHER,
        "the layers of a list stand in {}: which of these comes first is in the code only",
    )
    SHARED_HEADS = (
        Topic.OTHER,
        "the source has {} heads of keys and values; each is put in the place of {} that follow each other",
    )
    EXPORTED_NUMBERS = (
        Topic.OTHER,
        "exports to ONNX number matrices as they are used: which belongs to which bias is in the code only",
    )
    SHARES_OF_RANKS = (
        Topic.OTHER,
        "each rank holds its share of several projections; in which order they are joined is in the code only",
    )
    EITHER_DIMENSION = Topic.OTHER, "joined along dimension {}, the ranks' shares fit the model as well"

    # What is computed from what is stored
    GAIN = Topic.OTHER, "by their names, {} is the gain of weight norm on this matrix: what it is, is in the code only"
    PRUNED = Topic.OTHER, "which elements count as pruned is read from the zeros of the source"
    PARAMETRIZED_HERE = (
        Topic.OTHER,
        "the model computes its {} from this tensor by a parametrization that only code shows",
    )
    PARAMETRIZED_THERE = (
        Topic.OTHER,
        "the source computed its {} from this tensor by a parametrization that only code shows",
    )
    SEVERAL_ADAPTERS = Topic.OTHER, "the file has {} adapters for this ({}), which are not merged"
    UNKNOWN_ADAPTER = Topic.OTHER, "the file has an adapter for this that is not merged: {}"
    UNFIT_ADAPTER = Topic.OTHER, "the adapter {} does not fit and is not merged"
    ADAPTER_SCALE = Topic.OTHER, "the scale of the low-rank adapters is not in the file"
    ADAPTER_MAGNITUDES = (
        Topic.OTHER,
        "whether the magnitudes of the adapter are those of rows or of columns is in the code only",
    )
    FOLDED_NORM = Topic.OTHER, "the source has a batch norm here and the target has none: folded in, with eps 1e-05"
    UNREAD_NORM = Topic.OTHER, "the source has a batch norm behind it, {}, and nothing reads that"

    # Conventions of code
    HALF_ARRANGED = Topic.OTHER, "which half of this projection is the gate is in the code only"
    ROWS_ARRANGED = (
        Topic.OTHER,
        "whether the rows of gate and up stand one after the other or take turns is in the code only",
    )
    ROTARY = (
        Topic.OTHER,
        "the model turns queries and keys (rotary embedding); whether the source pairs rows in the same way is not in "
        "its names",
    )
    FLATTENED = Topic.OTHER, "the model flattens features as {}; the source most likely does as {}"
    BRANCHES_JOINED = (
        Topic.OTHER,
        "it takes branches side by side that the source holds in another order: in which order its channels stand is "
        "in the code only",
    )
    BRANCHES_GUESSED = Topic.OTHER, "it takes branches side by side of which some are guesses"
    NORMS_AROUND_0 = (
        Topic.OTHER,
        "the source's norm weights lie around 0, as where code adds 1 to them; this model does not",
    )
    NORMS_AROUND_1 = (
        Topic.OTHER,
        "this model adds 1 to its norm weights; those of the source look as if its code may not",
    )
    EQUALISED = (
        Topic.OTHER,
        "the source's weights are as wide as where code multiplies them by 1 / sqrt(inputs)",
    )
    MODULATION_ELSEWHERE = (
        Topic.OTHER,
        "the model takes scale and shift from it in another order than elsewhere; the source may have one order "
        "everywhere",
    )
    MODULATION = Topic.OTHER, "whether scale or shift comes first in it is in the code of the source only"
    MODULATION_UNSEEN = (
        Topic.OTHER,
        "it gives scale and shift; in which order the model takes them could not be seen",
    )
    GATE_HALF = Topic.OTHER, "which half of this layer is the gate is in the code of the source only"
    BACKGROUND = (
        Topic.OTHER,
        "of the classes one is the background: whether code counts it first or last is a convention of the code",
    )
    COLOURS = (
        Topic.OTHER,
        "the code of the source speaks of {}, that of the model of {}; outputs on equal numbers do not tell",
    )

    # Other sizes, and what is put where nothing was found
    PATCHES = (
        Topic.OTHER,
        "a linear layer over patches seen as a convolution; the order of pixels in a patch is in the code only",
    )
    GROUPS = Topic.OTHER, "blocks of a layer by groups, one below the other: how they stand is in the code only"
    TURNED_LAYER = Topic.OTHER, "a linear layer is seen turned, as what a transposed convolution does"
    OTHER_CHANNELS = (
        Topic.OTHER,
        "the file has {} input channels, the model {}: {} (--input-channels takes another rule: {})",
    )
    FRAMES_REPEATED = Topic.OTHER, "the kernel of pictures is repeated for {} frames, divided by {}"
    FRAMES_SUMMED = Topic.OTHER, "the kernels of {} frames are summed to one of pictures"
    FEWER_WORDS = Topic.OTHER, "the first {} of {} words"
    MORE_WORDS = Topic.OTHER, "{} words more than the source has, which get the mean of its {}"
    GRID_RESIZED = Topic.OTHER, "position table resized from {} to {} (bicubic, {})"
    PADDING_LEFT_OUT = Topic.OTHER, "the first {} of {} positions are taken to be for padding, and left out"
    FEWER_POSITIONS = Topic.OTHER, "the first {} of {} positions"
    PADDING_ADDED = (
        Topic.OTHER,
        "{} positions more than the source has, taken to be for padding, in front",
    )
    POSITIONS_RESIZED = Topic.OTHER, "position table resized from {} to {} (bicubic)"
    PART_OF = Topic.OTHER, "which part of {} comes first is in the code only"
    NO_SEGMENTS = Topic.OTHER, "the source has no table of segments; zeros are put here"
    ONE_FOR_ALL = Topic.OTHER, "the source has one of these for {} of the model, which all get it"
    ONE_TABLE = Topic.OTHER, "the source has one table of words, which is put here as well"
    TIED_HEAD = Topic.OTHER, "the source has no such layer; its word embedding is put here"

    # What a proof leaves open
    COPIES_OF_CODE = Topic.OTHER, "the file holds several copies of the source's model"
    FOUND_BY_TRIAL = Topic.OTHER, "found by trial"
    NOT_FELT = Topic.OTHER, "the outputs do not depend on it"
    TAKEN_BY_ANOTHER = Topic.OTHER, "what it is made of is {}, by trial; the outputs do not depend on it"
    NO_OUTPUT_SHOWS_IT = (
        Topic.OTHER,
        "it takes what this layer of the source takes, and no output shows that it is that layer",
    )
    ROWS_NOT_SEEN = Topic.OTHER, "the proof looked at none of its rows {} to {}"

    # What a user said
    CALLED_A_GUESS = Topic.OTHER, "the mapping file calls it a guess"

    # Why nothing goes there
    NOTHING = Topic.OTHER, "nothing in the source goes here"
    OTHER_SIZES = Topic.OTHER, "in its place the source has {} {}"
    COMPUTED_OR_READ = (
        Topic.OTHER,
        "the model may compute this itself, or it may be {} of the source, which is used nowhere",
    )
    LEFT_BY_FILE = Topic.OTHER, "the mapping file leaves it"
    BEYOND_FIRST = Topic.OTHER, "not among the first {}"


@dataclass(frozen=True, slots=True)
class Question(Generic[T]):
    """What a rule is not sure of.

    Attributes:
        reason: the row of the table that says why.
        named: what stands for each `{}` in its sentence.
        options: what else it may be, the likeliest first.
        answer: what settled it; an empty text while it is open.
    """

    reason: Reason
    named: tuple[str, ...] = ()
    options: tuple[T, ...] = ()
    answer: str = ""

    def __str__(self) -> str:
        return self.reason.says.format(*self.named)

    @property
    def is_open(self) -> bool:
        """Whether nothing has settled it."""
        return not self.answer

    @property
    def of_parts(self) -> bool:
        """Whether it is about whole parts of the model, which no exchange of two layers settles."""
        return self.reason.topic in (Topic.PARTS, Topic.COUNT)

    @property
    def asked(self) -> tuple[Reason, tuple[str, ...]]:
        """What makes two questions one, whatever their options are."""
        return self.reason, self.named

    def about(self, *options: T) -> Question[T]:
        """The same question with these options."""
        return replace(self, options=options)

    def translated(self, into: Callable[[T], S | None]) -> Question[S]:
        """The same question with what INTO makes of each option; those of which it makes nothing are left out."""
        made = tuple(new for option in self.options if (new := into(option)) is not None)
        return Question(self.reason, self.named, made, self.answer)


def ask(reason: Reason, *named: str) -> Question[T]:
    """An open question for a REASON, without options."""
    return Question(reason, named)


def still_open(questions: Iterable[Question[T]]) -> list[Question[T]]:
    """Those that nothing has settled."""
    return [question for question in questions if question.is_open]


def joined(questions: Iterable[Question[T]], more: Question[T]) -> list[Question[T]]:
    """QUESTIONS with one MORE; one that is open already gets its options."""
    found = list(questions)
    for place, question in enumerate(found):
        if question.is_open and more.is_open and question.asked == more.asked:
            options = dict.fromkeys((*question.options, *more.options))
            found[place] = replace(question, options=tuple(options)[:MOST_OPTIONS])
            return found
    return [*found, replace(more, options=more.options[:MOST_OPTIONS])]


def answered(questions: Sequence[Question[T]], topic: Topic | None, answer: str) -> list[Question[T]]:
    """QUESTIONS of which the open ones of a TOPIC, or all if None, have this ANSWER."""
    return [
        replace(one, answer=answer) if one.is_open and topic in (None, one.reason.topic) else one for one in questions
    ]


__all__ = ["Question", "Reason", "Topic", "answered", "ask", "joined", "still_open"]
