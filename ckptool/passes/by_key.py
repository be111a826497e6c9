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

from .. import keys as names
from ..checkpoint import Checkpoint, StateDict
from ..disk.files import shell_quote
from ..errors import NoMatch, PartialMatch, RuleError, counted, printable
from ..inert import decode
from ..inert.other_tensors import OtherTensor, others_in
from ..keys import Pattern, Rename
from ..tensor import LazyTensor
from ..tree import rebuild
from ._plain import Missing, on_plain_dicts_too
from ._words import changeable, few, key_evidence, prefix_hint, rename_hint, rename_instead, told_instead, within
from .rekeying import rekey


@on_plain_dicts_too
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
    weights = changeable(ckpt, at)
    head = "" if first else _head(prefix)
    shown = "the first component" if first else f"'{printable(head)}.'"
    new = {key: names.drop_first(key) if first else names.strip_prefix(key, prefix) for key in weights}
    without = [key for key, value in new.items() if value is None]
    if len(without) == len(new):
        if missing == "ok":
            return ckpt.noting(f"strip {shown}: 0 of {counted(len(new), 'key has', 'keys have')} it")
        raise NoMatch(
            f"no key starts with {shown}" if not first else "no key has more than one component",
            where=ckpt.where,
            evidence=key_evidence(weights),
            hint=prefix_hint(weights),
        )
    if without:
        fitting = [value for value in new.values() if value is not None]
        instead = () if first else rename_instead(head, fitting, without)
        refusal = PartialMatch(
            f"{shown} fits {len(fitting):,} of {counted(len(new), 'key')}; these do not have it:",
            where=ckpt.where,
            evidence=few(without),
            hint=None if first else rename_hint(ckpt, instead, at),
        )
        refusal.instead = instead
        raise refusal
    done = rekey(ckpt, weights, new, f"without {shown}")
    return done.noting(f"strip {shown}: {len(new):,} of {counted(len(new), 'key')}{within(weights)}")


@on_plain_dicts_too
def add_prefix(ckpt: Checkpoint, prefix: str = "module.", *, at: str | None = None) -> Checkpoint:
    """Put PREFIX before every key: `conv1.weight` becomes `module.conv1.weight`, for a model wrapped in DataParallel.

    Raises:
        RuleError: the prefix is empty, has an empty component, or makes keys too long.
    """
    weights = changeable(ckpt, at)
    head = _head(prefix)
    if not all(head.split(".")):
        raise RuleError(f"the prefix '{printable(prefix)}' has an empty component", where="--prefix", hint=_EXAMPLE)
    lengths = [len(key) + len(head) + 1 for key in weights]
    if max(lengths, default=0) > names.LONGEST_KEY or sum(lengths) > names.MOST_CHARACTERS:
        raise names.too_long(f"={head}")
    new = {key: names.add_prefix(key, head) for key in weights}
    done = rekey(ckpt, weights, new)
    return done.noting(f"add '{printable(head)}.': {len(new):,} of {counted(len(new), 'key')}{within(weights)}")


_EXAMPLE = "--prefix module."


def _head(prefix: str) -> str:
    """A prefix without its last dot, which may be left out."""
    head = prefix.removesuffix(".")
    if not head:
        raise RuleError("the prefix is empty", where="--prefix", hint=_EXAMPLE)
    return head


@on_plain_dicts_too
def unwrap(ckpt: Checkpoint, *, at: str | None = None, missing: Missing = "error") -> Checkpoint:
    """Remove what wrappers put into keys: DataParallel, DDP, torch.compile, FSDP, activation checkpointing and others.

    In any order, repeatedly, also in the middle of a key. `module`, which may be a name of the model's own, is removed
    only where everything below its parent goes through it. The counter `n_averaged` that AveragedModel puts beside its
    wrapped model is dropped.

    Raises:
        NoMatch: no key goes through a wrapper.
        KeyCollision: two keys would become one.
    """
    weights = changeable(ckpt, at)
    if not (found := weights.wrappers):
        if missing == "ok":
            return ckpt.noting("unwrap: no key goes through a wrapper")
        raise NoMatch("no key goes through a wrapper", where=ckpt.where, evidence=key_evidence(weights))
    new: dict[str, str | None] = dict(names.unwrap(weights, weights.outline))
    lines = [
        f"unwrap {name}: {count:,} of {counted(len(new), 'key')}{within(weights)}" for name, count in found.items()
    ]
    ends_so = new.items() if names.AVERAGED_COUNTER in weights.outline else ()
    for counter in [key for key, short in ends_so if short == names.AVERAGED_COUNTER]:
        beside = counter.removesuffix(names.AVERAGED_COUNTER) + "module."
        if "module." in found and all(key.startswith(beside) for key in new if key != counter):
            new[counter] = None
            lines.append("unwrap: n_averaged, the counter of AveragedModel, left behind")
    return rekey(ckpt, weights, new, "unwrapped").noting(*lines)


