"""Porting weights into other model code: matching, the mapping, and its proof (see `ckptool.transfer`).

The words of this package, in the order in which a port meets them:

    side         the source (a file) or the target (a model in code). In rules that go both ways: one, and the other.
    signature    the keys and shapes of a side, in order. That of code has facts: what a forward pass shows of a weight.
    operation    what can be done with tensors (`transpose`, `cat`, `rotary`): a class in `operations`.
    expression   operations over the keys of the source: how one tensor of the target is made (`expression`).
    form         the common form, which both sides are brought into, so that they hold tensors of equal sizes (`forms`).
    piece        one tensor in that form. Its name is the path of its module, and its role there ("weight", "bias").
    hole         the place of a piece of the target, to be filled with an expression (`holes`).
    unit         a module of the form, with all its pieces: what is matched (`matching`).
    cell         units of both sides that nothing tells apart yet. Matching cuts cells until each holds a pair.
    scope        a module around units, matched with one of the other side, in which the units are looked for.
    look-alikes  units of equal shapes, of which only names, orders and neighbours tell which is which.
    evidence     what told a unit from its look-alikes: a name, an order, the modules around it.
    question     what a rule is not sure of: a reason, which is a sentence, and options (`questions`).
    option       what else it may be: another unit, or another expression for the same tensor (also called a rival).
    doubt        the sentence of a question that nothing has answered.
    guess        an entry with a doubt. Nothing is loaded from a guess unless the user accepts it.
    mapping      the result: an entry for each key of the target, mapped, guessed or unmapped (`mapping`).
    proof        both models run on the same inputs: equal outputs settle doubts (`prove`). A run of it is a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, Literal

from ..errors import RuleError
from . import mapping as data
from .mapping import Entry

if TYPE_CHECKING:
    from ..checkpoint import Checkpoint
    from ..disk.files import StrPath
    from ..model_code.signature import Signature
    from .family import Family


class Mapping(data.Mapping):
    """A port from one set of keys to another. Made by `ckptool.transfer` or read from a file; values never change it.

    Attributes: see `ckptool.porting.mapping.Mapping`.
    """

    __slots__ = ()

    @classmethod
    def of(cls, found: data.Mapping) -> Mapping:
        """What matching or a file gave, with the ways to show, save and apply it."""
        return cls(**{field.name: getattr(found, field.name) for field in fields(found)})

    def __str__(self) -> str:
        """The report that `ckptool transfer` prints."""
        from .mapping_text import mapping_text

        return mapping_text(self)

    def explain(self, key: str) -> str:
        """How one KEY of the model or of the source came to its place, as `ckptool transfer --explain` prints it.

        What was done to it, which rules told it from its look-alikes, what was asked, and what decided.

        Raises:
            NotFound: neither has the key.
        """
        from .explaining import explained

        return explained(self, key)

    def save(self, path: StrPath, *, overwrite: bool = False) -> None:
        """Write it as a mapping file (YAML), to be read, edited and used again (see `ckptool.read_mapping`)."""
        from .mapping_file import save

        save(self, path, overwrite=overwrite)

    def emit(self, path: StrPath, *, overwrite: bool = False) -> None:
        """Write it as a module of Python that needs torch alone.

        Its function `convert(state_dict)` makes the model's state dict of any checkpoint with these names, as `apply`
        does, and raises KeyError and ValueError for one that has others.
        """
        from .emitting import emit

        emit(self, path, overwrite=overwrite)

    def apply(self, source: Any) -> Checkpoint:
        """The model's state dict made of SOURCE, a path, a Checkpoint or a dict of tensors; `ckptool.save` writes it.

        No tensor is read before it is written. Keys that are left are not in it.

        Raises:
            NotFound: the source does not have a key that is read.
            RuleError: an operation does not fit the sizes of the source.
        """
        from .applying import apply

        return apply(self, source)


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
    prove: bool = False,
    reference: Any = None,
    patience: float = 300.0,
    progress: Callable[[str], None] | None = None,
) -> Mapping:
    """Find which tensor of SOURCE goes where in MODEL. Nothing is changed or written.

    Args:
        source: a path, a Checkpoint or a dict of torch tensors.
        model: a torch.nn.Module (also on the meta device, also wrapped), or code as `MODEL.py:Name`.
        at: where the weights are in the file, if there are several.
        hints: renaming rules OLD=NEW, from names of the source towards names of the target.
        input_channels: the rule for a first layer of another number of input channels: "repeat" (in turn, scaled),
            "sum", "mean", "zeros" (for those that are new) or "first" (so many). Without it, the likeliest is a guess.
        inputs: example inputs for a forward pass, as texts (`float32[2,3,64,64]`) or tensors; worked out if None.
        source_model: the source's own code, as `model`. Its order of execution then counts, too.
        source_inputs: example inputs for the source's code, where it takes them in another form than the model.
        mapping: use this one, that was read or made before, instead of matching.
        invert: use it the other way round.
        numbers: what a mapping for a family of models wants and the weights do not tell ({"heads": 32}).
        by: "position" takes the n-th tensor for the n-th, whatever their names.
        first, start: by position, fill so many tensors only, and skip so many of the source.
        prove: run both models on the same inputs, and settle doubts by what comes out. Needs SOURCE_MODEL.
        reference: a file of inputs and outputs that were saved where the source's code runs (`input`, `input.NAME` …,
            `output` …), to compare with in place of running it.
        patience: seconds that a proof may look for what makes outputs equal.
        progress: is given a line that says what a proof is doing, each time that changes.

    Returns:
        The mapping: an entry for each key of the model's state dict, each mapped, guessed or unmapped. Printed, it is
        the report of `ckptool transfer`.

    Raises:
        CheckpointError: the source cannot be read, the model cannot be built, or nothing fits.
    """
    from ..model_code.building import signature_for
    from ..model_code.inputs import read_inputs
    from .applying import open_source, require_types
    from .holes.input_channels import by_rule
    from .sources import by_position, match_signature, require_fit

    given, own = read_inputs(inputs), read_inputs(source_inputs, "--source-input")
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
        rules = [hints] if isinstance(hints, str) else hints
        found = match_signature(ckpt, target, at=at, hints=rules, source_code=code)
    if input_channels is not None:
        found = by_rule(found, input_channels)
    if reference is not None:
        from .prove import prove_against

        found = prove_against(found, ckpt, model, reference, patience=patience, progress=progress)
    elif prove:  # which may find what matching does not
        from .prove import prove as prove_mapping

        found = prove_mapping(
            found, ckpt, source_model, model, inputs=given, source_inputs=own, patience=patience, progress=progress
        )
    if mapping is None and by != "position":
        require_fit(found, ckpt, target)
    require_types(found, ckpt)
    return Mapping.of(found)


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
    """Match SOURCE with MODEL, load it into the model, and return the account of every parameter.

    Where all keys and sizes are the same, there is nothing to match.

    In place of `model.load_state_dict(torch.load(path), strict=False)`. A model that is wrapped already (DataParallel,
    DistributedDataParallel, torch.compile) is filled as it is. Of one that several ranks share (FSDP2, tensor
    parallel), each rank calls this and reads its part alone; what does not fit, all ranks refuse with the same line.

    Args:
        model: a torch.nn.Module with real parameters; one that ranks share may be on the meta device, and is given
            memory. It is changed only if nothing is wrong or missing.
        source: a path, a Checkpoint or a dict of torch tensors.
        at, hints, input_channels, inputs: as in `ckptool.transfer`.
        accept_guesses: load guesses, too: all (True), or those that match one of these patterns.
        partial: leave weights that the source does not have as they are: all (True), or those that match.
        mapping: use this one instead of matching.

    Raises:
        Doubtful: there are guesses or gaps that were not accepted; the model is as it was.
        CheckpointError: as `ckptool.transfer`.
    """
    from ..model_code.building import fill, require_model, unwrapped
    from ..sharding.into_memory import naming_the_rank
    from .applying import apply, open_source, require_types
    from .holes.input_channels import by_rule
    from .refusal import require_accepted
    from .same_names import by_same_names

    inner = unwrapped(require_model(model))
    with naming_the_rank(list(inner.parameters())):
        ckpt = open_source(source)
        if mapping is None:
            same = by_same_names(ckpt, inner, at) if not hints and inputs is None else None
            if same is not None:
                require_types(same, ckpt)
            found = (
                Mapping.of(same)
                if same
                else transfer(ckpt, inner, at=at, hints=hints, input_channels=input_channels, inputs=inputs)
            )
        else:
            found = _for_model(mapping, ckpt, inner)
            if input_channels is not None:
                found = Mapping.of(by_rule(found, input_channels))
        require_accepted(found, _patterns(accept_guesses), _patterns(partial))
        fill(inner, apply(found, ckpt))
    return found


def _for_model(mapping: data.Mapping, source: Any, model: Any) -> Mapping:
    """A mapping that was read or made before, for this model and source, whose shapes it has to fit."""
    from ..model_code.trace import signature_of
    from .applying import open_source

    return Mapping.of(_replayed(mapping, open_source(source), signature_of(model, trace=False)))


def _replayed(
    mapping: data.Mapping | Family,
    ckpt: Checkpoint,
    target: Signature,
    *,
    at: str | None = None,
    invert: bool = False,
    numbers: MappingOf[str, int] | None = None,
) -> data.Mapping:
    """A mapping that was read or made before, forth or back, for these sizes."""
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
    """A mapping for SOURCE, with no model at hand: `.apply(source)` of what is returned makes the weights.

    Args:
        source: a path, a Checkpoint or a dict of torch tensors.
        mapping: one that comes with ckptool, by name (`ckptool mappings` lists them), a file, or one that was read.
        at: where the weights are in the file, if there are several.
        invert: the way back.
        numbers: what the weights do not tell, such as {"heads": 32}; else config.json or params.json is asked.
        leave: leave tensors behind that the mapping knows nothing of.

    Raises:
        RuleError: the source is not what the mapping takes.
        NotFound: a number is needed and not there.
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


def _patterns(given: bool | Sequence[str]) -> Sequence[str] | None:
    if isinstance(given, bool):
        return [""] if given else None
    return [given] if isinstance(given, str) else given


def read_mapping(path: Any) -> Mapping:
    """Read a mapping file (YAML); see docs/transfer.md for what is in one."""
    from .mapping_file import read

    return Mapping.of(read(path))


__all__ = ["Entry", "Mapping", "MappingOf", "load_into", "read_mapping", "transfer"]
