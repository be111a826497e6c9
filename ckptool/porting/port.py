"""Porting: from two signatures to a mapping, and from a mapping to a checkpoint."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ..signature import Entry as Tensor
from ..signature import Signature
from . import expression as ex
from . import leftovers
from .canonical import canonical
from .expression import Expr, Shape
from .fused import about_layout, heads_of, part_label
from .gates import are_gates
from .layouts import PRODUCTS, TURNED_IN_CODE, is_bare, turn_bare_matrices
from .mapping import Entry, Mapping
from .match import Matcher, Matching, kind_of
from .pieces import STATISTICS, Canon, Piece, squeezed, substituted
from .remedies import of_rows, remedy
from .rivals import weigh
from .units import SOME, Unit, hard_conflict, related, similarity
from .words import Rotary, cut, label, table, words_of

#: Gives the values of a source key as a numpy array, for the few small tensors whose values say something.
Values = Callable[[str], Any]


@dataclass(slots=True)
class _Filled:
    """What goes into one hole of the target."""

    expr: Expr
    evidence: str
    doubts: list[str] = field(default_factory=list)
    rivals: list[Expr] = field(default_factory=list)


def port(
    source: Signature,
    target: Signature,
    *,
    values: Values | None = None,
    lora_scale: float | None = None,
) -> Mapping:
    """Work out which source tensor goes where.

    Args:
        source: the keys and shapes of the file.
        target: what the model wants.
        values: gives small tensors of the source, where their values can contradict a name.
        lora_scale: factor of low-rank adapters, if the file says it.
    """
    shapes = {key: entry.shape for key, entry in source.entries.items()}
    copies, others = _copies(source, target)
    kept = replace(source, entries={k: e for k, e in source.entries.items() if k not in copies and k not in others})
    s, t = canonical(kept, target, lora_scale=lora_scale)
    turn_bare_matrices(s, t)
    matcher = Matcher(s, t)
    matching = matcher.run()
    weigh(matching, matcher.sequences)
    filler = _Filler(s, t, matching, matcher, values, copies)
    return filler.mapping(shapes)


def _copies(source: Signature, target: Signature) -> tuple[dict[str, str], set[str]]:
    """Keys of further copies of a model in one file -> the key that stands for it; and keys of other parts of it.

    A copy is a prefix below which the same names have the same shapes as below another, where the target holds fewer of
    them than the file.
    """
    below: dict[tuple[str, ...], dict[tuple[str, ...], Shape]] = defaultdict(dict)
    for key, entry in source.entries.items():
        parts = tuple(key.split("."))
        for depth in range(1, min(len(parts), 4)):
            below[parts[:depth]][parts[depth:]] = entry.shape
    groups: dict[Any, list[tuple[str, ...]]] = defaultdict(list)
    for prefix, inner in below.items():
        if len(inner) >= 4 and not prefix[-1].isdigit():
            groups[(len(prefix), prefix[:-1], frozenset(inner.items()))].append(prefix)
    size: dict[tuple[str, ...], int] = {prefix: len(inner) for prefix, inner in below.items()}
    size[()] = len(source.entries)
    wanted: dict[Shape, int] = defaultdict(int)
    for entry in target.entries.values():
        wanted[entry.shape] += 1
    have: dict[Shape, int] = defaultdict(int)
    for entry in source.entries.values():
        have[entry.shape] += 1
    found: dict[str, str] = {}
    parts_of_others: set[tuple[str, ...]] = set()
    for (_, _, inner), prefixes in sorted(groups.items(), key=lambda g: -len(g[0][2])):
        if len(prefixes) < 2 or any(".".join(p) in found for p in prefixes) or are_gates([p[-1] for p in prefixes]):
            continue
        if len(prefixes) * len(inner) < 0.7 * size[prefixes[0][:-1]] or len(target.entries) > 1.5 * len(inner):
            continue
        big = [shape for _, shape in inner if len(shape) >= 2]
        if not big or any(wanted[shape] >= have[shape] for shape in big):
            continue
        if len({_role_word(p[-1]) for p in prefixes}) > 1 and _target_names_one(prefixes, target):
            continue
        sides = {_side(p[-1]) for p in prefixes}
        if len(sides) > 1:  # parts of one model: what says no side goes to a model that says none
            if None in sides and not any(_side(part) for key in target.entries for part in key.split(".")):
                parts_of_others.update(p for p in prefixes if _side(p[-1]) is not None)
            continue
        ranked = sorted(prefixes, key=lambda p: _preference(p[-1]))
        for other in ranked[1:]:
            for tail in below[other]:
                found[".".join((*other, *tail))] = ".".join((*ranked[0], *tail))
    return found, {".".join((*prefix, *tail)) for prefix in parts_of_others for tail in below[prefix]}


def _role_word(name: str) -> str | None:
    words = cut(name)
    return next((said for group in table().groups if group.hard and (said := label(group, words))), None)


def _side(name: str) -> str | None:
    """Whether a name is that of an encoder or a decoder."""
    return next(label(group, cut(name)) for group in table().groups if group.name == "side")


def _target_names_one(prefixes: Sequence[tuple[str, ...]], target: Signature) -> bool:
    """Whether the target's own names speak of one of the copies."""
    own = {_role_word(component) for key in target.entries for component in key.split(".")[:2]} - {None}
    return bool(own & {_role_word(p[-1]) for p in prefixes})