@on_plain_dicts_too
def rename(
    ckpt: Checkpoint,
    rules: str | Rename | Sequence[str | Rename] | Mapping[str, str] | Callable[[str], str | None],
    *,
    at: str | None = None,
    missing: Missing = "error",
) -> Checkpoint:
    """Rename keys by rules OLD=NEW. The first rule that matches a key counts; the other keys stay.

    OLD matches whole components from the start of a key; `{}` stands for one of them or a part of one, `{...}` for
    several, and `re:` begins a regular expression (see `ckptool.keys`). A dict gives OLD -> NEW. A function
    takes each key and returns the new one, or None to leave the key out.

    Raises:
        NoMatch: one of the rules matches no key.
        KeyCollision: two keys would become one.
        RuleError: a rule cannot be understood.
    """
    weights = changeable(ckpt, at)
    if callable(rules) and not isinstance(rules, Rename):
        return _renamed_by(ckpt, weights, rules)
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
            evidence=key_evidence(weights, str(idle[0]).split("=")[0]),
            hint=_deeper(idle[0], weights) or "--if-present   # lets rules match nothing",
        )
    lines = [
        f"rename {printable(str(r))}: {used[i]:,} of {counted(len(weights), 'key')}{within(weights)}"
        for i, r in enumerate(parsed)
    ]
    return rekey(ckpt, weights, new).noting(*lines)


def _deeper(rule: Rename, weights: StateDict) -> str:
    """The rule for the same components where they stand deeper in a key, as an option; "" if no key has them."""
    old, _, new = str(rule).partition("=")
    try:
        deeper = Rename.parse(f"{{...}}.{old}={{...}}.{new}" if new else f"{{...}}.{old}={{...}}")
    except RuleError:  # an expression, or a hole of several components
        return ""
    if not any(deeper.apply(key) is not None for key in weights):
        return ""
    return f"--rename {shell_quote(str(deeper), 200)}   # a rule without {{...}} begins at the start of a key"


def _renamed_by(ckpt: Checkpoint, weights: StateDict, function: Callable[[str], str | None]) -> Checkpoint:
    """The keys as FUNCTION gives them."""
    new: dict[str, str | None] = {}
    for key in weights:
        made = function(key)
        if not isinstance(made, str | None):
            what = f"the function of rename gave {type(made).__name__} for the key {key!r}, not a string or None"
            raise TypeError(what)
        new[key] = made
    changed = sum(old != made for old, made in new.items())
    name = printable(getattr(function, "__name__", type(function).__name__), 40)
    done = rekey(ckpt, weights, new)
    return done.noting(f"rename by {name}: {changed:,} of {counted(len(weights), 'key')}{within(weights)}")


@on_plain_dicts_too
def select(
    ckpt: Checkpoint, patterns: str | Sequence[str], *, at: str | None = None, missing: Missing = "error"
) -> Checkpoint:
    """Keep only the keys that match one of PATTERNS (`features` keeps everything below it)."""
    return _filter(ckpt, patterns, at, missing, keep=True)


@on_plain_dicts_too
def drop(
    ckpt: Checkpoint, patterns: str | Sequence[str], *, at: str | None = None, missing: Missing = "error"
) -> Checkpoint:
    """Leave out the keys that match one of PATTERNS (`classifier.6` drops its weight and its bias)."""
    return _filter(ckpt, patterns, at, missing, keep=False)


def _filter(
    ckpt: Checkpoint, patterns: str | Sequence[str], at: str | None, missing: Missing, *, keep: bool
) -> Checkpoint:
    weights = changeable(ckpt, at)
    parsed = patterns_for(weights, patterns, ckpt, missing)
    gone: dict[str, str | None] = {
        key: None for key in weights if any(pattern.matches(key) for pattern in parsed) != keep
    }
    if len(gone) == len(weights):
        raise NoMatch("no key would be left", where=ckpt.where, evidence=key_evidence(weights))
    done = rekey(ckpt, weights, gone)
    word = "select" if keep else "drop"
    return done.noting(f"{word}: {len(weights) - len(gone):,} of {counted(len(weights), 'key')} kept{within(weights)}")


#: Rules run before patterns are looked at.
_PATTERN_HINT = "patterns see the names that will be written"


def _anywhere(pattern: Pattern, weights: StateDict) -> str:
    """The expression that finds the text of a pattern where it is not at the beginning of a key."""
    found = pattern.anywhere(weights)
    return f"{shell_quote(found, 200)} finds it anywhere in a key" if found else ""


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
                evidence=key_evidence(weights, pattern.text),
                hint=f"{_PATTERN_HINT}; {_anywhere(pattern, weights) or '--if-present skips those that match nothing'}",
            )
    return parsed


def clean(ckpt: Checkpoint) -> Checkpoint:
    """Keep what `torch.load(weights_only=True)` loads: tensors and plain data. The rest is turned into it, or left out.

    Paths, dates and numbers of other classes become text or numbers; Namespaces, OmegaConf and other objects with
    attributes or items become dicts and lists; numpy arrays become tensors, whole models their state dicts. Functions
    and what would have to be run are left out. Every change is a line of the history.
    """
    from . import cleaning

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
        raise NoMatch(f"no tensor is {word}", where=ckpt.where, hint="--if-present   # lets rules match nothing")
    made = {id(node): decoded(other) for node, other in found}
    before, after = sum(other.nbytes for _, other in found), sum(tensor.nbytes for tensor in made.values())
    line = f"{name}: {counted(len(found), f'{word} tensor')}, {before:,} bytes -> {after:,}"
    return replace(ckpt, root=rebuild(ckpt.root, instead=made)).noting(line)


__all__ = [
    "Missing",
    "add_prefix",
    "clean",
    "drop",
    "patterns_for",
    "rename",
    "select",
    "strip_prefix",
    "to_dense",
    "told_instead",
    "unwrap",
]
