"""Port weights into other model code: matching, the mapping, and its proof (see `ckptool.transfer`).

The words of this package, in the order in which a port meets them. The words of one step alone are at the top of its
package: `forms`, `matching`, `prove`.

    side         the source (a file) or the target (a model in code). In rules for both directions, ONE is the side that
                 is changed or looked at, OTHER the other side; elsewhere they are any two things of one kind. OWN and
                 THEIRS are of the target and of the source, in rules for both directions of ONE and of OTHER.
    signature    the keys and shapes of a side, in order. That of code also has facts from its forward pass.
    expression   operations (`transpose`, `cat`) over keys of the source, which make one tensor of the target
                 (`expression`, `operations`). A copy is an expression without operations.
    form         the common form of both sides, in which they hold tensors of equal sizes (`forms`). A change towards
                 this form is a step.
    piece        one tensor in that form. Its name is the path of its module, and its role there ("weight", "bias").
    hole         the place of a piece of the target, to be filled with an expression (`holes`). In a text: the place of
                 a number or a name.
    unit         a module of the form with all its pieces: matching pairs units of the two sides (`matching`).
    pair         a unit of the target and a unit of the source, its partner. T and S are the two units of a pair.
    cell         units of both sides that nothing tells apart yet. Matching splits cells; a cell with just one unit of
                 each side is a pair.
    look-alikes  units of equal shapes and kinds (`Unit.colour`), which only names, orders and neighbours tell apart.
    list         modules that are numbered: `h.0`, `h.1` …, or `conv1`, `conv2` ….
    block        a member of a list whose name is a number (`h.3`), with all that is in it. The block of a unit is the
                 innermost one around it, that of units outside of all blocks is the rest of the model.
    order        of registration: the order of the keys of a side. Of execution: the order in which the forward pass of
                 its code uses its units. Two pairs keep an order if it has their units in the same order on both sides.
    swap         two pairs of look-alikes with their sources exchanged (`rivals`).
    evidence     what told a unit from its look-alikes: a name, an order, the modules around it.
    question     what a rule is not sure of: a reason, which is a sentence, and options (`questions`). The sentence of
                 an open question is a doubt, and so is the question. A pair or a unit without an open question is
                 certain, and so is a rule that asks none.
    option       what else it may be: another unit, or another expression for the same tensor (also called a rival).
    guess        an entry with a doubt. Nothing is loaded from a guess unless the user accepts it.
    mapping      the result: an entry for each key of the target, mapped, guessed or unmapped (`mapping`).
    proof        both models run on the same inputs: equal outputs settle doubts (`prove`). One run of it is a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingOf
from contextlib import suppress
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal

from ..errors import RuleError, require
from ..garbage import all_kept, only_new_objects
from . import mapping as data
from .mapping import Entry

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint
    from ..disk.files import StrPath
    from ..model_code.signature import Signature
    from .family import Family


class Mapping(data.Mapping):
    """A port from one set of keys to another, made by `ckptool.transfer` or read from a file. It is immutable, and read
    like a dict: key of the model -> its entry.

    Attributes: see `ckptool.porting.mapping.Mapping`.
    """

    @classmethod
    def of(cls, found: data.Mapping) -> Mapping:
        """Return a Mapping of this class, with the methods that show, save and apply it, with the contents of FOUND (a
        mapping from matching or a file).
        """
        return cls(**{field.name: getattr(found, field.name) for field in fields(found)})

    def __str__(self) -> str:
        """Return the report that `ckptool transfer` prints."""
        from .mapping_text import mapping_text

        return mapping_text(self)

    def explain(self, key: str) -> str:
        """Return how one KEY of the model or of the source was matched, as `ckptool transfer --explain` prints it.

        The text about a key of the model has its expression and the operations in it, the steps towards the common
        form, the rules that told it from its look-alikes, its questions with their options, and what decided. For a key
        without a source, it has no questions, but the tensors of the source that have its sizes (at most five are
        named). The text about a key of the source has the keys of the model that read it, and those for which it is an
        option; if there are neither, the keys of the model that have its sizes (at most five of each). If both sides
        have the key, the text about the model's key comes first.
        Raises:
            NotFound: neither side has the key.
        """
        from .explaining import explained

        return explained(self, key)

    def save(self, path: StrPath, *, overwrite: bool = False) -> None:
        """Write the mapping to the file PATH (YAML), which can be read, edited and used again (see
        `ckptool.read_mapping`). A file with the same text is left as it is. A mapping file with another text is
        replaced only if OVERWRITE is true; a file that is no mapping file, and not empty, is never replaced.

        Raises:
            OutputExists, Unwritable: the file may not be written there.
            RuleError: the file could not be read again, as it is too large or has a name that is not text.
        """
        from .mapping_file import save

        save(self, path, overwrite=overwrite)

    def emit(self, path: StrPath, *, overwrite: bool = False) -> None:
        """Write the mapping to the file PATH as a Python module that needs only torch. A file with the same text is
        left as it is. Another module that `emit` wrote is replaced only if OVERWRITE is true; any other file that is
        not empty is never replaced.

        The function `convert(state_dict)` of the module makes the model's state dict from any checkpoint with these
        names, as `apply` does. It raises KeyError if the checkpoint lacks a tensor that the mapping reads, and
        ValueError if the checkpoint has a tensor that the mapping does not know, or other sizes of a tensor that is
        taken apart or rearranged, as far as the mapping knows its sizes.

        Raises:
            OutputExists, Unwritable: the file may not be written there.
        """
        from .emitting import emit

        emit(self, path, overwrite=overwrite)

    def apply(self, source: Any) -> Checkpoint:
        """Return the model's state dict, made of SOURCE (a path, a Checkpoint or a dict of torch tensors), as a
        Checkpoint for `ckptool.save`.

        Tensors are read when they are written. Guesses are applied, too. A counter (`num_batches_tracked`) without an
        expression is 0; every other key without an expression is left out. A mapping that was read from a file, and not
        yet given to `transfer` or `apply_mapping`, knows no sizes, so that the sizes of its results are not compared
        with the model's.
        Raises:
            NotFound: the source does not have a key that the mapping reads.
            RuleError: an operation does not fit the sizes of the source, or gives other sizes than the model's.
        """
        from .applying import apply

        return apply(self, source)


@only_new_objects()
def transfer(
    source: Any,
    model: Any,
    *,
    at: str | None = None,
    hints: Sequence[str] = (),
    input_channels: str | None = None,
    inputs: Any = None,
    source_model: Any = None,
    source_inputs: Any = None,
    mapping: data.Mapping | Family | None = None,
    invert: bool = False,
    numbers: MappingOf[str, int] | None = None,
    by: Literal["evidence", "position"] = "evidence",
    first: int | None = None,
    start: int = 0,
    prove: bool | None = None,
    reference: Any = None,
    patience: float = 300.0,
    progress: Callable[[str], None] | None = None,
) -> Mapping:
    """Find which tensor of SOURCE goes where in MODEL. Nothing is written. A proof loads weights into MODEL and
    SOURCE_MODEL, if these are modules; afterwards they have their own parameters and buffers again.

    Args:
        source: a path, a Checkpoint or a dict of torch tensors.
        model: a torch.nn.Module (also on the meta device, also wrapped), or code as `MODEL.py:Name`.
        at: where the weights are in the file, if there are several.
        hints: OLD=NEW, from a name of the source to what the model calls it; one text is one hint. Hints are used for
            matching only: no key of the file is renamed.
        input_channels: the rule for a first layer with another number of input channels: "repeat" (repeated and
            scaled), "sum", "mean", "zeros" (for new channels) or "first" (the first channels). It answers every open
            question about the number of input channels; these entries are then mapped, unless another question about
            them is open. Without it, the likeliest rule is used, as a guess.
        inputs: example inputs for a forward pass, as texts (`float32[2,3,64,64]`) or tensors; searched for if None.
        source_model: the source's own code, in a form like MODEL. In matching, its order of execution then counts, too.
            With MAPPING, or by position, only PROVE uses it.
        source_inputs: example inputs for the source's code, if it takes others than the model; INPUTS if None. If both
            are None, they are searched for, and if none are found, those that were found for the model are used.
        mapping: use this mapping, read or made before, instead of matching. HINTS, BY, FIRST and START then have no
            effect.
        invert: use MAPPING in the opposite direction. Without MAPPING it has no effect.
        numbers: numbers that a mapping for a family of models needs and the weights do not show ({"heads": 32}).
            Without such a mapping they have no effect.
        by: "position" matches tensors by their order only; HINTS then have no effect.
        first: with `by="position"`: fill only so many tensors.
        start: with `by="position"`: skip the first so many tensors of the source.
        prove: run both models on the same inputs, and settle doubts by comparing outputs. Needs SOURCE_MODEL; without
            effect if REFERENCE is given. It may also fill keys for which matching found no source. None: do so if
            SOURCE_MODEL is given, after matching, and both sides have at most 50 million values. If outputs differ
            then, the mapping is as matching made it, with a note that says where; if outputs were not compared, a note
            says why.
        reference: a file of inputs and outputs saved where the source's code runs (`input`, `input.NAME` …, `output`
            …), to compare with instead of running that code, also without PROVE.
        patience: time limit of a proof, in seconds.
        progress: called with a line of text whenever a proof begins another step.
    Returns:
        The mapping: an entry for each key of the model's state dict, each mapped, guessed or unmapped. Printed, it is
            the report of `ckptool transfer`. After matching, it has a note if the forward pass of the model could not
            be followed and some key is made of anything but the source's tensor of the same name.
    Raises:
        CheckpointError: the source cannot be read, the model cannot be built, an argument does not fit the two, the
            source has complex weights for real tensors of the model, or (after matching, and a proof if there is one)
            at most a tenth of the model's keys that need a source have one.
    """
    require("ckptool.transfer", "torch", extra="torch")
    _require_choices(input_channels, by, first, start)
    from ..model_code.building import signature_for
    from ..model_code.inputs import read_inputs
    from .applying import open_source, require_types
    from .holes.remedies import by_rule
    from .sources import by_position, match_signature, require_fit

    given, own = read_inputs(inputs), read_inputs(source_inputs, "--source-input")
    with all_kept():
        ckpt = open_source(source)
    target = signature_for(model, inputs=given)
    found: data.Mapping
    if mapping is not None:
        found = _replayed(mapping, ckpt, target, at=at, invert=invert, numbers=numbers)
    elif by == "position":
        found = by_position(ckpt, target, at=at, first=first, start=start)
    else:
        theirs = given if own is None else own
        code = None if source_model is None else signature_for(source_model, inputs=theirs)
        if code is not None and not code.traced and theirs is None and target.inputs:
            with suppress(RuleError):  # a found input may be more than specs say
                code = signature_for(source_model, inputs=read_inputs(target.inputs.split(" ")))
        rules = [hints] if isinstance(hints, str) else hints
        with all_kept():
            found = match_signature(ckpt, target, at=at, hints=rules, source_code=code)
        if not target.traced and not all(entry.keeps_its_name for entry in found.entries):
            found = replace(found, notes=(*found.notes, _NOT_FOLLOWED))
    if input_channels is not None:
        found = by_rule(found, input_channels)
    matched = mapping is None and by != "position"
    codes = {"inputs": given, "source_inputs": own}
    if reference is not None or prove:
        from .prove import prove as prove_mapping
        from .prove import prove_against
        from .prove.source_code import values_kept

        told: dict[str, Any] = {"patience": patience, "progress": progress}
        with values_kept(source_model, model):
            if reference is not None:
                found = prove_against(found, ckpt, model, reference, **told)
            else:  # which may find what matching does not
                found = prove_mapping(found, ckpt, source_model, model, **codes, **told)
    elif prove is None and matched and source_model is not None:
        from .prove.unasked import prove_unasked

        found = prove_unasked(found, ckpt, source_model, model, progress=progress, **codes)
    if matched:
        require_fit(found, ckpt, target)
    require_types(found, ckpt)
    return Mapping.of(found)


def _require_choices(
    input_channels: str | None, by: str = "evidence", first: int | None = None, start: int = 0
) -> None:
    """Raise RuleError if one of these arguments of `transfer` has a value that it cannot have; else do nothing."""
    from .holes.remedies import RULES

    for name, value, fits, wanted in (
        ("input_channels", input_channels, input_channels is None or input_channels in RULES, " or ".join(RULES)),
        ("by", by, by in ("evidence", "position"), "evidence or position"),
        ("first", first, first is None or first > 0, "a number from 1 on"),
        ("start", start, start >= 0, "a number from 0 on"),
    ):
        if not fits:
            raise RuleError(f"{value!r} is not {wanted}", where=name)


#: A note about a model of which nothing but its keys, shapes and their order is known.
_NOT_FOLLOWED = (
    "the forward pass of the model could not be followed, so the order in which it uses its tensors is not known "
    "(example inputs may help: --input)"
)


def load_into(
    model: Any,
    source: Any,
    *,
    at: str | None = None,
    hints: Sequence[str] = (),
    input_channels: str | None = None,
    accept_guesses: bool | Sequence[str] = False,
    partial: bool | Sequence[str] = False,
    mapping: Mapping | None = None,
    inputs: Any = None,
) -> Mapping:
    """Match SOURCE with MODEL, load the tensors into the model, and return the mapping.

    If all keys and sizes are equal, nothing is matched (each key is a copy of its namesake), unless HINTS or INPUTS are
    given.
    Use it in place of `model.load_state_dict(torch.load(path), strict=False)`. A model that is already wrapped
    (DataParallel, DistributedDataParallel, torch.compile) is filled as it is. For a model that several ranks share
    (FSDP2, tensor parallel), each rank calls this and reads only its part; if something does not fit, all ranks raise
    the same error.

    Keys without a source keep the model's values, if PARTIAL accepts them or they need no source; counters of batches
    (`num_batches_tracked`) without a source become 0.
    Args:
        model: a torch.nn.Module with real parameters. A model shared by ranks may be on the meta device, and gets
            memory. The model is changed only if nothing is wrong or missing.
        source: a path, a Checkpoint or a dict of torch tensors.
        at: where the weights are in the file, as in `ckptool.transfer`.
        hints: OLD=NEW, as in `ckptool.transfer`: used for matching only.
        input_channels: the rule for a first layer with other input channels, as in `ckptool.transfer`.
        inputs: example inputs for a forward pass, as in `ckptool.transfer`.
        accept_guesses: load guesses, too: all (True), or those that match one of these patterns.
        partial: keep the model's values for keys without a source: all (True), or those that match these patterns.
        mapping: use this mapping instead of matching. HINTS and INPUTS then have no effect; INPUT_CHANNELS still
            settles guesses about a first layer.
    Returns:
        The mapping: an entry for each key of the model's state dict.
    Raises:
        Doubtful: there are guesses or gaps that were not accepted; the model is unchanged.
        NoMatch: a pattern of ACCEPT_GUESSES or PARTIAL matches no key of the model.
        CheckpointError: as in `ckptool.transfer`.
    """
    require("ckptool.load_into", "torch", extra="torch")
    _require_choices(input_channels)
    from ..model_code.building import fill, require_model, unwrapped
    from ..sharding.into_memory import naming_the_rank
    from .applying import apply, open_source, require_types
    from .holes.remedies import by_rule
    from .refusal import require_accepted
    from .same_names import by_same_names

    inner = unwrapped(require_model(model))
    with naming_the_rank(list(inner.parameters())):
        ckpt = open_source(source)
        if mapping is None:
            same = by_same_names(ckpt, inner, at) if not hints and inputs is None else None
            if same is None:
                found = transfer(ckpt, inner, at=at, hints=hints, input_channels=input_channels, inputs=inputs)
            else:
                require_types(same, ckpt)
                found = Mapping.of(same)
        else:
            found = _for_model(mapping, ckpt, inner, at)
            if input_channels is not None:
                found = Mapping.of(by_rule(found, input_channels))
        require_accepted(found, _patterns(accept_guesses), _patterns(partial))
        fill(inner, apply(found, ckpt))
    return found


def _for_model(mapping: data.Mapping, source: Any, model: Any, at: str | None) -> Mapping:
    """Return MAPPING, which was read or made before, with the sizes and all keys of MODEL (a module) for SOURCE (a
    Checkpoint, a path or a dict of torch tensors), whose weights are at the path AT if it is given, else where the
    mapping has them. No forward pass of MODEL is run.

    Raises:
        RuleError: its sizes or keys are not those of the model and the source.
    """
    from ..model_code.trace import signature_of
    from .applying import open_source

    return Mapping.of(_replayed(mapping, open_source(source), signature_of(model, trace=False), at=at))


def _replayed(
    mapping: data.Mapping | Family,
    ckpt: Checkpoint,
    target: Signature,
    *,
    at: str | None = None,
    invert: bool = False,
    numbers: MappingOf[str, int] | None = None,
) -> data.Mapping:
    """Return MAPPING, which was read or made before, or its inverse, with the sizes and all keys of TARGET
    (`mapping_file.for_target`), for the source CKPT. The other arguments are as in `transfer`.

    A mapping for a family is first made one for this source (`apply_mapping`); tensors that the family does not know
    are ignored. NUMBERS have an effect only for a family. AT takes the place of the path that the mapping has. The
    inverse of a mapping for one model has no such path: without AT, the file then needs to have exactly one state dict.
    Raises:
        RuleError: its sizes or keys are not those of the model and the source, or its inverse would lose values.
        NotFound: a number that the family needs is missing, or there is no state dict.
        Ambiguous: there are several state dicts, and neither AT nor the mapping says which.
    """
    from . import mapping_file
    from .family import Family

    if isinstance(mapping, Family):
        mapping = apply_mapping(ckpt, mapping, at=at, invert=invert, numbers=numbers, leave=True)
    elif invert:
        mapping = mapping_file.invert(mapping, {key: entry.shape for key, entry in target.entries.items()})
    if at is not None:
        mapping = replace(mapping, at=at)
    weights = ckpt.state_dict(mapping.at)
    return mapping_file.for_target(mapping, target, {key: tensor.shape for key, tensor in weights.tensors.items()})


def apply_mapping(
    source: Any,
    mapping: data.Mapping | Family | str,
    *,
    at: str | None = None,
    invert: bool = False,
    numbers: MappingOf[str, int] | None = None,
    leave: bool = False,
) -> Mapping:
    """Return MAPPING for SOURCE without a model; the method `apply(source)` of the result makes the weights.

    The sizes of the result are those that its expressions give. In a mapping for one model, an expression that reads a
    key that SOURCE lacks keeps the sizes it had, and only `apply` refuses it. The `at` of the result is AT, or else
    that of MAPPING.
    Args:
        source: a path, a Checkpoint or a dict of torch tensors.
        mapping: the name of a built-in mapping (`ckptool mappings` lists them), the path of a file, or a mapping that
            was read.
        at: where the weights are in the file, if there are several.
        invert: use the mapping in the opposite direction. Only for a family of models: the inverse of a mapping for one
            model needs that model (see `transfer`).
        numbers: for a family: numbers that the weights do not show, such as {"heads": 32}. Those left out are read from
            params.json and config.json beside the file; if both have a name, that of params.json counts.
        leave: for a family: ignore tensors that the mapping does not know. A mapping for one model ignores them always.

    Raises:
        RuleError: a size does not fit, or INVERT is given for one model. For a family, also: the source lacks tensors,
            or has tensors that the mapping does not know (without LEAVE), or NUMBERS has a name that the family does
            not know.
        NotFound: there is no such mapping or no state dict, or a number is needed and missing.
        Ambiguous: there are several state dicts, and neither AT nor the mapping says which.
        Unreadable, Malformed: the file is no mapping file.
    """
    from .applying import open_source
    from .family import Family
    from .family_files import configuration_beside, named, without_model

    ckpt = open_source(source)
    found = named(mapping) if isinstance(mapping, str) else mapping
    where = found.at if isinstance(found, data.Mapping) else None
    shapes = {key: tensor.shape for key, tensor in ckpt.state_dict(at or where).tensors.items()}
    if isinstance(found, Family):
        config = configuration_beside(ckpt.path)
        made = found.mapping(shapes, invert=invert, given=numbers, config=config, leave=leave)
    elif invert:
        raise RuleError(
            "of a mapping for one model wants that model", where="--invert", hint="name its MODEL.py as well"
        )
    else:
        made = without_model(found, shapes)
    return Mapping.of(replace(made, at=at or made.at))


def _patterns(given: bool | Sequence[str] | None) -> Sequence[str]:
    if given is None or isinstance(given, bool):
        return [""] if given else []
    return [given] if isinstance(given, str) else given


def read_mapping(path: Any) -> Mapping:
    """Return the mapping for one model in the file PATH (YAML), without sizes: `transfer` and `apply_mapping` add
    those. docs/transfer.md describes the contents of the file. A file of a mapping for a family is refused:
    `apply_mapping` takes its path.

    Raises:
        Unreadable, Malformed: there is no such file, or it is no mapping file for one model.
    """
    from .mapping_file import read

    return Mapping.of(read(path))


__all__ = ["Entry", "Mapping", "apply_mapping", "load_into", "read_mapping", "transfer"]