def _preference(name: str) -> tuple[int, str]:
    order = table().copies
    words = "_".join(cut(name))
    return next((i for i, word in enumerate(order) if word == words), len(order) // 2), name


class _Filler:
    """Puts target keys together from matched units, and names what is not certain."""

    def __init__(
        self,
        source: Canon,
        target: Canon,
        matching: Matching,
        matcher: Matcher,
        values: Values | None,
        copies: dict[str, str],
    ) -> None:
        self.source, self.target, self.matching, self.matcher = source, target, matching, matcher
        self.values, self.copies = values, copies
        self.shapes: dict[str, Shape] = {k: e.shape for k, e in source.signature.entries.items()}
        self.holes: dict[str, _Filled] = {}
        self.misses: dict[str, str] = {}
        self.unit_of: dict[str, tuple[Unit, Unit]] = {}
        self.unused: list[Tensor] | None = None
        self.same_names = self._same_names()

    def mapping(self, shapes: dict[str, Shape]) -> Mapping:
        """The whole mapping."""
        for t, s in self.matching.pairs:
            self._fill(t, s, [])
        for targets, sources in self.matching.undecided:
            self._guess(targets, sources)
        self._fold_norms()
        self._near_misses()
        self._tied_sources()
        self._leftovers()
        self._tied_heads()
        self._of_other_sizes()
        self._bare_squares()
        self._rotary()
        self._flatten()
        self._concatenated()
        self._centred_norms()
        self._copies_doubt()
        entries = [self._entry(key) for key in self.target.signature.entries]
        self.source.notes.extend(self.target.notes)
        made = Mapping(
            tuple(entries),
            (),
            shapes,
            self.source.signature.name,
            self.target.signature.name,
            tuple(self.source.notes),
            self.target.signature.metadata,
        )
        return self._without_company(made.with_entries(entries))

    # -- pairs

    def _fill(self, t: Unit, s: Unit, doubts: Sequence[str]) -> None:
        evidence = _evidence_text(t, s)
        doubts = [*doubts, *t.doubts]
        left = dict(s.pieces)
        for role, piece in t.pieces.items():
            found = self._source_for(role, piece, t, s)
            if found is None:
                continue
            expr, used = found
            for name in used:
                left.pop(name, None)
            more = [d for name in used for d, _ in s.pieces[name].doubts] + [d for d, _ in piece.doubts]
            rivals = [r for name in used for _, r in s.pieces[name].doubts if r is not None]
            rivals += [substituted(r, {piece.name: expr}) for _, r in piece.doubts if r is not None]
            rivals += [r for u in t.rivals if (r := self._rival(role, piece, u)) is not None]
            self.holes[piece.name] = _Filled(expr, evidence, [*doubts, *more], rivals)
            self.unit_of[piece.name] = (t, s)

    def _rival(self, role: str, piece: Piece, unit: Unit) -> Expr | None:
        found = unit.pieces.get(role)
        if found is None or squeezed(found.shape) != squeezed(piece.shape):
            return None
        return self._reshaped(found, piece.shape)

    def _reshaped(self, found: Piece, shape: Shape) -> Expr:
        return found.expr if found.shape == shape else ex.reshape(found.expr, shape)

    def _source_for(self, role: str, piece: Piece, t: Unit, s: Unit) -> tuple[Expr, list[str]] | None:
        if role in ("bias", "bias_ih", "bias_hh") and max(len(t.pieces), len(s.pieces)) > 1:
            return self._bias_for(role, piece, t, s)
        found = s.pieces.get(role)
        if found is None and len(t.pieces) == 1 and len(s.pieces) == 1:
            role, found = next(iter(s.pieces.items()))
        if found is not None:
            if squeezed(found.shape) != squeezed(piece.shape):
                return None
            return self._reshaped(found, piece.shape), [role]
        return None

    def _bias_for(self, role: str, piece: Piece, t: Unit, s: Unit) -> tuple[Expr, list[str]] | None:
        """A bias; a recurrent layer has one for the input, one for the hidden state, or one for both."""
        roles: list[str] = ["bias_ih", "bias_hh", "bias"]
        own, theirs = ([r for r in roles if r in u.pieces] for u in (t, s))
        if len(own) == len(theirs) and (len(own) == 1 or role in theirs):
            role = role if role in theirs else theirs[0]
            found = s.pieces[role]
            same = squeezed(found.shape) == squeezed(piece.shape)
            return (self._reshaped(found, piece.shape), [role]) if same else None
        hh = s.pieces.get("weight_hh", t.pieces.get("weight_hh"))
        if not theirs or any(s.pieces[r].shape != piece.shape for r in theirs):
            return None
        if len(own) == 1:
            if hh is not None and len(hh.shape) > 1 and hh.shape[0] == 3 * hh.shape[1]:
                return None  # a GRU multiplies one of its two biases by a gate before it adds them
            return Expr("add", tuple(s.pieces[r].expr for r in theirs)), theirs
        if role == own[0]:
            return s.pieces[theirs[0]].expr, theirs
        return Expr("zeros", (), piece.shape), []

    def _guess(self, targets: list[Unit], sources: list[Unit]) -> None:
        """What no evidence separates: paired as it comes and called a guess, where there is any reason to fill it."""
        free = sorted(sources, key=lambda u: u.order)
        own = sorted(targets, key=lambda u: u.used if u.used is not None else u.order)
        for t in own:
            ranked = sorted(free, key=lambda s: (hard_conflict(t.words, s.words) is not None, -similarity(t, s)))
            if not ranked:
                return
            top = similarity(t, ranked[0])
            chosen = ranked[0]
            same = [s for s in ranked if similarity(t, s) == top]
            if len(own) == len(sources):
                chosen = same[0]
            reason = top > 0.15 or related(t, chosen) or self.matcher.scopes.same(t, chosen)
            if not reason or hard_conflict(t.words, chosen.words):
                continue
            t.rivals = [s for s in sources if s is not chosen][:8]
            free.remove(chosen)
            self._fill(t, chosen, [f"{len(sources)} tensors of the source fit as well"])

    # -- conventions and changes that shapes do not show

    def _same_names(self) -> bool:
        """Whether the file's keys are the model's, so that nothing speaks for other code."""
        own = {k for k, e in self.target.signature.entries.items() if e.parameter is not False}
        return own <= set(self.source.signature.entries)

    def _fold_norms(self) -> None:
        """Batch norms of the source that the target does not have, folded into what stands before them."""
        free = [u for u in self.matching.free_sources if u.pieces.keys() >= {"running_mean", "running_var", "weight"}]
        if not free:
            return
        stored = sorted(self.matcher.cells.sources, key=lambda u: u.order)
        place = {id(u): i for i, u in enumerate(stored)}
        partner = {id(s): t for t, s in self.matching.pairs}
        for norm in free:
            i = place[id(norm)]
            before = stored[i - 1] if i else None
            t = partner.get(id(before))
            if before is None or t is None or "weight" not in before.pieces or "weight" not in t.pieces:
                continue
            w = before.pieces["weight"]
            if not w.shape or w.shape[0] != norm.pieces["running_mean"].shape[0] or len(w.shape) < 2:
                continue
            if "bias" not in t.pieces or "bias" in before.pieces:
                continue
            gamma, var = norm.pieces["weight"].expr, norm.pieces["running_var"].expr
            mean = norm.pieces["running_mean"].expr
            beta = norm.pieces["bias"].expr if "bias" in norm.pieces else Expr("zeros", (), norm.pieces["weight"].shape)
            doubt = "the source has a batch norm here and the target has none: folded in, with eps 1e-05"
            hole = t.pieces["weight"].name
            plain = self.holes[hole].expr
            self.holes[hole] = _Filled(Expr("fold_weight", (plain, gamma, var), (1e-05,)), "folded", [doubt], [plain])
            zero = Expr("zeros", (), norm.pieces["weight"].shape)
            self.holes[t.pieces["bias"].name] = _Filled(
                Expr("fold_bias", (zero, gamma, beta, mean, var), (1e-05,)), "folded", [doubt], [beta]
            )
            self.unit_of[t.pieces["bias"].name] = (t, norm)

    def _leftovers(self) -> None:
        """What several layers of one side are in one of the other, or one in several: always guesses."""
        for propose in (leftovers.parts, leftovers.segments, leftovers.shared):
            used = {key for filled in self.holes.values() for key in filled.expr.keys()}  # noqa: SIM118
            cells = self.matcher.cells
            targets = [u for u in cells.targets if not any(p.name in self.holes for p in u.pieces.values())]
            sources = [u for u in cells.sources if not used & set(u.main.expr.keys())]
            pairs = [self.unit_of[t.main.name] for t in cells.targets if t.main.name in self.unit_of]
            everything = propose is not leftovers.parts
            for one in propose(pairs, targets, cells.sources if everything else sources):
                hole = one.target.pieces[one.role].name
                self.holes[hole] = _Filled(one.expr, "left over", [one.doubt], list(one.rivals))
                self.unit_of[hole] = (one.target, one.source)

    def _near_misses(self) -> None:
        """Tensors with the same name or place whose sizes differ in a way that has a known remedy. Always guesses."""
        free_t = [u for u in self.matching.free_targets if u.main.name not in self.holes]
        free_s = list(self.matching.free_sources)
        for t in free_t:
            near = [s for s in free_s if self._alike(t, s)]
            if len(near) != 1:
                continue
            s = near[0]
            if t.main.shape == s.main.shape:
                if similarity(t, s) > SOME or related(t, s):
                    self._fill(t, s, [])
                continue
            kind = label_of(t, "embedding") or label_of(s, "embedding")
            found = remedy(t.main.shape, s.main.shape, s.main.expr, kind)
            if found is None:
                continue
            expr, doubt, rivals = found
            doubts = [] if self._follows_its_channels(t) and len(s.main.shape) == 2 else [doubt]
            self.holes[t.main.name] = _Filled(expr, "similar names", doubts, list(rivals))
            self.unit_of[t.main.name] = (t, s)
            for role, piece in t.pieces.items():
                if piece is not t.main and role in s.pieces and s.pieces[role].shape == piece.shape:
                    self.holes[piece.name] = _Filled(s.pieces[role].expr, "similar names", list(doubts))
                    self.unit_of[piece.name] = (t, s)
            if kind == "token":
                self._other_vocabulary(t.main.shape, s.main.shape)

    def _other_vocabulary(self, wanted: Shape, have: Shape) -> None:
        """Output layers over a vocabulary whose table of words has another size on the two sides."""
        for t in self.matching.free_targets:
            near = [s for s in self.matching.free_sources if s.main.shape[:1] == have[:1] and self._alike(t, s)]
            if t.main.name in self.holes or t.main.shape[:1] != wanted[:1] or len(near) != 1:
                continue
            for role, piece in t.pieces.items():
                own = near[0].pieces.get(role)
                found = None if own is None else of_rows(piece.shape, own.shape, own.expr)
                if found is not None:
                    self.holes[piece.name] = _Filled(found[0], "similar names", [found[1]], list(found[2]))
                    self.unit_of[piece.name] = (t, near[0])

    def _follows_its_channels(self, t: Unit) -> bool:
        """Whether a convolution takes the feature maps of another, which linear layers take flattened in that order."""
        before = [
            u for u in self.matcher.cells.targets if u.used is not None and t.used is not None and u.used < t.used
            if len(u.main.shape) == len(t.main.shape)
        ]  # fmt: skip
        last = max(before, key=lambda u: u.used or 0.0, default=None)
        return last is not None and len(t.main.shape) == 4 and last.main.shape[0] == t.main.shape[1]

    def _of_other_sizes(self) -> None:
        """What stands in the place of a tensor that has no source, with other sizes, to be named in the refusal."""
        for t in self.matching.free_targets:
            near = [s for s in self.matching.free_sources if self._alike(t, s)]
            if t.main.name not in self.holes and len(near) == 1:
                for role, piece in t.pieces.items():
                    if role in near[0].pieces:
                        other = near[0].pieces[role].entry
                        self.misses[piece.name] = f"in its place the source has {other.key} {list(other.shape)}"

    def _alike(self, t: Unit, s: Unit) -> bool:
        if hard_conflict(t.words, s.words):
            return False
        if t.path == s.path:
            return True
        if label_of(t, "embedding") and label_of(t, "embedding") == label_of(s, "embedding"):
            return True
        return self.matcher.orders.between(t, s)

    def _tied_sources(self) -> None:
        """Keys of the source that are the same tensor as another, for what the model holds apart."""
        tied = [e for e in self.source.signature.entries.values() if e.tied is not None]
        for t in self.matching.free_targets if tied else ():
            hole = t.main.name
            if hole in self.holes:
                continue
            wanted = t.main.entry.key.split(".")
            near = [e for e in tied if e.shape == t.main.shape and e.key.split(".")[-2:] == wanted[-2:]]
            exact = [e for e in near if e.key == t.main.entry.key] or near
            if len(exact) == 1:
                self.holes[hole] = _Filled(ex.of(exact[0].key), f"name; tied to {exact[0].tied} in the source")
                self.unit_of[hole] = (t, t)

    def _tied_heads(self) -> None:
        """An output layer that the source does not have, of the sizes of its word embedding: tied, most likely."""
        pairs = {id(t): (t, s) for t, s in self.unit_of.values()}
        tokens = [
            (t, s)
            for t, s in pairs.values()
            if (label_of(t, "embedding") in ("token", None) and t.main.entry.how == "embedding")
            or label_of(s, "embedding") == "token"
        ]
        last = max(
            (t.used for t in self.matcher.cells.targets if t.used is not None and len(t.main.shape) > 1), default=0
        )
        for t in self.matching.free_targets:
            hole = t.main.name
            if hole in self.holes or len(t.main.shape) != 2 or t.main.role != "weight":
                continue
            if label_of(t, "purpose") != "head" and (t.main.entry.how != "linear" or t.used != last):
                continue
            for own, s in tokens:
                if own.main.shape == t.main.shape and t.main.entry.how != "embedding":
                    tied = any(e.tied == s.main.entry.key for e in self.source.signature.entries.values())
                    doubts = [] if tied else ["the source has no such layer; its word embedding is put here"]
                    table_of_words = self.holes[own.main.name]
                    doubts += [d for d in table_of_words.doubts if table_of_words.expr != s.main.expr]
                    self.holes[hole] = _Filled(table_of_words.expr, "tied to the embedding", doubts)
                    self.unit_of[hole] = (t, s)
                    break

    def _bare_squares(self) -> None:
        """Square matrices that no layer of torch holds, as the others of the file whose sizes show how they stand."""
        votes: Counter[bool] = Counter()
        square = []
        for hole, filled in self.holes.items():
            t, s = self.unit_of[hole]
            piece = t.pieces.get(hole.rpartition("|")[2])
            own = next((p for p in s.pieces.values() if p.expr == filled.expr), None)
            if piece is None or own is None or not is_bare(own) or not _is_matrix(piece):
                continue
            if own.shape[-1] != own.shape[-2]:
                votes["transpose" in filled.expr.operations()] += 1
            elif own.entry.key.split(".")[-1] != piece.entry.key.split(".")[-1] and filled.expr.op in ("key", "select"):
                square.append(filled)
        for filled in square:
            if votes[True] and not votes[False]:
                filled.expr = ex.transpose(filled.expr)
            elif not votes[False] and TURNED_IN_CODE not in filled.doubts:
                filled.doubts.append(TURNED_IN_CODE)
                filled.rivals.append(ex.transpose(filled.expr))

    def _rotary(self) -> None:
        """Rows of queries and keys: rotary embeddings pair them in one of two ways, which no shape shows."""
        kind = self.target.signature.rotary
        if kind is None or self.same_names:
            return
        for hole, filled in self.holes.items():
            t, s = self.unit_of[hole]
            which = part_label(t.path) or part_label(s.path)
            if which not in ("q", "k") or hole.endswith(("norm|weight", "norm|bias")):
                continue
            piece = t.pieces[hole.rpartition("|")[2]]
            heads = heads_of(t.main.entry)
            theirs = _rotary_by_name(s.path)
            if theirs is not None and theirs.sure and theirs.kind == kind:
                continue
            turned = None
            if heads and piece.shape and piece.shape[0] % (2 * heads) == 0:
                turned = Expr("rotary", (filled.expr,), (heads, kind if kind != "unknown" else "half"))
            doubt = (
                "the model turns queries and keys (rotary embedding); whether the source pairs rows in the same way is "
                "not in its names"
            )
            if turned is not None and theirs is not None and kind != "unknown" and theirs.kind != kind:
                filled.rivals.insert(0, filled.expr)
                filled.expr = turned
            elif turned is not None:
                filled.rivals.append(turned)
            filled.doubts.append(doubt)

    def _flatten(self) -> None:
        """A linear layer after feature maps: the order in which they are flattened is in the code only."""
        for hole, filled in self.holes.items():
            t, s = self.unit_of[hole]
            piece = t.pieces.get(hole.rpartition("|")[2])
            if piece is None or piece.role != "weight" or len(piece.shape) != 2:
                continue
            note = piece.entry.notes.get("flatten")
            if note is None or self.same_names:
                continue
            layout, c, h, w = note
            leaf = s.main.leaf
            theirs = "nhwc" if leaf in table().inputs_first else "nchw"
            if layout != theirs and squeezed(piece.shape)[-1] == c * h * w:
                filled.rivals.append(filled.expr)
                filled.expr = Expr("flatten", (filled.expr,), (c, h, w, layout))
                filled.doubts.append(
                    f"the model flattens features as {layout.upper()}; the source most likely does as {theirs.upper()}"
                )

    def _concatenated(self) -> None:
        """Layers that take several branches side by side: in which order is in the code of the source only.

        As a rule branches are joined in the order in which they are registered. Where the source has registered those
        of the target in another order than the target joins them, the order of the channels is a guess.
        """
        told = self.source.signature.traced
        if not told and (self.same_names or not self.matcher.sequences.ordered):
            return
        weights = {p.entry.key: p for p in self.target.pieces.values() if p.name in self.unit_of}
        for hole, filled in self.holes.items():
            t, s = self.unit_of[hole]
            piece = t.pieces.get(hole.rpartition("|")[2])
            joined = piece.entry.notes.get("joined") if piece is not None else None
            if piece is None or not joined or not all(key in weights for key, _ in joined):
                continue
            units = [self.unit_of[weights[key].name] for key, _ in joined]
            dim = 1 if len(piece.shape) > 1 else 0
            sizes = [n for _, n in joined]
            if len(piece.shape) <= dim or piece.shape[dim] != sum(sizes):
                continue
            theirs = _joined_by(s.pieces.get(piece.role))
            known = None if theirs is None else [theirs.get(u.main.entry.key) for _, u in units]
            order = [u.order for _, u in units] if known is None or None in known else [int(n or 0) for n in known]
            stored = sorted(range(len(units)), key=order.__getitem__)
            if any(self.holes[weights[key].name].doubts for key, _ in joined):
                filled.doubts.append("it takes branches side by side of which some are guesses")
            if stored == list(range(len(units))) or len(set(order)) < len(order):
                continue
            starts = {place: sum(sizes[i] for i in stored[:at]) for at, place in enumerate(stored)}
            moved = ex.cat(dim, *(ex.part(filled.expr, dim, starts[i], starts[i] + n) for i, n in enumerate(sizes)))
            if theirs is not None and known is not None and None not in known:
                filled.expr = moved
                continue
            own = [u.order for u, _ in units]
            filled.doubts.append("it takes branches side by side that the source holds in another order: " + _JOINED)
            filled.rivals.append(filled.expr if own == sorted(own) else moved)
            filled.expr = moved if own == sorted(own) else filled.expr

    def _centred_norms(self) -> None:
        """Norm weights around 0 where the model takes them as they are, or around 1 where it adds 1."""
        if self.values is None:
            return
        norms = []
        for t, s in self.matching.pairs:
            piece = t.pieces.get("weight")
            if piece is None or len(piece.shape) != 1 or piece.name not in self.holes:
                continue
            if "norm" not in t.main.entry.module.lower() and label_of(t, "purpose") != "norm":
                continue
            leaf = piece.entry.key.rpartition(".")[2]
            if "running_var" in t.pieces or leaf in table().beside_bias or not self.holes[piece.name].expr.is_copy:
                continue
            norms.append((t, s, piece))
        by_use: dict[bool, list[Any]] = defaultdict(list)
        for item in norms:
            by_use[item[2].entry.how in ("add", "__add__", "__radd__")].append(item)
        for adds_one, members in by_use.items():
            share = _share_of_negatives(self.values, [self.holes[p.name].expr.key for _, _, p in members[:24]])
            if share is None:
                continue
            if not adds_one and share > 0.25:
                amount, doubt = (
                    1.0,
                    "the source's norm weights lie around 0, as where code adds 1 to them; this model does not",
                )
            elif adds_one and share < 0.02:
                amount, doubt = (
                    -1.0,
                    "this model adds 1 to its norm weights; those of the source look as if its code does not",
                )
            else:
                continue
            for _, _, piece in members:
                filled = self.holes[piece.name]
                filled.rivals.append(filled.expr)
                filled.expr = Expr("shift", (filled.expr,), (amount,))
                filled.doubts.append(doubt)

    def _copies_doubt(self) -> None:
        if not self.copies:
            return
        others: dict[str, list[str]] = defaultdict(list)
        for other, key in self.copies.items():
            others[key].append(other)
        for filled in self.holes.values():
            keys = filled.expr.keys()
            for n in range(max((len(others[k]) for k in keys if k in others), default=0)):
                swap = {k: others[k][n] for k in keys if len(others.get(k, ())) > n}
                filled.rivals.append(filled.expr.rename(partial(_swapped, swap)))
            if any(k in others for k in keys):
                filled.doubts.append("the file holds several copies of this model")

    def _without_company(self, made: Mapping) -> Mapping:
        """Doubt what is taken from a layer of which the source has more that nothing reads: adapters, masks, scales."""
        left: dict[str, list[str]] = defaultdict(list)
        for key in made.unused:
            entry = self.source.signature.entries.get(key)
            known = entry is not None and entry.tied is None and entry.dtype.startswith(("float", "bfloat"))
            if known and table().derived.isdisjoint(key.split(".")):
                for at, letter in enumerate(key):
                    if letter == ".":
                        left[key[:at]].append(key)
        entries: list[Entry] = []
        for one in made.entries:
            layers = [key.rpartition(".") for key in one.sources]
            found = next((rest for path, _, leaf in layers if (rest := _left_in(left, path, leaf))), None)
            if found is not None:
                doubt = f"{found} of the source belongs to the same layer, and nothing reads it"
                one = replace(one, status="guessed", doubts=(*one.doubts, doubt))
            entries.append(one)
        return replace(made, entries=tuple(entries))

    # -- entries

    def _entry(self, key: str) -> Entry:
        wanted = self.target.signature.entries[key]
        blank = Entry(key, wanted.shape, "unmapped", dtype=wanted.dtype, parameter=wanted.parameter)
        if wanted.tied is not None and key not in self.target.assembly:
            first = self._entry(wanted.tied)
            if first.status != "unmapped" or key not in self.source.signature.entries:
                return replace(first, target=key, evidence=f"tied to {wanted.tied}")
            return blank
        if key in self.target.counters:
            return self._counter(blank)
        assembly = self.target.assembly[key]
        holes = assembly.keys()
        missing = [hole for hole in holes if hole not in self.holes]
        if missing:
            if self._is_constant(key):
                fitting = self._could_fill(key)
                if fitting is None:
                    return replace(blank, status="mapped", default=True, evidence="computed by the model itself")
                why = f"the model may compute this itself, or it may be {fitting} of the source, which is used nowhere"
                return replace(blank, doubts=(why,))
            why = next(
                (self.misses[hole] for hole in missing if hole in self.misses), "nothing in the source goes here"
            )
            return replace(blank, doubts=(why,))
        filled = [self.holes[hole] for hole in holes]
        expr = ex.simplified(
            substituted(assembly, {h: f.expr for h, f in zip(holes, filled, strict=True)}), self.shapes
        )
        doubts = list(dict.fromkeys(d for f in filled for d in f.doubts))
        if expr.is_copy:  # what was taken apart and put together again needs no layout
            doubts = [d for d in doubts if not about_layout(d)]
        rivals = []
        for hole, f in zip(holes, filled, strict=True):
            for rival in f.rivals[:8]:
                values = {h: g.expr for h, g in zip(holes, filled, strict=True)} | {hole: rival}
                rivals.append(ex.simplified(substituted(assembly, values), self.shapes))
        evidence = "; ".join(dict.fromkeys(f.evidence for f in filled if f.evidence))
        return replace(
            blank,
            status="guessed" if doubts else "mapped",
            expr=expr,
            evidence=evidence,
            doubts=tuple(doubts),
            rivals=tuple(r for r in dict.fromkeys(rivals) if r != expr) if doubts else (),
        )

    def _counter(self, blank: Entry) -> Entry:
        path = self.target.counters[blank.target]
        norm = next(
            (p for p in self.target.pieces.values() if ".".join(p.path) == path and p.name in self.unit_of), None
        )
        if norm is not None:
            partner = ".".join(self.unit_of[norm.name][1].path)
            for key, where in self.source.counters.items():
                if where == partner:
                    filled = self.holes[norm.name]
                    guessed = bool(filled.doubts)
                    return replace(
                        blank,
                        status="guessed" if guessed else "mapped",
                        expr=ex.of(key),
                        evidence=filled.evidence,
                        doubts=tuple(filled.doubts),
                    )
        return replace(blank, status="mapped", default=True, evidence="a counter; the source has none")

    def _is_constant(self, key: str) -> bool:
        entry = self.target.signature.entries[key]
        piece = next((p for p in self.target.pieces.values() if p.entry.key == key), None)
        return entry.parameter is False and (piece is None or piece.role not in STATISTICS)

    def _could_fill(self, key: str) -> str | None:
        """A key of the source that goes nowhere and has the sizes of a buffer of the model, or None."""
        if self.unused is None:
            used = {k for filled in self.holes.values() for k in filled.expr.keys()}  # noqa: SIM118 - a method of ours
            used |= self.source.counters.keys() | self.copies.keys()
            self.unused = [e for k, e in self.source.signature.entries.items() if k not in used and e.tied is None]
        buffer = self.target.signature.entries[key]
        return next(
            (
                e.key
                for e in self.unused
                if sorted(squeezed(e.shape)) == sorted(squeezed(buffer.shape)) and kind_of(e) == kind_of(buffer)
            ),
            None,
        )


_JOINED = "in which order its channels stand is in the code only"


def _joined_by(piece: Piece | None) -> dict[str, int] | None:
    """The place of each branch that a layer of the source takes side by side, where its code was followed."""
    joined = piece.entry.notes.get("joined") if piece is not None else None
    return {key: place for place, (key, _) in enumerate(joined)} if joined else None


def _is_matrix(piece: Piece) -> bool:
    """Whether the model multiplies with it."""
    used = piece.entry.how in PRODUCTS or piece.entry.module == "Linear"
    return used and len(piece.shape) in (2, 3)


def _swapped(names: MappingOf[str, str], key: str) -> str:
    return names.get(key, key)


def label_of(unit: Unit, group: str) -> str | None:
    """What a unit's name says in the group of that name."""
    return next(label(g, unit.words) for g in table().groups if g.name == group)


def _evidence_text(t: Unit, s: Unit) -> str:
    found = list(dict.fromkeys(t.evidence))
    if not found:
        return "the only one of its shape"
    return ", ".join(found[-3:])


def _share_of_negatives(values: Values, keys: Sequence[str]) -> float | None:
    negative = total = 0
    for key in keys:
        found = values(key)
        if found is None:
            continue
        negative += int((found < 0).sum())
        total += int(found.size)
    return negative / total if total else None


def _left_in(left: MappingOf[str, Sequence[str]], path: str, leaf: str) -> str | None:
    """What nothing reads of the layer at PATH whose LEAF is read; wrapped layers keep more beside the wrapper."""
    for layer in (path, path.removesuffix(".module")):
        for key in left.get(layer, ()):
            if (layer == path and cut(leaf) in table().leaves) or key.startswith(f"{layer}.{leaf}"):
                return key
    return None


def _rotary_by_name(path: Sequence[str]) -> Rotary | None:
    """How queries and keys are paired by rotary embeddings in code that uses this name, the longest that is known."""
    for end in (len(path), len(path) - 1):  # what was taken out of a fused projection has its name behind it
        words = words_of(path[max(end - 2, 0) : end])
        for start in range(len(words)):
            if words[start:] in table().rotary:
                return table().rotary[words[start:]]
    return None
