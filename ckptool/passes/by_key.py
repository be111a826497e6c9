"""The passes: what can be done to a checkpoint before it is written.

Each takes a `Checkpoint`, or a plain dict of tensors as torch.load returns it (bare, or in an envelope), and returns a
new one of the same kind. None of them reads or moves a tensor. They find the weights themselves; AT names the path of
the state dict where there are several. What a pass did is in the `history` of the checkpoint.

A rule that matches nothing raises `NoMatch` (with `missing="ok"` it changes nothing instead), and two keys that would
become one raise `KeyCollision`.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, wraps
from typing import Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

from .. import keys as names
from ..checkpoint import Checkpoint, StateDict, around, from_plain, map_storages, to_plain
from ..disk.files import beside, shell_path, shell_quote
from ..errors import NoMatch, PartialMatch, RuleError, counted, printable
from ..inert import decode
from ..inert.other_tensors import OtherTensor, others_in
from ..inert.pickled_models import has_own_ways
from ..keys import Pattern, Rename
from ..tensor import LazyTensor, Storage
from ..tree import Paths, rebuild, walk
from . import cleaning
from .locations import LocationRule, Rules, kept_on_cpu, mentions, new_location, parse_rules
from .rekeying import rekey

Missing = Literal["error", "ok"]
#: A checkpoint, or a plain dict of tensors; a pass returns what it was given.
AnyCheckpoint = TypeVar("AnyCheckpoint", Checkpoint, Mapping[str, Any])
_Options = ParamSpec("_Options")


class _Pass(Protocol[_Options]):
    """A pass that gives a Checkpoint for a Checkpoint and a dict for a dict."""

    def __call__(self, ckpt: Checkpoint, *args: _Options.args, **options: _Options.kwargs) -> Checkpoint: ...


def _on_plain_dicts_too(pass_: Callable[Concatenate[Checkpoint, _Options], Checkpoint]) -> _Pass[_Options]:
    """Let a pass that works on a Checkpoint take a plain dict as well."""

    @wraps(pass_)
    def either(ckpt: Any, *args: _Options.args, **options: _Options.kwargs) -> Any:
        if isinstance(ckpt, Checkpoint):
            return pass_(ckpt, *args, **options)
        if not isinstance(ckpt, Mapping):
            raise TypeError(f"a pass takes a Checkpoint or a dict of tensors, not {type(ckpt).__name__}")
        return to_plain(pass_(Checkpoint(from_plain(ckpt)), *args, **options).root)

    return either


@_on_plain_dicts_too
def strip_prefix(
    ckpt: Checkpoint,
    prefix: str = "module.",
    *,
    first: bool = False,
    at: str | None = None,
    missing: Missing = "error",
) -> Checkpoint:
    """Remove PREFIX from every key: `module.conv1.weight` becomes `conv1.weight`.

    Whole components at the start only, so inner names (`module.mlp_module.w`) are safe. With FIRST, the first component
    goes whatever it is.

    Raises:
        RuleError: the prefix is empty.
        NoMatch: no key has the prefix.
        PartialMatch: only some keys have it.
        KeyCollision: two keys would become one.
    """
    weights = _changeable(ckpt, at)
    head = "" if first else _head(prefix)
    shown = "the first component" if first else f"'{printable(head)}.'"
    new = {key: names.drop_first(key) if first else names.strip_prefix(key, prefix) for key in weights}
    fitting = {key: value for key, value in new.items() if value is not None}
    if not fitting:
        if missing == "ok":
            return ckpt.noting(f"strip {shown}: 0 of {counted(len(new), 'key has', 'keys have')} it")
        raise NoMatch(
            f"no key starts with {shown}" if not first else "no key has more than one component",
            where=ckpt.where,
            evidence=_key_evidence(weights),
            hint=_prefix_hint(weights),
        )
    if len(fitting) < len(new):
        without = [key for key, value in new.items() if value is None]
        raise PartialMatch(
            f"{shown} fits {len(fitting):,} of {counted(len(new), 'key')}; these do not have it:",
            where=ckpt.where,
            evidence=_few(without),
            hint=None if first else _rename_hint(ckpt, head, at),
        )
    done = rekey(ckpt, weights.path, weights.node, fitting, f"without {shown}")
    return done.noting(f"strip {shown}: {len(fitting):,} of {counted(len(new), 'key')}{_at(weights)}")


@_on_plain_dicts_too
def add_prefix(ckpt: Checkpoint, prefix: str = "module.", *, at: str | None = None) -> Checkpoint:
    """Put PREFIX before every key: `conv1.weight` becomes `module.conv1.weight`, for a model wrapped in DataParallel.

    Raises:
        RuleError: the prefix is empty, has an empty component, or makes keys too long.
    """
    weights = _changeable(ckpt, at)
    head = _head(prefix)
    if not all(head.split(".")):
        raise RuleError(f"the prefix '{printable(prefix)}' has an empty component", where="--prefix", hint=_EXAMPLE)
    lengths = [len(key) + len(head) + 1 for key in weights]
    if max(lengths, default=0) > names.LONGEST_KEY or sum(lengths) > names.MOST_CHARACTERS:
        raise names.too_long(f"={head}")
    new = {key: names.add_prefix(key, head) for key in weights}
    done = rekey(ckpt, weights.path, weights.node, new)
    return done.noting(f"add '{printable(head)}.': {len(new):,} of {counted(len(new), 'key')}{_at(weights)}")


_EXAMPLE = "--prefix module."


def _head(prefix: str) -> str:
    """A prefix without its last dot, which may be left out."""
    head = prefix.removesuffix(".")
    if not head:
        raise RuleError("the prefix is empty", where="--prefix", hint=_EXAMPLE)
    return head


@_on_plain_dicts_too
def unwrap(ckpt: Checkpoint, *, at: str | None = None, missing: Missing = "error") -> Checkpoint:
    """Remove what wrappers put into keys: DataParallel, DDP, torch.compile, FSDP, activation checkpointing and others.

    In any order, repeatedly, also in the middle of a key. `module`, which may be a name of the model's own, is removed
    only where everything below its parent goes through it. The counter `n_averaged` that AveragedModel puts beside its
    wrapped model is dropped.

    Raises:
        NoMatch: no key goes through a wrapper.
        KeyCollision: two keys would become one.
    """
    weights = _changeable(ckpt, at)
    found = names.find_wrappers(list(weights))
    if not found:
        if missing == "ok":
            return ckpt.noting("unwrap: no key goes through a wrapper")
        raise NoMatch("no key goes through a wrapper", where=ckpt.where, evidence=_key_evidence(weights))
    new: dict[str, str | None] = dict(names.unwrap(list(weights)))
    lines = [f"unwrap {name}: {count:,} of {counted(len(new), 'key')}{_at(weights)}" for name, count in found.items()]
    for counter in [key for key, short in new.items() if short == names.AVERAGED_COUNTER]:
        beside = counter.removesuffix(names.AVERAGED_COUNTER) + "module."
        if "module." in found and all(key.startswith(beside) for key in new if key != counter):
            new[counter] = None
            lines.append("unwrap: n_averaged, the counter of AveragedModel, left behind")
    return rekey(ckpt, weights.path, weights.node, new, "unwrapped").noting(*lines)


@_on_plain_dicts_too
def rename(
    ckpt: Checkpoint,
    rules: str | Rename | Sequence[str | Rename] | Mapping[str, str],
    *,
    at: str | None = None,
    missing: Missing = "error",
) -> Checkpoint:
    """Rename keys by rules OLD=NEW. The first rule that matches a key counts; the other keys stay.

    OLD matches whole components from the start of a key; `{}` stands for one of them or a part of one, `{...}` for
    several, and `re:` begins a regular expression (see `ckptool.keys`). A dict gives OLD -> NEW.

    Raises:
        NoMatch: one of the rules matches no key.
        KeyCollision: two keys would become one.
        RuleError: a rule cannot be understood.
    """
    weights = _changeable(ckpt, at)
    if isinstance(rules, Mapping):
        parsed = [Rename(old, new) for old, new in rules.items()]
    else:
        listed = [rules] if isinstance(rules, str | Rename) else rules
        parsed = [rule if isinstance(rule, Rename) else Rename.parse(rule) for rule in listed]
    used: Counter[int] = Counter()
    matched: Counter[int] = Counter()
    new: dict[str, str | None] = {}
    room = max(names.MOST_CHARACTERS, sum(map(len, weights)))
    for key in weights:
        for index, rule in enumerate(parsed):
            made = rule.apply(key)
            if made is not None:
                matched[index] += 1
                if key not in new:
                    room -= len(made)
                    if room < 0 or len(made) > max(len(key), names.LONGEST_KEY):
                        raise names.too_long(rule)
                    new[key] = made
                    used[index] += 1
    idle = [rule for index, rule in enumerate(parsed) if not matched[index]]
    if idle and missing == "error":
        raise NoMatch(
            f"no key matches '{printable(str(idle[0]))}'",
            where=ckpt.where,
            evidence=_key_evidence(weights, str(idle[0]).split("=")[0]),
            hint="--if-present lets rules match nothing",
        )
    lines = [
        f"rename {printable(str(r))}: {used[i]:,} of {counted(len(weights), 'key')}{_at(weights)}"
        for i, r in enumerate(parsed)
    ]
    return rekey(ckpt, weights.path, weights.node, new).noting(*lines)


@_on_plain_dicts_too
def select(
    ckpt: Checkpoint, patterns: str | Sequence[str], *, at: str | None = None, missing: Missing = "error"
) -> Checkpoint:
    """Keep only the keys that match one of PATTERNS (`features` keeps everything below it)."""
    return _filter(ckpt, patterns, at, missing, keep=True)


@_on_plain_dicts_too
def drop(
    ckpt: Checkpoint, patterns: str | Sequence[str], *, at: str | None = None, missing: Missing = "error"
) -> Checkpoint:
    """Leave out the keys that match one of PATTERNS (`classifier.6` drops its weight and its bias)."""
    return _filter(ckpt, patterns, at, missing, keep=False)


def _filter(
    ckpt: Checkpoint, patterns: str | Sequence[str], at: str | None, missing: Missing, *, keep: bool
) -> Checkpoint:
    weights = _changeable(ckpt, at)
    parsed = patterns_for(weights, patterns, ckpt, missing)
    gone: dict[str, str | None] = {
        key: None for key in weights if any(pattern.matches(key) for pattern in parsed) != keep
    }
    if len(gone) == len(weights):
        raise NoMatch("no key would be left", where=ckpt.where, evidence=_key_evidence(weights))
    done = rekey(ckpt, weights.path, weights.node, gone)
    word = "select" if keep else "drop"
    return done.noting(f"{word}: {len(weights) - len(gone):,} of {counted(len(weights), 'key')} kept{_at(weights)}")


def patterns_for(
    weights: StateDict, patterns: str | Sequence[str], ckpt: Checkpoint, missing: Missing
) -> list[Pattern]:
    """PATTERNS, each of which must match a key of WEIGHTS.

    Raises:
        NoMatch: one matches none, and MISSING does not allow that.
    """
    parsed = [Pattern.parse(text) for text in ([patterns] if isinstance(patterns, str) else patterns)]
    for pattern in parsed:
        if missing == "error" and not any(pattern.matches(key) for key in weights):
            raise NoMatch(
                f"no key matches '{printable(pattern.text)}'",
                where=ckpt.where,
                evidence=_key_evidence(weights, pattern.text),
                hint="--if-present lets patterns match nothing",
            )
    return parsed


@_on_plain_dicts_too
def extract(ckpt: Checkpoint, *, at: str | None = None) -> Checkpoint:
    """Keep only the weights: the state dict becomes the root, and what stood around it is left behind.

    From a whole pickled model the state dict is recovered, as `model.state_dict()` would give it, without its class.
    """
    weights = ckpt.state_dict(at)
    if weights.node is ckpt.root:
        return replace(ckpt, at="").noting("extract: the weights are all there is")
    left = around(ckpt, weights)
    path = f" {printable(weights.path, 60)}" if weights.path else ""
    behind = ", ".join(left[:12] + ["…"] * (len(left) > 12)) or "nothing"
    notes = [f"extract{path}: {counted(len(weights), 'key')} kept; left behind: {behind}"]
    if weights.model is not None and has_own_ways(weights.model):
        notes.append("note: the model has functions that change its state dict when it is made; they were not run")
    if weights.aside:
        notes.append(f"note: no state dict holds these tensors among the model's attributes: {_some(weights.aside)}")
    if weights.strangers:
        notes.append(
            f"note: if these classes add to a state dict by code, that is not in it: {_some(weights.strangers)}"
        )
    lost = (*ckpt.lost_content, *weights.lost)
    return replace(ckpt, root=weights.node, at="", sealed="", lost_content=lost).noting(*notes)


def _some(names: Sequence[str]) -> str:
    shown = [printable(name, 60) for name in names[:5]]
    return ", ".join(shown) + (f" and {len(names) - 5:,} more" if len(names) > 5 else "")


def clean(ckpt: Checkpoint) -> Checkpoint:
    """Keep what `torch.load(weights_only=True)` loads: tensors and plain data. The rest is turned into it, or left out.

    Paths, dates and numbers of other classes become text or numbers; Namespaces, OmegaConf and other objects with
    attributes or items become dicts and lists; numpy arrays become tensors, whole models their state dicts. Functions
    and what would have to be run are left out. Every change is a line of the history.
    """
    root, changes = cleaning.clean(ckpt.root, ckpt.where)
    folded: dict[tuple[str, str, str], list[str]] = {}
    for change in changes:
        folded.setdefault((_NUMBERS.sub("{}", change.path), change.was, change.now), []).append(change.path)
    lines = []
    for (pattern, was, now), paths in folded.items():
        place = printable(paths[0] or "the root", 100)
        if len(paths) > 1:
            place = f"{printable(pattern, 100)} ({len(paths):,} places)"
        lines.append(f"clean {place}: {printable(was, 100)} -> {printable(now, 100)}")
    lines += [f"clean: {line}, left out" for line in ckpt.lost_content]
    lines = lines or ["clean: nothing had to be changed"]
    return replace(ckpt, root=root, at=None, sealed="", lost_content=()).noting(*lines)


_NUMBERS = re.compile(r"(?<![^/])\d+(?![^/])")


def to_dense(ckpt: Checkpoint, *, missing: Missing = "error") -> Checkpoint:
    """Make dense tensors of sparse ones, wherever they are in the file, for formats that hold no others.

    Their values are put in place when they are written; the index tensors are read and checked now.

    Raises:
        NoMatch: there is no sparse tensor.
        CannotCarry: a dense tensor would be absurdly large.
    """
    return _decoded(ckpt, missing, "to-dense", lambda kind: kind.startswith("sparse"), "sparse", decode.to_dense)


def dequantize(ckpt: Checkpoint, *, missing: Missing = "error") -> Checkpoint:
    """Make float32 tensors of quantized ones, wherever they are in the file: (q - zero point) * scale.

    Raises:
        NoMatch: there is no quantized tensor.
    """
    quantized = "quantized".__eq__
    return _decoded(ckpt, missing, "dequantize", quantized, "quantized", decode.dequantized)


def _decoded(
    ckpt: Checkpoint,
    missing: Missing,
    name: str,
    wanted: Callable[[str], bool],
    word: str,
    decoded: Callable[[OtherTensor], LazyTensor],
) -> Checkpoint:
    """CKPT with the tensors of a kind replaced by what DECODED makes of them."""
    found = [(node, other) for _, node, other in others_in(ckpt.root) if wanted(other.kind)]
    if not found and missing == "error":
        raise NoMatch(f"no tensor is {word}", where=ckpt.where, hint="--if-present lets rules match nothing")
    made = {id(node): decoded(other) for node, other in found}
    before, after = sum(other.nbytes for _, other in found), sum(tensor.nbytes for tensor in made.values())
    line = f"{name}: {counted(len(found), f'{word} tensor')}, {before:,} bytes -> {after:,}"
    return replace(ckpt, root=rebuild(ckpt.root, instead=made)).noting(line)


def map_location(ckpt: AnyCheckpoint, rules: Rules, *, missing: Missing = "error") -> AnyCheckpoint:
    """Change where storages say they are: "cpu", "cuda:1->cuda:0", "cuda:*=cpu", {"cuda:1": "cuda:0"}, several at once.

    Every storage in the file is reached, also in optimizers and pickled objects. On the CPU stay the states of random
    number generators and the `step` of Adam, which torch refuses elsewhere. Other places where a device is written
    down (torch.device objects, texts) are listed in the history and left as they are.

    On a plain dict of torch tensors the tensors themselves are moved, as torch.load would; ties stay ties.

    Raises:
        NoMatch: no storage is at a location that a rule names, and not all are where it should bring them.
        RuleError: a word is no location.
    """
    parsed = parse_rules(rules)
    moved: Any
    if isinstance(ckpt, Checkpoint):
        moved = _relocate(ckpt, parsed, missing)
    else:
        from ..torch_bridge import devices, move

        _require_match(parsed, Counter(devices(ckpt)), devices(ckpt), missing, "")
        moved = move(ckpt, lambda device: new_location(device, parsed))
    return moved  # type: ignore[no-any-return]


def _relocate(ckpt: Checkpoint, parsed: Sequence[LocationRule], missing: Missing) -> Checkpoint:
    held = _held_on_cpu(ckpt)
    before = Counter(storage.location for storage in ckpt.storages())
    movable = {storage.location for storage in ckpt.storages() if id(storage) not in held}
    _require_match(parsed, before, movable, missing, ckpt.where)
    moved: Counter[str] = Counter()
    new_of = cache(lambda location: new_location(location, parsed))

    def change(storage: Storage) -> Storage:
        new = new_of(storage.location)
        if new is None or new == storage.location or (id(storage) in held and new != "cpu"):
            return storage
        moved[f"{printable(storage.location)} -> {new}"] += 1
        return replace(storage, location=new)

    done = map_storages(ckpt, change)
    total = sum(before.values())
    lines = [f"map-location {step}: {count:,} of {counted(total, 'storage')}" for step, count in moved.items()]
    if not lines:
        there = "; all are where they should be" if movable <= {rule.target for rule in parsed} and movable else ""
        lines = [f"map-location: 0 of {counted(total, 'storage')} changed{there}"]
    if held and any(rule.takes("cpu") and rule.target != "cpu" for rule in parsed):
        stay = counted(len(held), "storage stays", "storages stay")
        lines.append(f"note: {stay} on cpu (random number generators, steps of Adam)")
    written = mentions(done.root)
    lines += [
        f"note: {printable(place, 60) or 'the root'} also names a device ({printable(text, 40)}); left as it is"
        for place, text in written[:_MENTIONS_SHOWN]
    ]
    if len(written) > _MENTIONS_SHOWN:
        lines.append(f"note: {len(written) - _MENTIONS_SHOWN:,} more places name a device; left as they are")
    return done.noting(*lines)


_MENTIONS_SHOWN = 8


def _require_match(
    rules: Sequence[LocationRule], before: Counter[str], movable: set[str], missing: Missing, where: str
) -> None:
    """Refuse a rule that speaks of no storage, unless all that can move are already where it brings them."""
    for rule in rules:
        idle = rule.source is not None and not any(map(rule.takes, before)) and movable != {rule.target}
        if idle and missing == "error" and before:
            raise NoMatch(
                f"no storage is on {rule.source}",
                where=where,
                evidence=[", ".join(f"{printable(place)}: {counted(n, 'storage')}" for place, n in before.items())],
                hint=_other_rule(rule, sorted(movable)),
            )


def _other_rule(rule: LocationRule, places: Sequence[str]) -> str:
    source = next((place for place in places if place != rule.target), None)
    if source is None:
        return "--if-present lets rules match nothing"
    return f"--map-location {shell_quote(f'{source}={rule.target}', 200)}"


def _held_on_cpu(ckpt: Checkpoint) -> set[int]:
    """The storages on the CPU that must stay there; one that a weight shares is not held."""
    held: dict[int, bool] = {}
    paths = Paths()
    for trail, node in walk(ckpt.root):
        storage = node.storage if isinstance(node, LazyTensor) else node
        if isinstance(storage, Storage) and storage.location == "cpu":
            held[id(storage)] = held.get(id(storage), True) and kept_on_cpu(paths.of(trail))
    return {key for key, stays in held.items() if stays}


def _changeable(ckpt: Checkpoint, at: str | None) -> StateDict:
    """The state dict whose keys a pass changes.

    Raises:
        RuleError: its keys are attributes of a pickled model, which cannot be renamed there.
    """
    weights = ckpt.state_dict(at)
    if ckpt.sealed:
        raise RuleError(ckpt.sealed, where=ckpt.where, hint=_extract_hint(ckpt, weights))
    if weights.model is not None:
        raise RuleError(
            f"its keys are attributes of a whole pickled model ({printable(weights.model.class_name, 80)}), and its "
            "code needs them as they are",
            where=ckpt.where,
            hint=_extract_hint(ckpt, weights),
        )
    return weights


# -- words for messages


def _file(ckpt: Checkpoint) -> str:
    return shell_path(ckpt.where) if ckpt.path else "IN"


def _extract_hint(ckpt: Checkpoint, weights: StateDict) -> str:
    at = f" --at {shell_quote(weights.path, 200)}" if len(ckpt.state_dicts()) > 1 else ""
    out = beside(ckpt.where, "weights", ".safetensors")
    return f"ckptool extract-weights {_file(ckpt)} {out}{at} takes the weights out of it first"


def _rename_hint(ckpt: Checkpoint, head: str, at: str | None) -> str:
    rule = shell_quote(f"{head}=", 200)
    place = "" if at is None else f" --at {shell_quote(at, 200)}"
    files = f"{_file(ckpt)} {beside(ckpt.where, 'plain')}"
    return f"ckptool rename {files} --rename {rule}{place} changes only the keys that have it"


def _at(weights: StateDict) -> str:
    return f" in {printable(weights.path, 60)}" if weights.path else ""


def _few(listed: Sequence[str], limit: int = 5) -> list[str]:
    shown = [printable(key, 100) for key in listed[:limit]]
    return shown + ([f"… and {len(listed) - limit:,} more"] if len(listed) > limit else [])


def _key_evidence(weights: StateDict, wanted: str = "") -> list[str]:
    leading = names.leading(list(weights))
    shown = ", ".join(f"'{printable(name, 60)}' ({count:,})" for name, count in leading[:6])
    lines = [
        f"the {counted(len(weights), 'key starts', 'keys start')} with: {shown}{', …' if len(leading) > 6 else ''}"
    ]
    near = names.closest(wanted, list(weights)) if wanted else []
    return lines + ([f"did you mean: {', '.join(printable(key, 80) for key in near)}"] if near else [])


def _prefix_hint(weights: StateDict) -> str | None:
    common = names.common_prefix(list(weights))
    return f"--prefix {shell_quote(common.split('.')[0] + '.', 200)}" if common else None


__all__ = [
    "LocationRule",
    "add_prefix",
    "clean",
    "dequantize",
    "drop",
    "extract",
    "map_location",
    "rename",
    "select",
    "strip_prefix",
    "to_dense",
    "unwrap",
]
