"""Match a file with a model: choose its state dict, rename its keys by hints, and make the mapping."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from ..checkpoint import Checkpoint, StateDict
from ..disk.files import shell_path
from ..errors import NoMatch, NotFound, RuleError, counted, printable
from ..keys import Rename, closest, unwrap
from ..keys.known_buffers import is_counter
from ..model_code.signature import Entry as Wanted
from ..model_code.signature import Signature, of_state_dict
from ..tensor import LazyTensor
from ..tree import Dict, descend, names_in, walk
from . import expression as ex
from .applying import open_source
from .bounds import likely, require_size, stand_ins, under
from .expression import Expr
from .forms.copies import doubles
from .forms.nameless import doubt_order, named_by_position
from .forms.own_code import named_alike
from .forms.pieces import squeezed
from .forms.ranks import joined_ranks
from .mapping import Entry, Mapping, different
from .port import port
from .questions import Question, Reason, ask
from .words import cut, table

#: Elements of a tensor whose values may be looked at while matching (norm weights).
_SMALL = 1 << 16


def match_signature(
    source: Any,
    target: Signature,
    *,
    at: str | None = None,
    hints: Sequence[str | Rename] = (),
    source_code: Signature | None = None,
) -> Mapping:
    """Return the mapping from SOURCE to TARGET, with an entry for each key of TARGET.

    Of several state dicts (the 16 likeliest are tried; a note says if there are more), the one that fills most elements
    of the model, zeros not counted, is used; of equals, first the one whose path names the model (`_named_by_model`),
    then the one with the more usual name ("model" before "ema"), then the first. If others fill as much, and the path
    of the used one does not name the model, every entry with an expression becomes a guess (`_one_of_several`). State
    dicts without tensors, or without keys of SOURCE_CODE, are skipped.

    All state dicts count as one source together (`_all_together`; shares of ranks may be joined) in three cases:

      - there are more than eight, and none has a "." or "/" in its keys: each is one module. Tensors of floating type
        that are directly in a dict around them belong to it, too;
      - there are two to eight, the best one alone leaves some of the model without a source, and together they fill
        over 5 % more of the model than the best one alone (any more is enough, if they are read from another state dict
        that has the name of a module of the model, `_named_as_parts`);
      - there are two to eight, and none alone has keys of SOURCE_CODE.

    Without AT, tensors beside a state dict are read as well, if that fills more (`_beside`). The mapping has the path
    of the state dict as its `at` (of several together, that of the first) if AT is given or there are several.
    Args:
        source: a path, a Checkpoint or a dict of torch tensors.
        target: the signature of a model.
        at: where the weights are in the file, if there are several.
        hints: OLD=NEW, from a name of the source to what the model calls it; used for matching only.
        source_code: the signature of the source's own code, whose order of execution then counts, too.

    Raises:
        NotFound: there is no state dict in the source, all are empty, none has the keys of SOURCE_CODE, or a key has a
            number of more than 1,000 digits.
        NoMatch: a hint matches no key.
        RuleError: the source has far too many tensors, a hint cannot be read, or hints give two keys one name.
    """
    ckpt = open_source(source)
    found = [ckpt.state_dict(at)] if at is not None or len(ckpt.state_dicts()) < 2 else ckpt.state_dicts()
    scale = _lora_scale(ckpt)
    if len(found) > _MOST_PARTS and all(_is_one_module(weights) for weights in found):
        return _all_together(ckpt, [*found, *_around_modules(ckpt, found)], target, hints, scale, source_code)
    several, found = len(found), likely(found, target)
    made: list[tuple[StateDict, Mapping]] = []
    others: NotFound | None = None
    for weights in found:
        try:
            signature = _with_code(of_state_dict(weights, ckpt, ordered=ckpt.order_preserved), source_code)
        except NotFound as error:  # the code is that of another state dict of the file
            others = error
            continue
        if signature.entries:
            made.append((weights, _ported(signature, target, weights.tensors, hints, scale)))
    if not made and others is not None and 1 < len(found) <= _MOST_PARTS:
        return _all_together(ckpt, found, target, hints, scale, source_code)
    if not made:
        raise others or NotFound("holds no tensors", where=ckpt.where)
    meant = _named_by_model([weights.path for weights, _ in made], target)
    made.sort(key=lambda one: (-_covered(one[1]), one[0].path != meant, _preference(one[0].path)))
    weights, best = made[0]
    if len(found) < several:
        best = replace(best, notes=(*best.notes, f"of {several:,} state dicts the {len(found)} likeliest were tried"))
    beside = _beside(ckpt, found) if at is None else []
    apart = 1 < len(found) <= _MOST_PARTS and _covered(best) < _wanted(best)
    if apart or _could_use(best, beside):
        parts = [*(found if apart else [weights]), *beside]
        together = [_all_together(ckpt, parts, target, hints, scale, source_code)]
        if apart and source_code is None and (ranks := joined_ranks(found, target)) is not None:
            together.insert(0, ranks.mapping(_ported(ranks.signature(ckpt), target, ranks.tensors, hints, scale)))
        whole = max(together, key=_covered)
        parts_of_model = [path for path in _named_as_parts([w.path for w in found], target) if path != weights.path]
        read = {key for entry in whole.entries for key in entry.sources}
        needed = any(key.startswith(f"{path}/") for path in parts_of_model for key in read)
        if _covered(whole) > (1.05 if apart and not needed else 1) * _covered(best):
            return whole
    if at is not None:
        return replace(best, at=weights.path)
    if len(found) > 1:
        equals = [other for other in made[1:] if _covered(other[1]) == _covered(best)]
        best = replace(best, at=weights.path)
        if equals and weights.path != meant:
            best = _one_of_several(best, weights, equals)
    return best


#: State dicts of one file that are tried together, at most.
_MOST_PARTS = 8


def _beside(ckpt: Checkpoint, found: Sequence[StateDict]) -> list[StateDict]:
    """Return a further state dict for each dict of CKPT that directly holds one of the state dicts FOUND and also
    tensors of floating type, such as the mean of the data. The state dict has these tensors, without those that have
    the name of a key in FOUND. A dict of which no tensor is left gives none.
    """
    taken = {key for weights in found for key in weights.tensors}
    return _directly_in(ckpt, [weights.path.rpartition("/")[0] for weights in found if weights.path], taken)


def _around_modules(ckpt: Checkpoint, found: Sequence[StateDict]) -> list[StateDict]:
    """Return a further state dict for each dict of CKPT around the state dicts FOUND, at any distance, that directly
    holds tensors of floating type: in a tree of modules, the positions of an encoder stand beside its layers.
    """
    names = [weights.path.split("/") for weights in found if weights.path]
    return _directly_in(ckpt, ["/".join(parts[:n]) for parts in names for n in range(len(parts))])


def _directly_in(ckpt: Checkpoint, paths: Iterable[str], taken: Container[str] = ()) -> list[StateDict]:
    """Return the tensors of floating type that the dicts of CKPT at PATHS hold directly, as a state dict for each dict,
    without those whose name is in TAKEN.
    """
    made = []
    for path in dict.fromkeys(paths):
        node = descend(ckpt.root, path)
        own = [(key, value) for key, value in getattr(node, "entries", ()) if isinstance(value, LazyTensor)]
        own = [(key, value) for key, value in own if value.dtype.is_floating and key not in taken]
        if own:
            made.append(StateDict(Dict(own), path))
    return made


def _could_use(mapping: Mapping, beside: Sequence[StateDict]) -> bool:
    """Return whether a tensor of the state dicts BESIDE may fill a key that has no expression in MAPPING: both have the
    same sizes in the same order, without sizes of 1. Such keys are also buffers that need no source, but not counters
    of batch norms.
    """
    sizes = {squeezed(tensor.shape) for weights in beside for tensor in weights.tensors.values()}
    return any(e.expr is None and not is_counter(e.target) and squeezed(e.shape) in sizes for e in mapping.entries)


def _is_one_module(weights: StateDict) -> bool:
    """Return whether no key of WEIGHTS has a "." or "/": they hold one module. Frameworks of functions store such a
    dict for each module.
    """
    return not any("." in key or "/" in key for key in weights.tensors)


def _all_together(
    ckpt: Checkpoint,
    found: Sequence[StateDict],
    target: Signature,
    hints: Sequence[str | Rename],
    scale: float | None,
    code: Signature | None = None,
) -> Mapping:
    """Return the mapping from all state dicts FOUND in a file as one source: they are parts of one model.

    The key `fc.weight` of the state dict at `nets/head` is matched as `nets.head.fc.weight` (as `nets/head/fc.weight`,
    if a name in any of the paths has a "/"), and is `nets/head/fc.weight` in the mapping; a key at the root stays.
    If FOUND is one state dict and then the dict that holds it (`_beside`), keys are matched without paths, but have
    them in the mapping. HINTS are for the names as they are matched. The mapping's `at` is the path of the first. The
    other arguments are as in `match_signature`; SCALE is that of low-rank adapters, CODE is SOURCE_CODE.
    """
    tensors: dict[str, LazyTensor] = {}
    entries: dict[str, Wanted] = {}
    back: dict[str, str] = {}
    paths = {weights.path: names_in(weights.path) for weights in found}
    if len(found) == 2 and found[1].path == found[0].path.rpartition("/")[0]:  # one state dict, and what is beside it
        paths = {path: [] for path in paths}
    between = "/" if any("/" in part for parts in paths.values() for part in parts) else "."  # names of scopes
    for weights in found:
        prefix = "".join(f"{part}{between}" for part in paths[weights.path])
        for key, entry in of_state_dict(weights, ckpt).entries.items():
            name = prefix + key
            tied = None if entry.tied is None else prefix + entry.tied
            entries[name] = replace(entry, key=name, tied=tied)
            tensors[name] = weights.tensors[key]
            back[name] = f"{weights.path}/{key}" if weights.path else key
    whole = Signature(ckpt.where, entries, ordered=ckpt.order_preserved, framework=ckpt.framework)
    signature = _with_code(whole, code)
    made = _renamed(_ported(signature, target, tensors, hints, scale), back)
    return replace(made, at=found[0].path)


def _wanted(mapping: Mapping) -> int:
    return sum(e.numel for e in mapping.entries if not e.default)


def _renamed(mapping: Mapping, names: MappingOf[str, str]) -> Mapping:
    """Return MAPPING over the same tensors of the source under other names: NAMES has old key -> new key; other keys
    stay. Changed are expressions, options, sizes and unused keys, but not texts such as evidence.
    """

    def new(key: str) -> str:
        return names.get(key, key)

    entries = [
        replace(
            e,
            expr=None if e.expr is None else e.expr.rename(new),
            questions=tuple(question.translated(lambda x: x.rename(new)) for question in e.questions),
        )
        for e in mapping.entries
    ]
    shapes = {new(key): shape for key, shape in mapping.source_shapes.items()}
    return replace(mapping, source_shapes=shapes).with_entries(entries)


def _covered(mapping: Mapping) -> int:
    return sum(e.numel for e in mapping.entries if e.expr is not None and "zeros" not in e.expr.operations())


def _preference(path: str) -> int:
    words = "_".join(cut(path.rpartition("/")[2]))
    order = table().copies
    return order.index(words) if words in order else len(order) // 2


#: Words that any state dict and any model may be called by.
_OF_ANY_MODEL = frozenset("model net network module state dict params weights".split())


def _named_as_parts(paths: Sequence[str], target: Signature) -> list[str]:
    """Return those of PATHS, of state dicts of a file, whose last component is the first one of a key of the model, in
    capital or small letters: "Featurizer" for a model that has a `featurizer`.
    """
    components = {key.partition(".")[0].lower() for key in target.entries}
    return [path for path in paths if path.rpartition("/")[2].lower() in components]


def _named_by_model(paths: Sequence[str], target: Signature) -> str | None:
    """Return the one of PATHS, paths of state dicts in a file, that names the model TARGET, such as "online_net" for
    a model whose keys begin with `online.`. None if no path or several do, or if there is only one path.

    Only the last component of a path counts. If exactly one path has the first component of a key of the model there,
    it is returned: `target_encoder` for a model with a `target_encoder` and a head. Else a path names the model if it
    has a word of the name of its class, or a word that the first components of all its keys share. Words that several
    paths have (`netG_A` and `netG_B`), and words that fit any model ("net"), do not count.
    """
    components = {key.partition(".")[0] for key in target.entries}
    exact = [path for path in paths if path.rpartition("/")[2] in components]
    if len(exact) == 1 and len(paths) > 1:
        return exact[0]
    firsts = [set(cut(component)) for component in components]
    words = set(cut(target.name)) | (set.intersection(*firsts) if firsts else set())
    last = {path: set(cut(path.rpartition("/")[2])) for path in paths}
    common = {word for word, count in Counter(chain.from_iterable(last.values())).items() if count > 1}
    named = [path for path, own in last.items() if (own - common - _OF_ANY_MODEL) & words]
    return named[0] if len(named) == 1 and len(paths) > 1 else None


def _one_of_several(mapping: Mapping, weights: StateDict, others: Sequence[tuple[StateDict, Mapping]]) -> Mapping:
    """Return MAPPING with the question SEVERAL_SETS on every entry that has an expression, before its other questions:
    which state dict of the file is meant? OTHERS has (state dict, its mapping) for those that fill as much of the model
    as WEIGHTS, the one that MAPPING reads. The options are their expressions for this key, with PATH/KEY in place of
    each key; the sentence names WEIGHTS and the first eight others.
    """
    names = ", ".join(printable(other.path, 60) or "the root" for other, _ in others[:_MOST_PARTS])
    asked: Question[Expr] = ask(Reason.SEVERAL_SETS, f"{printable(weights.path, 60)}, {names}")
    entries = []
    for place, entry in enumerate(mapping.entries):
        if entry.expr is not None:
            found = [(other.path, made.entries[place].expr) for other, made in others]
            options = [expr.rename(partial(_below, path)) for path, expr in found if expr is not None]
            entry = replace(entry, questions=(asked.about(*options), *entry.questions))
        entries.append(entry)
    return replace(mapping, entries=tuple(entries))


def _below(path: str, key: str) -> str:
    """Return KEY of the state dict at PATH as a name in the whole file."""
    return f"{path}/{key}" if path else key


def _with_code(signature: Signature, code: Signature | None) -> Signature:
    """Return SIGNATURE, of a file, with what CODE, the signature of the source's own code, says about its keys: module,
    place in the order of execution, function, facts of the forward pass, whether it is trained. SIGNATURE as it is if
    CODE is None.

    A key of the file is that of the code with the same name, also without wrappers. If fewer than half of the code's
    keys have such a name, equal names below a prefix of the file count instead, if there are any (`named_alike`). In
    both ways, the sizes have to be equal, too. If fewer than half of the code's keys are found so, pairs that matching
    makes without a doubt count as well (`port`); a key of the file that is only a part of the code's tensor, or is
    rearranged in it, then gets only its place in the order of execution, its function and whether it is trained, and
    does not count as found. Other keys of the file stay as they are. The result has the `rotary` of CODE. It counts as
    traced if CODE is, and nine tenths of the keys of CODE were found.
    Raises:
        NotFound: no key of the file is one of the code's.
    """
    if code is None:
        return signature
    short = {v: k for k, v in unwrap(list(signature.entries)).items()}
    entries = dict(signature.entries)
    known: set[str] = set()
    copies = [{key: own for key in code.entries if (own := key if key in entries else short.get(key)) is not None}]
    if len(copies[0]) < 0.5 * len(code.entries):
        optional = frozenset(key for key, entry in code.entries.items() if not entry.parameter)
        ways = named_alike(
            {k: e.shape for k, e in code.entries.items()},
            {k: e.shape for k, e in entries.items()},
            optional,
            share=0.5,
        )
        copies = list(ways) or copies
    for names in copies:  # the file may hold the model several times
        for key, own in names.items():
            if entries[own].shape == code.entries[key].shape:
                entries[own] = _as_in_code(entries[own], code.entries[key], names)
                known.add(key)
    if len(known) < 0.5 * len(code.entries):  # below a prefix, or in an older form: matched as any other port
        found = port(signature, replace(code, rotary=None)).having("mapped")
        names = {made.target: made.sources[0] for made in found if made.expr is not None and made.expr.is_copy}
        for made in found:
            theirs = code.entries[made.target]
            for key in made.sources if made.target not in names else ():  # a part, or made otherwise
                entries[key] = replace(entries[key], used=theirs.used, how=theirs.how, parameter=theirs.parameter)
        for target, key in names.items():
            entries[key] = _as_in_code(entries[key], code.entries[target], names)
        known.update(names)
    if not known:
        raise NotFound(
            "its keys are not those of the source model",
            where=signature.name,
            evidence=[
                f"the file: {', '.join(list(signature.entries)[:3])}",
                f"the code: {', '.join(list(code.entries)[:3])}",
            ],
        )
    return replace(
        signature, entries=entries, traced=code.traced and len(known) >= 0.9 * len(code.entries), rotary=code.rotary
    )


def _as_in_code(entry: Wanted, seen: Wanted, names: MappingOf[str, str]) -> Wanted:
    """Return ENTRY, a tensor of the file, with what a forward pass of its code showed about it, which is in SEEN, the
    tensor of the code: all but its key, sizes, type and tie. NAMES has key of the code -> key of the file, for the keys
    in the facts.
    """
    return replace(
        entry,
        parameter=seen.parameter,
        module=seen.module,
        used=seen.used,
        how=seen.how,
        facts=seen.facts.under(names),
    )


#: Digits of a number in a name, at most. Names are compared by their numbers, and Python reads 4,300 digits at most.
_MOST_DIGITS = 1_000
_LONG_NUMBER = re.compile(rf"\d{{{_MOST_DIGITS + 1},}}")


def _require_numbers(signature: Signature) -> None:
    """Raise NotFound if a key has a number of more than 1,000 digits, before anything computes with it."""
    for key in signature.entries:
        if found := _LONG_NUMBER.search(key):
            digits = (
                f"a number of {len(found[0]):,} digits is in the name of a tensor, and {_MOST_DIGITS:,} are the most:"
            )
            raise NotFound(digits, where=signature.name, evidence=[printable(key, 100)])


def _ported(
    signature: Signature,
    target: Signature,
    tensors: MappingOf[str, LazyTensor],
    hints: Sequence[str | Rename],
    scale: float | None,
) -> Mapping:
    """Return the mapping from SIGNATURE, one state dict of the source, to TARGET, over the keys of SIGNATURE. TENSORS
    has key -> tensor of the source, HINTS are as in `match_signature`, SCALE is that of low-rank adapters. Values of
    tensors with at most 65,536 elements may be looked at.

    Keys are renamed by HINTS for matching (`_matched`) only. With hints, the entries for which matching did not follow
    a hint get a question (`_doubt_what_is_against`).

    Raises:
        NotFound: a key has a number of more than 1,000 digits.
        NoMatch, RuleError: as in `match_signature`.
    """
    _require_numbers(signature)
    require_size(signature, target)
    if not hints:
        return _matched(signature, target, tensors, scale, is_hinted=False)
    renamed, new = _hinted(signature, hints)
    shown = {new.get(key, key): tensor for key, tensor in tensors.items()}
    mapping = _matched(renamed, target, shown, scale, is_hinted=True)
    mapping = _doubt_what_is_against(mapping, new, renamed, target)
    return _renamed(mapping, {name: key for key, name in new.items()})


def _matched(
    signature: Signature,
    target: Signature,
    tensors: MappingOf[str, LazyTensor],
    scale: float | None,
    *,
    is_hinted: bool,
) -> Mapping:
    """Return the mapping from SIGNATURE, whose keys hints have renamed if IS_HINTED, to TARGET. The other arguments and
    the result are as in `_ported`.

    Names that are too long to match are shortened for it (`stand_ins`). Unless IS_HINTED, keys that are only numbered
    in a row get the names of the model's keys by position (`named_by_position`); an entry that nothing else tells from
    another gets a question. If keys of the source are unused while entries are guesses or without a source, and some
    tensors have equal values (`doubles`), matching is tried again with these as one (tied); that mapping is returned if
    it has fewer entries without a source, or as many and fewer guesses.
    """
    short = stand_ins(signature)
    if short:
        shown = {short.get(key, key): tensor for key, tensor in tensors.items()}
        made = _matched(under(signature, short), target, shown, scale, is_hinted=is_hinted)
        return _renamed(made, {name: key for key, name in short.items()})
    renamed, placed = (signature, dict[str, str]()) if is_hinted else named_by_position(signature, target)
    original = {name: key for key, name in placed.items()}

    def values(key: str) -> Any:
        """Return the values of the tensor that matching calls KEY, as an array; those of complex numbers as [2, …],
        real and imaginary parts. None if there is no such tensor, it is large, numpy has no such type, or it is
        big-endian.
        """
        tensor = tensors.get(original.get(key, key))
        if tensor is None or tensor.numel > _SMALL or tensor.dtype.numpy is None or tensor.storage.big_endian:
            return None
        found = tensor.numpy()
        if tensor.dtype.is_complex:  # the rules that look at values know real numbers
            import numpy as np

            return np.stack((found.real, found.imag))
        return found

    mapping = port(renamed, target, values=values, lora_scale=scale)
    if mapping.unused and (mapping.having("guessed") or mapping.having("unmapped")):
        own = {key: tensors[original.get(key, key)] for key in renamed.entries}
        twice = doubles(own, [key for key, entry in renamed.entries.items() if entry.tied is None])
        if twice:  # what is there twice leaves open which of the two it is, for nothing
            ties = {k: replace(e, tied=twice.get(k, e.tied)) for k, e in renamed.entries.items()}
            other = port(replace(renamed, entries=ties), target, values=values, lora_scale=scale)
            if _open(other) < _open(mapping):
                mapping = other
    return _renamed(doubt_order(mapping, target), original) if placed else mapping


def _open(mapping: Mapping) -> tuple[int, int]:
    """Return (number of entries without a source, number of guesses) of MAPPING."""
    return len(mapping.having("unmapped")), len(mapping.having("guessed"))


def _hinted(signature: Signature, hints: Sequence[str | Rename]) -> tuple[Signature, dict[str, str]]:
    """Return (SIGNATURE with its keys renamed by HINTS, old key -> new key for all keys). The first hint that matches a
    key renames it, and no other. A key that none matches keeps its name. Without hints: (SIGNATURE, {}).

    Raises:
        NoMatch: a hint renames no key, also because earlier hints match the same keys.
        RuleError: a hint cannot be read, or two keys would have one name.
    """
    if not hints:
        return signature, {}
    rules = [hint if isinstance(hint, Rename) else Rename.parse(hint) for hint in hints]
    used = [False] * len(rules)
    new: dict[str, str] = {}
    for key in signature.entries:
        new[key] = key
        for index, rule in enumerate(rules):
            made = rule.apply(key)
            if made is not None:
                new[key], used[index] = made, True
                break
    for rule, hit in zip(rules, used, strict=True):
        if not hit and any(rule.apply(key) is not None for key in signature.entries):
            what = f"{printable(str(rule))!r} renames no key: earlier hints match all keys that it matches"
            raise NoMatch(what, where="--hint", hint="give it before the others, or leave it out")
        if not hit:
            near = closest(str(rule.old), list(signature.entries))
            raise NoMatch(
                f"no key of the source matches {printable(str(rule))!r}",
                where="--hint",
                evidence=[f"did you mean: {', '.join(map(printable, near))}"] if near else [],
            )
    if len(set(new.values())) < len(new):
        raise RuleError("two keys of the source would have one name", where="--hint")
    return under(signature, new), new


def _doubt_what_is_against(mapping: Mapping, new: MappingOf[str, str], source: Signature, target: Signature) -> Mapping:
    """Return MAPPING with the question HINT_NOT_FOLLOWED about each key with a source in a module of the model that a
    hint names, if no key of that module is made of a tensor that the hint renames to it: a hint is evidence among other
    evidence, and may be overruled.

    NEW has old key -> new key for each key of the file; SOURCE and MAPPING have the new keys. The module that a hint
    names is the beginning of a new key before the components that it shares with the old key at the end (`different`):
    `a` if `b.c.x.w` became `a.x.w`, and the question then names the hint as "b.c=a". A new key without such a beginning
    is not looked at. A tied tensor of SOURCE counts under either name; tied keys of TARGET do not count and are not
    asked about.
    """

    def tensor(key: str) -> str:
        entry = source.entries.get(key)
        return key if entry is None or entry.tied is None else entry.tied

    hinted: dict[str, list[str]] = defaultdict(list)
    rules: dict[str, str] = {}
    for old, key in new.items():
        if old != key:
            own, theirs = different(key, old)
            hinted[own].append(key)
            rules.setdefault(own, f"{theirs.removesuffix('.')}={own.removesuffix('.')}")
    entries = {e.target: e for e in mapping.entries}
    for head, keys in hinted.items():
        below = [e for e in mapping.entries if head and e.target.startswith(head) and e.expr is not None]
        inside = [e for e in below if target.entries[e.target].tied is None]
        if inside and {*map(tensor, keys)}.isdisjoint(tensor(key) for e in inside for key in e.sources):
            for e in inside:
                entries[e.target] = entries[e.target].asking(ask(Reason.HINT_NOT_FOLLOWED, rules[head]))
    return mapping.with_entries(list(entries.values()))


#: More than this no alpha and no rank are; a file may also say NaN, or a number that no float can hold.
_LARGEST_SCALE = 1e9


def _lora_scale(ckpt: Checkpoint) -> float | None:
    """Return the scale of low-rank adapters, alpha / rank, or alpha / sqrt(rank) with `use_rslora`, as the first dict
    in the file says that has both numbers; None if there is none.

    Alpha is `lora_alpha`, or else `alpha`. The rank is `r`, `lora_r` or `lora_rank`, or `rank` in a dict whose name has
    "lora" or "peft"; it has to be above 0. Also None if that dict has other values for some layers (`rank_pattern`,
    `alpha_pattern`), an alpha or a rank of 1e9 or more (or NaN), or a rank of 1e-9 or less.
    """
    for trail, node in walk(ckpt.root):
        if isinstance(node, Dict):
            name = "" if trail is None else str(trail[1]).lower()
            own = "lora" in name or "peft" in name  # elsewhere a rank is that of a process
            alpha = node.get("lora_alpha", node.get("alpha"))
            rank = node.get("r", node.get("lora_r", node.get("lora_rank", node.get("rank") if own else None)))
            if type(alpha) in (int, float) and type(rank) in (int, float) and rank > 0:
                if node.get("rank_pattern") or node.get("alpha_pattern"):
                    return None
                if not (abs(alpha) < _LARGEST_SCALE and 1 / _LARGEST_SCALE < rank < _LARGEST_SCALE):
                    return None
                return float(alpha / (math.sqrt(rank) if node.get("use_rslora") else rank))
    return None


def by_position(
    source: Any, target: Signature, *, at: str | None = None, first: int | None = None, start: int = 0
) -> Mapping:
    """Return the mapping that pairs tensors by their order, as certain: the first of the source with the first of the
    target, and so on. Counters of both sides are passed over, and those of the target need no source; a tied key of the
    target gets what the key gets that it is tied to. Further tensors of the source are unused.

    Args:
        source, target, at: as in `match_signature`.
        first: how many tensors of the target to fill; all if None. The others are without a source, with the question
            BEYOND_FIRST.
        start: how many tensors of the source to skip, counters not counted.
    Raises:
        RuleError: two paired tensors have different shapes, or either side has fewer tensors than are to be filled.
        NotFound, Ambiguous: there is no state dict, or there are several and AT does not say which.
    """
    ckpt = open_source(source)
    weights = ckpt.state_dict(at)
    have = [(k, t) for k, t in weights.tensors.items() if not is_counter(k)][start:]
    wanted = [e for e in target.entries.values() if not is_counter(e.key) and e.tied is None]
    count = len(wanted) if first is None else first
    if count > len(wanted) or count > len(have):
        raise RuleError(
            f"the target has {counted(len(wanted), 'tensor')} and the source {len(have):,} from {start:,} on",
            where="--by position",
            hint=f"--first {min(len(wanted), len(have))}   # fills as many as there are",
        )
    expr: dict[str, ex.Expr] = {}
    for place, (entry, (key, tensor)) in enumerate(zip(wanted[:count], have, strict=False)):
        if entry.shape != tensor.shape:
            raise RuleError(
                f"number {place} does not fit: {printable(key)} {list(tensor.shape)} is not "
                f"{printable(entry.key)} {list(entry.shape)}",
                where="--by position",
                hint=f"--first {place}   # fills those before it" if place else "leave out --by position",
            )
        expr[entry.key] = ex.of(key)
    entries = []
    for entry in target.entries.values():
        blank = _blank(entry)
        made = expr.get(entry.tied or entry.key)
        if made is not None:
            entries.append(replace(blank, expr=made, evidence="position, as asked for"))
        elif is_counter(entry.key):
            entries.append(replace(blank, default=True, evidence="a counter"))
        elif first is not None:
            entries.append(blank.asking(ask(Reason.BEYOND_FIRST, f"{first:,}")))
        else:
            entries.append(blank)
    shapes = {k: t.shape for k, t in weights.tensors.items()}
    made_mapping = Mapping(
        tuple(entries), (), shapes, ckpt.where, target.name, metadata=target.metadata, at=weights.path or None
    )
    return made_mapping.with_entries(entries)


def _blank(entry: Wanted) -> Entry:
    return Entry(entry.key, entry.shape, dtype=entry.dtype, parameter=entry.parameter)


# ------------------------------------------------------------------------------------------------ applying it


def require_fit(mapping: Mapping, source: Any, target: Signature) -> None:
    """Raise NotFound if at most a tenth of the keys of MAPPING that need a source have one: the file is for another
    family of models, or other sizes. The message has the nearest misses. Do nothing if no key needs a source.

    Raises:
        NotFound: next to nothing has a source.
    """
    wanted = [e for e in mapping.entries if not e.default]
    fitting = [e for e in wanted if e.expr is not None]
    if len(fitting) > 0.1 * len(wanted) or not wanted:
        return
    ckpt = open_source(source)
    raise NotFound(
        f"nothing fits: {len(fitting):,} of {counted(len(wanted), 'key')} of {printable(target.name)} found a source",
        where=ckpt.where,
        evidence=[
            *_misses(mapping),
            "if it is the right file: build the model with other sizes (--kwargs NAME=VALUE)",
        ],
        hint=f"ckptool inspect {shell_path(ckpt.where)}" if ckpt.where else None,
    )


def _misses(mapping: Mapping) -> list[str]:
    """Return a line for each near miss, four at most: a key of MAPPING that needs a source and has none, with two or
    more dimensions, for which the source has a key with the same last component and as many dimensions. The line has
    that key of the source (of several, the one of the same name, else the most similar, else the first), and in which
    dimensions and by which factor the sizes differ. If there are no near misses, return one line with the first four
    keys of the source.
    """
    lines: list[str] = []
    tails: dict[str, list[str]] = {}
    for key in mapping.source_shapes:
        tails.setdefault(key.rpartition(".")[2], []).append(key)
    pairs: list[tuple[Entry, str]] = []
    for entry in mapping.entries:
        if entry.expr is not None or entry.default or len(entry.shape) < 2 or len(pairs) == _MOST_MISSES:
            continue
        same_rank = [
            k
            for k in tails.get(entry.target.rpartition(".")[2], [])
            if len(mapping.source_shapes[k]) == len(entry.shape)
        ]
        if same_rank:
            near = [entry.target] if entry.target in same_rank else closest(entry.target, same_rank, 1)
            pairs.append((entry, (near or same_rank)[0]))
    for entry, key in pairs:
        lines.append(
            f"{printable(entry.target, 60)} wants {list(entry.shape)}; nearest is {printable(key, 60)} "
            f"{list(mapping.source_shapes[key])}{_off_by(entry.shape, mapping.source_shapes[key])}"
        )
    if not lines:
        lines = [f"the source has {', '.join(printable(k, 40) for k in list(mapping.source_shapes)[:4])} …"]
    return lines


_MOST_MISSES = 4


def _off_by(wanted: Sequence[int], have: Sequence[int]) -> str:
    """Return the end of a line that says in which dimensions the sizes HAVE differ from the sizes WANTED, and by which
    factor: ": dimension 0 is 20, not 10 (2 times)"; "" if none differs.
    """
    off = [
        f"dimension {d} is {have[d]:,}, not {wanted[d]:,}"
        + (f" ({have[d] / wanted[d]:.3g} times)" if wanted[d] else "")
        for d in range(min(len(wanted), len(have)))
        if wanted[d] != have[d]
    ]
    return f": {'; '.join(off)}" if off else ""


__all__ = ["by_position", "match_signature", "require_fit"]
