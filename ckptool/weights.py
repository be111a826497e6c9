"""Where the weights are in a file: at the root, or under one of the envelope keys that training code uses."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from .errors import counted, printable
from .inert.other_tensors import stands_for_a_tensor
from .inert.quantized import is_packed
from .tensor import LazyTensor
from .tree import (
    NODES,
    Global,
    List,
    Mapped,
    Paths,
    Trail,
    children,
    component_text,
    holds_tensors_alone,
    is_mapping,
    key_column,
    walk,
)

#: Characters of the path of an entry that are kept where only its beginning is shown.
_SHOWN = 200

#: Keys under which frameworks put weights. A state dict under one of them is preferred to one under another name.
ENVELOPES = frozenset(
    """
    state_dict model_state_dict model_state model net net_dict net_state network weight weights params module
    state_dict_ema model_ema ema ema_state_dict model_ema_state_dict params_ema params-ema g_ema teacher student
    G D g d netG netD netG_A netG_B netD_A netD_B generator discriminator encoder decoder backbone adapter blobs
    """.split()
)

#: Those that are names of one model among others: what stands beside it may be another, whatever it is called.
PARTS = frozenset(
    "teacher student G D g d netG netD netG_A netG_B netD_A netD_B generator discriminator encoder decoder".split()
)

#: Words that say of weights that they are an average over the steps of a training: of an exponential moving average, of
#: stochastic weight averaging, of Polyak's.
_AVERAGED = frozenset("ema avg average averaged averages swa shadow polyak".split())

#: Words that make a key one of training state, never of weights: `optimizer_0`, `d_optim`, `cuda_rng_state`.
_TRAINING_WORDS = frozenset("optim optims optimizer optimizers scheduler schedulers scaler rng rngs".split())
_TRAINING_STATE = frozenset(
    "amp callbacks loops message_hub random_state random_states cuda_random_state opt_state".split()
)

#: What optimizers of TensorFlow put behind the name of a variable, for their state beside it.
_SLOT = re.compile(r"[/.](?:Adam|Adam_1|adam_[mv]|Momentum|RMSProp|RMSProp_1|Adagrad|Adadelta|Adadelta_1|Ftrl|Ftrl_1)$")


def variable_of_slot(name: str) -> str | None:
    """The name of the variable whose state in an optimizer of TensorFlow has this NAME: `fc/kernel` for
    `fc/kernel/Adam_1`. None for other names. Converters may have put a dot for the slash.
    """
    slot = _SLOT.search(name)
    return None if slot is None else name[: slot.start()]


def is_training_state(key: Any) -> bool:
    """Whether an envelope key is one of optimizers, schedulers, scalers or random number generators."""
    if not isinstance(key, str) or "." in key:
        return False
    return key.lower() in _TRAINING_STATE or not _TRAINING_WORDS.isdisjoint(words_in(key))


def named_as_average(key: str) -> str | None:
    """What a key names an average of, in small letters with "_" between the words: "model" for `ema_model`, "" for
    `ema`. None if it names no average.
    """
    words = words_in(key)
    left = [word for word in words if word not in _AVERAGED]
    return "_".join(left) if len(left) < len(words) else None


def words_in(key: str) -> list[str]:
    """The words and numbers of a key, in small letters: "lr", "scheduler" and "2" of `LRScheduler_2`."""
    return [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", key)]


def name_of(key: str) -> str:
    """A key in the form in which `named_as_average` says what something is an average of: "net_g" for `netG`."""
    return "_".join(words_in(key))


def _is_like(average: Any, other: Any) -> bool:
    """Whether a state dict has most of its keys in common with another one, but for a wrapper around them."""
    if not is_state_dict(average) or not is_mapping(other):
        return False
    keys = {key for key in key_column(average.entries) if isinstance(key, str)}
    theirs = set(map(str, key_column(other.entries)))
    alike = sum(key in theirs or key.partition(".")[2] in theirs for key in keys)
    return 2 * alike > len(keys)


def is_tensor(value: Any) -> bool:
    """Whether a value of a state dict counts as a tensor: dense, a kind kept inert, a numpy array, or one in memory."""
    if isinstance(value, LazyTensor) or stands_for_a_tensor(value):
        return True
    return hasattr(value, "shape") and hasattr(value, "dtype")


def is_state_dict(node: Any, *, alone: bool = False) -> bool:
    """Whether a node is a state dict: string keys, tensors as values, and at most a few scalars between them.

    One that is ALONE in a file, with no other dict or list, has the weights whatever is between them:
    `{"w": tensor, "epoch": 7}`.

    Entries named `_extra_state` may hold anything, as `torch.nn.Module.get_extra_state` may return anything, and so may
    the packed parameters of quantized modules. States of random number generators do not count.
    """
    if not is_mapping(node) or not node.entries:
        return False
    if holds_tensors_alone(node) and "." in key_column(node.entries)[0]:
        return True
    tensors = scalars = 0
    for key, value in node.entries:
        if not isinstance(key, str):
            return False
        if "." not in key and is_training_state(key) and weights_of_optimizer(value) is None:
            continue
        if is_tensor(value):
            tensors += 1
        elif key.rpartition(".")[2].partition("/")[0] == "_extra_state" or "_packed_params." in key or is_packed(value):
            continue
        elif value is None or isinstance(value, str | bytes | int | float):
            scalars += 1
        else:
            return False
    return tensors > (0 if alone else scalars)


def find_state_dicts(root: Any) -> list[tuple[str, Mapped]]:
    """The state dicts in the tree of a checkpoint, each with its path, in the order of the file.

    The root, if it is one. Else those in dicts and lists below it, leaving out training state (optimizers, schedulers,
    random number generators). If some stand under a usual envelope key, only those, their averages (`ema_model` beside
    `model`), and what stands beside the name of a part: `target_encoder` beside `encoder`, and `token_embedder` beside
    an `encoder` that has a dict for each module.
    """
    if is_state_dict(root, alone=True):
        return [("", root)]
    found: list[tuple[bool, tuple[str, Mapped]]] = []
    seen: set[int] = set()
    paths = Paths()
    known: dict[int, bool] = {}
    pending: list[tuple[Trail, Any, bool]] = [(None, root, False)]
    while pending:
        trail, node, usual = pending.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if is_state_dict(node):
            found.append((usual, (paths.of(trail), node)))
            continue
        below: Sequence[tuple[Any, Any]] = []
        if is_mapping(node) and not _is_optimizer(node):
            below = node.entries
        elif isinstance(node, List) or type(node) is tuple:
            below = list(enumerate(node.items if isinstance(node, List) else node))
        parts = [value for key, value in below if isinstance(key, str) and key in PARTS]
        of_parts = any(map(is_state_dict, parts))
        of_modules = any(_holds_modules(value, known) for value in parts)
        raw = {name_of(key): value for key, value in below if isinstance(key, str) and key in ENVELOPES}
        inner = [
            (
                (trail, key),
                value,
                usual
                or key in ENVELOPES
                or (isinstance(key, str) and _is_like(value, raw.get(named_as_average(key) or "")))
                or (of_parts and _names_layers(value))
                or (of_modules and (is_state_dict(value) or _holds_modules(value, known))),
            )
            for key, value in below
            if isinstance(key, str | int) and not is_training_state(key) and _holds_others(value)
        ]
        inner += [
            (((trail, key), "target"), weights, True)
            for key, value in below
            if is_training_state(key) and (weights := weights_of_optimizer(value)) is not None
        ]
        pending.extend(reversed(inner))
    return [one for usual, one in found if usual] or [one for _, one in found]


def _names_layers(node: Any) -> bool:
    """Whether it is the state dict of more than one layer."""
    return is_state_dict(node) and any("." in key for key, _ in node.entries)


def _holds_modules(node: Any, known: dict[int, bool]) -> bool:
    """Whether it is a dict of dicts, down to one for each module with its tensors, as frameworks of functions make.

    KNOWN is what was found of others of the same tree, by their ids: dicts within dicts are asked one after the other.
    """
    if not is_mapping(node) or is_state_dict(node):
        return False
    stands_in: dict[int, int] = {id(node): 0}
    pending: list[Any] = [node]
    while pending:
        one = pending.pop()
        fine = known.get(id(one))
        if fine is None:
            fine = is_mapping(one) and bool(one.entries) and not _names_layers(one)
            below = [value for _, value in one.entries] if fine and not is_state_dict(one) else []
            pending += [value for value in below if stands_in.setdefault(id(value), id(one)) == id(one)]
        if not fine:
            at = id(one)
            while at:
                known[at] = False
                at = stands_in[at]
            return False
    known.update(dict.fromkeys(stands_in, True))
    return True


def _holds_others(node: Any) -> bool:
    return is_mapping(node) or isinstance(node, List | tuple)


def weights_of_optimizer(node: Any) -> Any:
    """The weights in an optimizer of old Flax, a dict of `target` (the weights) and `state` (the optimizer's own), in
    which T5X keeps all that it saves (`flax.optim.Optimizer`), or of `target` alone. None for other optimizers.
    """
    if not is_mapping(node) or not {*key_column(node.entries)} <= {"target", "state"}:
        return None
    return next((value for key, value in node.entries if key == "target" and _holds_others(value)), None)


def _is_optimizer(node: Mapped) -> bool:
    return {"param_groups", "state"} <= {key for key, _ in node.entries if isinstance(key, str)}


def around(root: Any, held: Any) -> list[str]:
    """What stands around HELD in the tree below ROOT, an entry a line, with the number of tensors in it."""
    lines: list[str] = []
    if held is root:
        return lines
    holders = _holders(root, held)
    opened: set[int] = set()
    counts: dict[int, int] = {}
    pending: list[tuple[str, Any]] = [("", root)]
    while pending:
        path, node = pending.pop()
        if node is held or isinstance(node, Global):  # the class of an object around them
            continue
        if id(node) in opened:
            continue
        if id(node) in holders:
            opened.add(id(node))
            parts = [(component_text(part), child) for part, child in children(node)]
            pending.extend((f"{path}/{text}"[:_SHOWN] if path else text, child) for text, child in reversed(parts))
            continue
        if id(node) not in counts:
            counts[id(node)] = sum(isinstance(found, LazyTensor) for _, found in walk(node))
        tensors = counts[id(node)]
        lines.append(printable(path, 80) + (f" ({counted(tensors, 'tensor')})" if tensors else ""))
    return lines


def _holders(root: Any, held: Any) -> set[int]:
    """The ids of all containers below ROOT that HELD is in, at any depth."""
    above: dict[int, list[int]] = defaultdict(list)
    for _, node in walk(root):
        if isinstance(node, (tuple, *NODES)):
            for _, child in children(node):
                if isinstance(child, (tuple, *NODES)):
                    above[id(child)].append(id(node))
    found: set[int] = set()
    pending = [id(held)]
    while pending:
        new = [one for one in above[pending.pop()] if one not in found]
        found.update(new)
        pending += new
    return found
