"""Proof: run both models on the same inputs and compare their outputs.

Equal outputs prove all weights that they depend on. If outputs differ, each use of weights in the model is searched
among the uses in the source's code, by its output. The first use that is not found there, after uses that are all
found, is where the models diverge. Other expressions for the weights there (`improving`) are tried; a change is kept
if more uses agree. A change that worked in one block is tried first in the next. Combinations are never searched.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...disk.files import StrPath
from ...errors import CannotCarry, counted
from ..applying import open_source
from ..mapping import Mapping
from ..questions import Reason
from .causes import Codes
from .colours import doubt_colours
from .flow import Flow
from .progress import PATIENCE, Progress, Tell
from .recorder import follow
from .reference import read_reference
from .same_inputs import SEED, SameInputs, in_plain_places, same_inputs
from .settle import nothing_compared, settle
from .source_code import OwnCode, adapter_factors, built, load_own
from .trial import Trial
from .turned import doubt_turned
from .verdict import Verdict, judge

#: Of further inputs, on which what was found has to hold as well.
_MORE_SEEDS = (21, 22)


def prove(
    mapping: Mapping,
    source: Any,
    source_model: Any,
    target_model: Any,
    *,
    inputs: Any = None,
    source_inputs: Any = None,
    patience: float = PATIENCE,
    progress: Tell | None = None,
) -> Mapping:
    """Run the source's own code and the model on the same random inputs, and settle doubts by the comparison.

    Args:
        mapping: the mapping to prove.
        source: the checkpoint.
        source_model: the source's code: a module, a `ModelSource` or `MODEL.py:Name`.
        target_model: the model, likewise.
        inputs: inputs of the model; searched for if None.
        source_inputs: inputs of the source's code, if it takes another form.
        patience: time limit of a proof, in seconds, from when both models are built. The first comparison of outputs
            takes place in any case, and a run that has begun ends.
        progress: called with a line of text whenever another step begins.

    Returns:
        The mapping with its `proof`: {"equal": bool, "text": str, "first_divergence": str | None, …}; "stopped" is
        "time" or "trials" if a limit ended the search early.

    Raises:
        NotFound: the source's code does not have the keys of the file.
        CannotCarry: the models cannot both be run on the given inputs. If none are given and none are found, the
            proof says so.
    """
    told = Progress(progress, patience)
    told.say("loading the file into the code that it came from")
    ckpt = open_source(source)
    theirs = built(source_model)
    code = load_own(theirs, ckpt, mapping)
    own = built(target_model)
    trial = Trial(own, ckpt, mapping, None, adapter_factors(theirs), told)
    entries = {e.target: e for e in mapping.entries}

    def judged(flow: Flow, values: Any) -> tuple[Flow | None, Verdict]:
        trial.inputs = values
        told.say(f"looking for inputs that both models take; {counted(trial.runs + 1, 'run')} of the model so far")
        seen = trial.run(mapping.entries)
        return seen, judge(code.seen(flow), seen, entries)

    told.say("looking for inputs that both models take")
    told.begin()
    try:
        known = code.modules_of(mapping)
        both = same_inputs(theirs, own, inputs, source_inputs, judged, known, lambda: told.late)
    except CannotCarry as error:
        if inputs is not None or source_inputs is not None:
            raise
        return replace(mapping, proof=nothing_compared(error.what, trial.runs) | {"changes": [], "unfelt": []})
    plain = in_plain_places(both)
    for inputs_of_both in (plain, both) if plain is not None else (both,):
        trial.misses = 0  # a search on the first inputs takes nothing from that on the second
        found = _proved(mapping, trial, code, inputs_of_both, theirs, own)
        if found.proof is not None and found.proof["equal"]:
            break
    if inputs_of_both is both and both.plain is not None and found.proof is not None and found.proof["equal"]:
        # as with outputs in other places: the same holds if the layers of two inputs were exchanged
        trial.inputs = both.values
        seen = trial.run(found.entries)
        if seen is not None:
            entries = doubt_turned({e.target: e for e in found.entries}, seen, Reason.INPUTS_TURNED)
            text = f"{found.proof['text']}, though inputs of one size have changed places"
            found = replace(found, proof={**found.proof, "text": text}).with_entries(list(entries.values()))
    return found


def _proved(mapping: Mapping, trial: Trial, code: OwnCode, both: SameInputs, theirs: Any, own: Any) -> Mapping:
    """Return MAPPING with the result of its proof on the inputs BOTH."""
    assert both.flow is not None
    trial.inputs = both.values
    more = [values for seed in _MORE_SEEDS if (values := both.made(seed)) is not None]
    flows = ((follow(theirs, a, bare=True), b) for a, b in more)
    others = ((None if flow is None else code.seen(flow), b) for flow, b in flows)
    flow = code.seen(both.flow)

    def wider() -> Flow | None:
        values = both.made(SEED)
        seen = None if values is None else follow(theirs, values[0], bare=True, wider=True)
        return None if seen is None else code.seen(seen)

    codes = Codes(flow, wider, code.pairs_of_modules(mapping, theirs, own))
    return doubt_colours(settle(mapping, trial, codes, both.shown, others, code.copies), theirs, own, flow)


def prove_against(
    mapping: Mapping,
    source: Any,
    target_model: Any,
    reference: StrPath,
    *,
    patience: float = PATIENCE,
    progress: Tell | None = None,
) -> Mapping:
    """Compare the model with inputs and outputs that were saved where the source's code runs.

    REFERENCE holds tensors named `input`, `input.0`, `input.NAME` … and `output`, `output.0` …, in any format. PATIENCE
    and PROGRESS are as in `prove`.
    Raises:
        NotFound: it has no such tensors.
        CannotCarry: the model does not take these inputs, or has no output that can be compared with these outputs.
    """
    model = built(target_model)
    saved = read_reference(reference, model)
    told = Progress(progress, patience)
    trial = Trial(model, open_source(source), mapping, saved.inputs, progress=told)
    told.begin()
    outputs = Flow([], saved.outputs, places=saved.places)
    return settle(mapping, trial, Codes(outputs, lambda: outputs, coarse=saved.coarse), "the saved inputs")


__all__ = ["prove", "prove_against"]
