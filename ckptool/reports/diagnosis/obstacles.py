"""What in the names and kinds of weights keeps `model.load_state_dict(torch.load(FILE))` from working.

None of this needs the code of the model: it is what would be in the way of any plain model that the weights are of.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ... import keys
from ...adapters.adapter_summary import AdapterSummary, summary_of
from ...checkpoint import Checkpoint, StateDict
from ...disk.files import beside, is_there, shell_path
from ...errors import counted, printable
from ...formats import format_of
from ...formats.base import FolderFormat
from ...formats.flat.sharded import missing_beside
from ...formats.opening import parts_option
from ...formats.trainers.alone import PartOfRun, part_of_run
from ...passes.buffers import required
from ...passes.optimizers import optimizers_in
from ...tensor import LazyTensor
from ...tree import Dict, names_in
from ...weights import is_training_state
from .finding import Finding
from .foreign_weights import of_a_framework, quantised

#: Findings that no renaming mends: the file does not hold a plain model's weights.
HOPELESS = frozenset({"part", "zero-3", "adapter", "packed", "framework", "no-parameters", "no-weights"})
#: Findings that the code of a model refutes, if the weights fit it.
BY_NAME = frozenset(
    {"wrapped", "partly-wrapped", "adapter", "packed", "zero-3", "no-parameters", "strangers", "no-counters"}
)

#: What commands do with the files of the ranks of a run.
_TOGETHER = "to put the parts of all ranks together"
_ADAPTER = re.compile(r"(?:^|[._])lora_(?:A|B|embedding_A|embedding_B|down|up|magnitude_vector)(?:[._]|\Z)")


def in_the_way(ckpt: Checkpoint, weights: StateDict | None) -> Iterator[Finding]:
    """What is in the way, of all that stands in the file, and of WEIGHTS (None if there are none, or several)."""
    found = ckpt.state_dicts()
    part = part_of_run(ckpt)
    if ckpt.part_of and part is None:
        yield _one_part(ckpt)
    yield from _of_a_run(ckpt, part)
    yield from of_a_framework(ckpt, weights)
    if not found:
        command = f"ckptool inspect {shell_path(ckpt.where)}"
        yield Finding("no-weights", _instead_of_weights(ckpt), commands=[(command, "")])
    elif weights is None:
        paths = ", ".join(printable(one.path, 40) for one in found[:6])
        actions = [f"one of them is {python_for(ckpt, found[0].path)}"]
        yield Finding("several", f"it holds {len(found)} state dicts: {paths}; --at names one", True, actions=actions)
    summary = summary_of(ckpt)
    if summary is not None:
        yield _adapter(ckpt, summary)
    for one in [weights] if weights and summary is None else found if summary is None else []:
        where = f" at {printable(one.path, 40)}" if len(found) > 1 else ""
        yield from _of(ckpt, one, where)
    if weights is not None and weights.model is not None:
        what = f"a whole model is pickled in it (class {printable(weights.model.class_name, 60)}), not its weights"
        yield Finding("pickled-model", what)
    elif weights is not None and weights.path:
        what = f"the weights are under the key {printable(weights.path, 60)!r}"
        kind = format_of(ckpt)
        loads = kind is None or kind.loader in ("weights_only", "pickle")
        yield Finding("envelope", what, loads, actions=[python_for(ckpt, weights.path)] if loads else [])


def _instead_of_weights(ckpt: Checkpoint) -> str:
    """What is in a file without a state dict."""
    if any(not one.path for one in optimizers_in(ckpt.root)):
        return "it is the state of an optimizer; the weights are in another file"
    if isinstance(ckpt.root, LazyTensor):
        return f"it is one tensor of shape {list(ckpt.root.shape)}, and no state dict"
    if isinstance(ckpt.root, Dict) and not ckpt.root.entries:
        return "it is a dict without entries: nothing was saved"
    return "there is no state dict in it"


def _of_a_run(ckpt: Checkpoint, part: PartOfRun | None) -> Iterator[Finding]:
    """Whether it is a folder with a file for each rank, or one of these files."""
    if isinstance(kind := format_of(ckpt), FolderFormat) and kind.of_ranks:
        command = f"ckptool convert {shell_path(ckpt.where)} {beside(ckpt.where, 'whole', '.safetensors')}"
        what = "each rank of a run wrote its own files; torch.load does not put them together"
        gives = _TOGETHER
        if said := next((line for line in ckpt.lost_content if "--parts" in line), ""):
            what, command = f"{what}; {said.partition(';')[0]}", f"{command} --parts sizes.yaml"
            gives += (
                ', where sizes.yaml has a line such as "0.weight": [7, 5] for each parameter, in the order of the model'
            )
        else:
            command += parts_option()
        yield Finding("one-file-a-rank", what, True, [(command, gives)])
    if part is not None:
        gives = _TOGETHER if part.is_less else f"which {part.gives}"
        yield Finding("part-of-a-run", part.sentence, part.is_less, [(part.command, gives)])


def python_for(ckpt: Checkpoint, path: str) -> str:
    """The line of Python that loads the weights at PATH as the file has them."""
    parts = zip(path.split("/") if path else [], names_in(path), strict=True)
    inside = "".join(f"[{part if part.isdecimal() else repr(name)}]" for part, name in parts)
    return f"model.load_state_dict(torch.load({Path(ckpt.where).name!r}){printable(inside, 200)})"


def _of(ckpt: Checkpoint, weights: StateDict, where: str) -> Iterator[Finding]:
    """What is in the way in one state dict. WHERE it is, in words, if there are others."""
    if weights.wrappers:
        said = " and ".join(
            f"{name!r} is in {count:,} of {counted(len(weights), 'key')}" for name, count in weights.wrappers.items()
        )
        yield Finding("wrapped", f"the model{where} was wrapped when it was saved: {said}")
    for component, count in partly_wrapped(weights).items():
        what = f"'{component}.' begins {count:,} of {counted(len(weights), 'key')}{where}"
        yield Finding("partly-wrapped", f"{what}, but not the others")
    if odd := strangers(weights):
        shown = ", ".join(f"{printable(key, 40)!r} ({type(weights[key]).__name__})" for key in odd[:4])
        more = f" and {len(odd) - 4:,} more" if len(odd) > 4 else ""
        yield Finding("strangers", f"the weights{where} also contain {shown}{more}; load_state_dict refuses that")
    if counters := required(weights):
        shown = printable(counters[0], 60) + (f" and {len(counters) - 1:,} more" if counters[1:] else "")
        what = f"{shown}{where} {'is' if len(counters) == 1 else 'are'} missing, although the layers should have it"
        yield Finding("no-counters", what)
    of_floats = [(view.shape, count) for view, count in weights.views.items() if view.dtype.is_floating]
    floats, empty = sum(count for _, count in of_floats), sum(count for shape, count in of_floats if shape == (0,))
    small = sum(count for view, count in weights.views.items() if view.shape in ((0,), (1,)))
    if (empty > 1 and 2 * empty >= floats) or small == len(weights.column) > 4:
        many = f"{empty:,} of {counted(floats, 'tensor')}{where} are empty"
        many = many if empty else "all its tensors have 1 element"
        actions = ["the weights are in the *_optim_states.pt files beside it"]
        yield Finding("zero-3", f"{many}: placeholders of DeepSpeed ZeRO-3", actions=actions)
    elif not any(view.numel for view in weights.views) and not any(one.numel for one in weights.others.values()):
        yield Finding(
            "no-parameters", f"the state dict{where} holds no parameters: {counted(len(weights), 'entry', 'entries')}"
        )
    named = [key for key in weights if "lora_" in key] if "lora_" in weights.outline else []
    layers = {_ADAPTER.split(key)[0].strip("._") for key in named if _ADAPTER.search(key)}
    if layers:
        what = f"it is an adapter (LoRA) of {counted(len(layers), 'layer')}{where}, and not the model that it changes"
        if any(".base_layer." in key for key in weights):
            what = f"{counted(len(layers), 'layer')}{where} are those of a model with an adapter (LoRA) in it"
        yield Finding(
            "adapter", what, actions=["peft.PeftModel.from_pretrained(base_model, FOLDER) loads it onto its base"]
        )
    yield from quantised(ckpt, weights, where)


def partly_wrapped(weights: StateDict) -> dict[str, int]:
    """Components of wrappers that stand before some of the keys, and before how many; none where `unwrap` helps."""
    if weights.wrappers:
        return {}
    components = {one.component for one in keys.WRAPPERS if f"\n{one.component}." in weights.outline}
    if not components:
        return {}
    heads = Counter(keys.first_component(key) for key in weights if "." in key)
    others = len(weights) - (keys.AVERAGED_COUNTER in weights)
    return {head: count for head, count in heads.items() if head in components and count < others}


def strangers(weights: StateDict) -> list[str]:
    """Keys of numbers, texts and training state between the tensors, which no module asks for."""
    if len(weights.column) == len(weights):
        return []
    return [
        key
        for key, value in weights.items()
        if not key.endswith("_extra_state")
        and "_packed_params" not in key
        and (value is None or isinstance(value, str | bytes | int | float) or ("." not in key and _state(key, value)))
    ]


def _state(key: str, value: Any) -> bool:
    return is_training_state(key) and not hasattr(value, "shape")


def _adapter(ckpt: Checkpoint, summary: AdapterSummary) -> Finding:
    """An adapter loads nowhere alone."""
    base = summary.base
    said = f", {printable(base, 80)!r} by its configuration" if base else ""
    what = f"an adapter ({summary.family}) of {counted(summary.layers, 'layer')}: it needs its base model{said}"
    place = shell_path(ckpt.where)
    if base and is_there(base):
        out = beside(ckpt.where, "merged")
        command = f"ckptool merge-lora {shell_path(base)} {place} {out}"
        return Finding("adapter", what, commands=[(command, "to merge it into its base")])
    return Finding("adapter", what, actions=[f"ckptool merge-lora BASE {place} MERGED merges it into the base at BASE"])


def _one_part(ckpt: Checkpoint) -> Finding:
    missing = missing_beside(Path(ckpt.where))
    if missing:
        names = ", ".join(printable(name, 80) for name in missing[:3]) + (", …" if missing[3:] else "")
        return Finding("part", f"it is {ckpt.part_of}; not beside it: {names}", actions=["fetch the others"])
    folder = Path(ckpt.where).parent
    command = f"ckptool convert {shell_path(folder)} {beside(folder, 'whole', Path(ckpt.where).suffix)}"
    return Finding("part", f"it is {ckpt.part_of}", True, [(command, "to put all parts together")])
