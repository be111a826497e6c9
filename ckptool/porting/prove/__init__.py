"""Proof: run the source's code and the model on the same inputs, and compare their outputs.

Equal outputs prove all weights that they depend on. If outputs differ, the output of each use of weights in the model
is looked up among the outputs of all uses in the source's code. The models diverge at the first use whose output is
missing there while the outputs of all uses before it are found. Other expressions for the weights at that use
(`improving`) are tried; a change is kept if more uses agree. A change that worked in one block is tried first in the
next block. Two changes are tried together only in the few cases in which one alone would show nothing.

The words of this package, beside those of `ckptool.porting`:

    use, flow    an operation on weights in a forward pass, with its input and output; all uses of a forward pass. HELD
                 is one weight of a use, as the operation takes it. A step is an operation without weights.
    expected     the flow of the source's code. SEEN is the flow of the model with some mapping.
    agree        said of a use whose output channels are outputs of uses in the source's code, too. The models diverge
                 at the first uses that do not (FRONTS): all uses before each of them agree.
    change       other expressions for some keys, which a proof tries: (label, key -> expression).
    setting      what code has beside weights (eps, activation, scale). The cause is a setting if two models differ by
                 it although their weights are right.
    swap         here, a function that is run in place of a step of the model, to try a setting (`code_steps`).
    family       several keys with tensors of equal sizes, which count as one tensor (`dimensions`, `unused`).
    fingerprint  a few numbers made from the values of one channel, by which a proof finds equal channels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...disk.files import StrPath
from ...errors import CannotCarry, counted
from ...keys.known_buffers import is_counter
from .. import expression as ex
from ..applying import open_source
from ..mapping import Mapping
from ..questions import Reason
from .causes import Codes
from .flow import Flow
from .ground import module_of
from .linking.same_inputs import SEED, SameInputs, run, same_inputs
from .recorder import follow
from .reference import read_reference
from .settling.account import nothing_compared
from .settling.settle import settle
from .settling.unseen_orders import doubt_colours, doubt_turned
from .source_code import OwnCode, adapter_factors, built, load_own
from .trial import PATIENCE, Progress, Tell, Trial
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
    longer: str = "--patience",
    progress: Tell | None = None,
) -> Mapping:
    """Run the source's own code and the model on the same random inputs, and settle doubts by comparing their outputs.

    Args:
        mapping: the mapping to prove.
        source: the checkpoint.
        source_model: the source's code: a module, a `ModelSource` or `MODEL.py:Name`. The file is loaded into it.
        target_model: the model, likewise. One mapping after another is loaded into it; it keeps the last one.
        inputs: inputs of the model; searched for if None.
        source_inputs: inputs of the source's code, if it takes another form.
        patience: time limit of a proof, in seconds, from when both models are built. The first comparison of outputs
            takes place in any case, and a run that has begun ends.
        longer: the option that gives the search more time, for the text of the proof.
        progress: called with a line of text whenever another step begins.

    Returns:
        The mapping with its `proof`: {"equal": bool, "text": str, "first_divergence": str | None, …}; "stopped" is
        "time" or "trials" if a limit ended the search early. Keys may have other expressions than before, which trials
        found (`settle`), and counters of batches may get a source (`_with_counters`). If no inputs are given and none
        are found on which both models run, only the `proof` is new, and says that nothing was compared.

        If the models agree most on inputs that are not the likeliest by themselves (`SameInputs.plain`), those are
        proved first, and that proof is returned if its outputs are equal. If outputs are equal only with inputs of one
        size in changed places, the first layers get a doubt (`_doubt_inputs`).

    Raises:
        NotFound: the file lacks more than a tenth of the keys of the source's code.
        CannotCarry: inputs are given, and the two models cannot both be run on them.
    """
    told = Progress(progress, patience, longer)
    told.say("loading the file into the code that it came from")
    ckpt = open_source(source)
    theirs = built(source_model)
    code = load_own(theirs, ckpt, mapping)
    own = built(target_model)
    trial = Trial(own, ckpt, mapping, None, adapter_factors(theirs), told, code.read)
    entries = {e.target: e for e in mapping.entries}

    def judged(flow: Flow, values: Any) -> tuple[Flow | None, Verdict]:
        """Run the model on VALUES, which are the inputs of TRIAL from then on. Return its flow (None if it cannot be
        run), and the verdict on that flow against FLOW, the flow of the source's code over the keys of that code.
        """
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

    def proved_on(both: SameInputs) -> Mapping:
        """Return MAPPING with the result of its proof on the inputs BOTH, or on those that are likelier by themselves
        (`SameInputs.plain`), if there are any and outputs are equal on them.
        """
        plain = None if both.plain is None else run(both.plain)
        if plain is not None and _is_equal(found := proved_on(plain)):
            return found
        found = _with_counters(_proved(mapping, trial, code, both, theirs, own))
        if any(link.how == "part" for link in both.links):
            found = _with_doubts_about_inputs(found, mapping)
        return _doubt_inputs(found, trial, both) if both.is_turned and _is_equal(found) else found

    return proved_on(both)


def _with_counters(found: Mapping) -> Mapping:
    """Return FOUND in which counters of batches without a source are copies of counters of the source. No output feels
    a counter, so a proof that finds a norm does not find its counter.

    A counter (`a.num_batches_tracked`) counts if it may keep the model's own value (`Entry.default`), and if all keys
    of the source that the running variance of its norm (`a.running_var`) reads are in one module (`b`). It becomes a
    copy of the key with its own last name in that module (`b.num_batches_tracked`), if the source has that key. All
    other entries stay as they are.
    """
    entries = {e.target: e for e in found.entries}
    for e in found.entries:
        module, _, leaf = e.target.rpartition(".")
        beside = entries.get(f"{module}.running_var") if e.default and is_counter(e.target) else None
        norms = {module_of(key) for key in beside.sources} if beside is not None else set()
        counter = f"{norms.pop()}.{leaf}" if len(norms) == 1 else ""
        if counter in found.source_shapes:
            entries[e.target] = replace(e, expr=ex.of(counter), default=False, evidence="counts for its statistics")
    return found.with_entries(list(entries.values()))


def _with_doubts_about_inputs(found: Mapping, mapping: Mapping) -> Mapping:
    """Return FOUND with the entries of MAPPING that have an open question about the factor of an input, if their
    expressions stayed: a proof that begins inside of the source's code does not see what that code does before.
    """
    before = {e.target: e for e in mapping.entries}
    entries = [
        old
        if (old := before[e.target]).expr == e.expr
        and any(q.is_open and q.reason is Reason.FACTOR_OF_INPUT for q in old.questions)
        else e
        for e in found.entries
    ]
    return found.with_entries(entries)


def _is_equal(found: Mapping) -> bool:
    """Return whether FOUND has a proof that says that outputs are equal."""
    return found.proof is not None and bool(found.proof["equal"])


def _doubt_inputs(found: Mapping, trial: Trial, both: SameInputs) -> Mapping:
    """Return FOUND with a note in the text of its proof, and with the question INPUTS_TURNED about the keys with a
    source of each first layer (no layer is before it), and of each layer that does not depend on all first layers
    (`doubt_turned`). FOUND itself if the model cannot be run.

    FOUND is a mapping whose outputs were equal on the inputs BOTH, in which inputs or dimensions of one size have
    changed places (the model's first has the values of the source's second): outputs would also be equal if the layers
    of two inputs were exchanged, or turned. TRIAL runs the model, from here on with these inputs.
    """
    trial.inputs = both.values
    seen = trial.run(found.entries)
    if seen is None or found.proof is None:
        return found
    entries = doubt_turned({e.target: e for e in found.entries}, seen, Reason.INPUTS_TURNED)
    text = f"{found.proof['text']}, though inputs or dimensions of one size have changed places"
    return replace(found, proof={**found.proof, "text": text}).with_entries(list(entries.values()))


def _proved(mapping: Mapping, trial: Trial, code: OwnCode, both: SameInputs, theirs: Any, own: Any) -> Mapping:
    """Return MAPPING with the result of its proof on the inputs BOTH of the two models, and with a doubt about colours
    if their order may differ (see `doubt_colours`). The result also has to hold on two other draws of random values (if
    these can be made).

    If the models agree on the first values but, after all changes, differ on one of the other draws, and time is not
    over, the proof is made once more from MAPPING, beginning with that draw. The second result is returned if its
    outputs are equal and their difference, measured in float64, is explained by rounding in float32; else the first.

    CODE says how the keys of the source's code relate to the keys of the file; THEIRS is the module of that code, and
    OWN the model. TRIAL runs OWN with other expressions for its weights, and its inputs change.
    """
    modules = code.pairs_of_modules(mapping, theirs, own)
    made = [values for seed in (SEED, *_MORE_SEEDS) if (values := both.made(seed)) is not None]

    def on(first: int) -> Mapping:
        """Return MAPPING with the result of its proof on the values number FIRST, which has to hold on the others. The
        count of trials in vain starts from 0.
        """
        trial.unlike, trial.misses = None, 0  # a search on other inputs takes nothing from this one
        trial.inputs = made[first][1] if first else both.values
        expected = given(first) if first else None if both.flow is None else code.seen(both.flow)
        assert expected is not None
        others = ((given(number), values) for number, (_, values) in enumerate(made) if number != first)
        codes = Codes(expected, lambda: given(first, wider=True) if made else None, modules)
        return doubt_colours(settle(mapping, trial, codes, both.shown, others, code.copies), theirs, own, expected)

    def given(number: int, *, wider: bool = False) -> Flow | None:
        """Return the flow of the source's code on the values NUMBER, over keys of the file, in float64 if WIDER; None
        if it cannot be run.
        """
        flow = follow(theirs, made[number][0], bare=True, wider=wider)
        return None if flow is None else code.seen(flow)

    found = on(0)
    unlike = [number for number, (_, values) in enumerate(made) if values is trial.unlike]
    if unlike and not trial.progress.late:  # the first outputs showed too little: those behind a ReLU may all be 0
        again = on(unlike[0])
        proof = again.proof or {}
        difference, bound = proof.get("difference"), proof.get("bound")
        # not if the layers agree and the outputs do not, as those did on the first inputs
        if proof.get("equal") and difference is not None and bound is not None and difference <= bound:
            return again
    return found


def prove_against(
    mapping: Mapping,
    source: Any,
    target_model: Any,
    reference: StrPath,
    *,
    patience: float = PATIENCE,
    progress: Tell | None = None,
) -> Mapping:
    """Compare the outputs of the model with outputs that were saved where the source's code runs; return MAPPING with
    the result as its `proof`, and with doubts settled by it. Only outputs are compared: the uses of weights of the
    source's code are not known here.

    REFERENCE is a file of any format with tensors named `input`, `input.0`, `input.NAME` … and `output`, `output.0` ….
    The other arguments are as in `prove`.
    Raises:
        NotFound: the file has no inputs, or no outputs, with these names.
        CannotCarry: an input or an output cannot be used (see `read_reference`), the model does not take these inputs,
            or none of its outputs can be compared with a saved one.
        RuleError: some inputs have a name and some have none, or one is inside of another (`input.a`, `input.a.b`).
        UnknownFormat: the file is none that ckptool reads.
    """
    model = built(target_model)
    saved = read_reference(reference, model)
    told = Progress(progress, patience)
    trial = Trial(model, open_source(source), mapping, saved.inputs, progress=told)
    told.begin()
    outputs = Flow([], saved.outputs, places=saved.places)
    return settle(mapping, trial, Codes(outputs, lambda: outputs, coarse=saved.coarse), "the saved inputs")


__all__ = ["prove", "prove_against"]
