"""Porting weights into other model code: matching, the mapping, and its proof (see `ckptool.transfer`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingOf
from typing import Any

from .mapping import Entry, Mapping


def transfer(
    source: Any,
    model: Any,
    *,
    at: str | None = None,
    hints: Sequence[str] = (),
    inputs: Any = None,
    source_model: Any = None,
    source_inputs: Any = None,
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
        inputs: example inputs for a forward pass, as texts (`float32[2,3,64,64]`) or tensors; worked out if None.
        source_model: the source's own code, as `model`. Its order of execution then counts, too.
        source_inputs: example inputs for the source's code, where it takes them in another form than the model.
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
    from ..architecture import signature_for
    from ..inputs import read_inputs
    from .sources import match_signature, require_fit

    given = read_inputs(inputs)
    target = signature_for(model, inputs=given)
    theirs = read_inputs(source_inputs) if source_inputs is not None else given
    code = None if source_model is None else signature_for(source_model, inputs=theirs)
    rules = [hints] if isinstance(hints, str) else hints
    mapping = match_signature(source, target, at=at, hints=rules, source_code=code)
    if reference is not None:
        from .prove import prove_against

        mapping = prove_against(mapping, source, model, reference, patience=patience, progress=progress)
    elif prove:  # which may find what matching does not
        from .prove import prove as prove_mapping

        own = read_inputs(source_inputs)
        mapping = prove_mapping(
            mapping,
            source,
            source_model,
            model,
            inputs=given,
            source_inputs=own,
            patience=patience,
            progress=progress,
        )
    require_fit(mapping, source, target)
    return mapping


def load_into(
    model: Any,
    source: Any,
    *,
    at: str | None = None,
    hints: Sequence[str] = (),
    accept_guesses: bool | Sequence[str] = False,
    partial: bool | Sequence[str] = False,
    mapping: Mapping | None = None,
    inputs: Any = None,
) -> Mapping:
    """Match SOURCE with MODEL, load it into the model, and return the account of every parameter.

    In place of `model.load_state_dict(torch.load(path), strict=False)`. A model that is wrapped already (DataParallel,
    DistributedDataParallel, torch.compile) is filled as it is.

    Args:
        model: a torch.nn.Module with real parameters. It is changed only if nothing is wrong or missing.
        source: a path, a Checkpoint or a dict of torch tensors.
        at, hints, inputs: as in `ckptool.transfer`.
        accept_guesses: load guesses, too: all (True), or those that match one of these patterns.
        partial: leave weights that the source does not have as they are: all (True), or those that match.
        mapping: use this one instead of matching.

    Raises:
        Doubtful: there are guesses or gaps that were not accepted; the model is as it was.
        CheckpointError: as `ckptool.transfer`.
    """
    from ..architecture import fill, require_model, unwrapped
    from .refusal import require_accepted
    from .sources import apply

    inner = unwrapped(require_model(model))
    if mapping is None:
        found = transfer(source, inner, at=at, hints=hints, inputs=inputs)
    else:
        found = _for_model(mapping, source, inner)
    require_accepted(found, _patterns(accept_guesses), _patterns(partial))
    fill(inner, apply(found, source))
    return found


def _for_model(mapping: Mapping, source: Any, model: Any) -> Mapping:
    """A mapping that was read or made before, for this model and source, whose shapes it has to fit."""
    from ..trace import signature_of
    from .mapping_file import for_target
    from .sources import open_source

    weights = open_source(source).state_dict(mapping.at)
    return for_target(mapping, signature_of(model, trace=False), {k: t.shape for k, t in weights.tensors.items()})


def _patterns(given: bool | Sequence[str]) -> Sequence[str] | None:
    if isinstance(given, bool):
        return [""] if given else None
    return [given] if isinstance(given, str) else given


def read_mapping(path: Any) -> Mapping:
    """Read a mapping file (YAML); see docs/transfer.md for what is in one."""
    from .mapping_file import read

    return read(path)


__all__ = ["Entry", "Mapping", "MappingOf", "load_into", "read_mapping", "transfer"]
