"""What else might go where: mappings to try where two models first give something else.

Where a use of weights takes what some use in the source's code takes, its weights are those, with channels in the order
in which they come: a forward pass shows that, whatever the names are. Where what it takes is in the source nowhere, the
weights before it are arranged otherwise: parts exchanged, heads that alternate, pairs of rotary embeddings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, replace
from itertools import accumulate, chain, combinations, islice, pairwise, permutations
from math import prod

import torch

from ...errors import RuleError
from .. import expression as ex
from ..expression import Expr, Shape
from ..fused import part_label
from ..mapping import Entry
from ..pieces import squeezed, substituted
from .fingerprints import pairing
from .flow import Flow, Held, Use
from .rows import Rows, Turn, by_heads, columns, joined, like, place_of

#: A name for a kind of change, which may work in other blocks too, and the expressions that it changes.
Change = tuple[str, dict[str, Expr]]

_MATRICES = frozenset({"linear", "conv"})
_VECTORS = frozenset({"norm", "scale", "shift", "depthwise"})
_HEAD_SIZES = (64, 128, 32, 96, 80, 16, 8, 4, 2, 12, 24, 6)
_HEAD_COUNTS = (2, 4, 8, 12, 16, 3, 6, 24, 32, 1, 5, 10)


@dataclass(slots=True)
class Ground:
    """What hypotheses are made from.

    Attributes:
        entries: the mapping so far, by key of the model.
        own: what flows through the model with it.
        theirs: what flows through the source's code.
        shapes: of the source.
        factors: what low-rank adapters may be multiplied with.
    """

    entries: dict[str, Entry]
    own: Flow
    theirs: Flow
    shapes: MappingOf[str, Shape]
    factors: Sequence[float] = ()

    def for_use(self, f: Use) -> Iterator[Change]:
        """What the weights of F, or those before it, might be instead; the likeliest first."""
        yield from self._adapters(f)
        if any("lora" in e.expr.operations() for k in f.keys if (e := self.entries.get(k)) and e.expr is not None):
            return  # what an adapted layer gives is in the source in two parts
        matched = self._takes_the_same(f)
        if matched:
            yield from self._from_what_goes_in(f, matched)
        yield from self._made_together(f)
        yield from self._rivals(f)
        if not matched:
            yield from self._arrangements(f)
        yield from self._values(f)
        yield from self._any_of_these_sizes(f)
        if matched:
            yield from self._arrangements(f)

    def twice(self, f: Use) -> Iterator[Change]:
        """Rows before F in another order, and paired otherwise as well, where neither alone shows anything."""
        for group in self._groups_before(f):
            rows = [self._current(u) for u in group]
            if any(r.weight is None for r in rows):
                continue
            for label, turn in self._turned(group):
                for other, new in self._orders(rows):
                    yield from self._rearranged(f"{other}; {label}", group, turn(new))

    def at_once(self, fronts: Sequence[Use]) -> Iterator[Change]:
        """What goes in shows for all of FRONTS, where one alone shows nothing, as the members of a stack."""
        by_keys: dict[tuple[str, ...], list[tuple[Held | None, Expr | None]]] = {}
        for f in fronts:
            fitting = [(u, order) for u, order in self._takes_the_same(f) if "weight" in u.held and u.rows == f.rows]
            if f.kind in _MATRICES and "weight" in f.held and len(fitting) == 1:
                ((u, order),) = fitting
                pairs = by_keys.setdefault(f.held["weight"].keys, [])
                pairs.append((f.held["weight"], columns(self.theirs_of(u.held["weight"]), order, 1)))
                if (bias := _bias(f, self.own)) is not None:
                    theirs = self.theirs_of(_bias(u, self.theirs))
                    pairs.append((bias, Expr("zeros", (), bias.shape) if theirs is None else theirs))
        new: dict[str, Expr] = {}
        for pairs in by_keys.values():
            new |= self.put(pairs) or {}
        if any(self.entries[key].expr != expr for key, expr in new.items()):
            yield "the same goes in at several places", new

    # -- the model's side

    def now(self, held: Held | None) -> Expr | None:
        """What a weight of the model is made of now, as it is used."""
        if held is None or held.expr is None:
            return None
        values = {}
        for key in held.keys:
            entry = self.entries.get(key)
            if entry is None or entry.expr is None:
                return None
            values[key] = entry.expr
        try:
            return ex.simplified(substituted(held.expr, values), self.shapes)
        except RuleError:
            return None

    def put(self, pairs: Sequence[tuple[Held | None, Expr | None]]) -> dict[str, Expr] | None:
        """The entries that make these weights of the model these expressions, or None where that cannot be said."""
        own_shapes = {key: entry.shape for key, entry in self.entries.items()}
        pieces: dict[str, list[tuple[Expr, object]]] = {}
        for held, value in pairs:
            if held is None or value is None:
                continue
            if held.expr is None:
                return None
            try:
                value = ex.reshape(value, held.shape, ex.shape_of(value, self.shapes))
                found = ex.inverted(value, held.expr, own_shapes)
            except RuleError:
                return None
            for key, parts in (found or {}).items():
                pieces.setdefault(key, []).extend(parts)
            if found is None:
                return None
        out = {}
        for key, parts in pieces.items():
            made = self._whole(key, parts)
            if made is None:
                return None
            out[key] = made
        return out

    def _whole(self, key: str, pieces: list[tuple[Expr, object]]) -> Expr | None:
        """A key from its pieces; what they leave out stays what it is."""
        entry = self.entries[key]
        made = ex.reassembled(pieces, entry.shape)
        kind = pieces[0][1]
        if made is None and entry.expr is not None and isinstance(kind, tuple) and kind[:2] == ("slice", 0):
            parts, at = [], 0
            for value, piece in sorted(pieces, key=lambda p: p[1][2]):  # type: ignore[index]
                start, stop = piece[2], piece[3]  # type: ignore[index]
                parts += [ex.part(entry.expr, 0, at, start)] if start > at else []
                parts.append(value)
                at = stop
            rest = self._going_on(parts[-1], entry.shape[0] - at) if at < entry.shape[0] else None
            if rest is not None:
                parts[-1] = rest
                at += ex.shape_of(rest, self.shapes)[0] - (piece[3] - piece[2])  # type: ignore[index]
            parts += [ex.part(entry.expr, 0, at, entry.shape[0])] if at < entry.shape[0] else []
            made = ex.cat(0, *parts)
        if made is None:
            return None
        try:
            made = ex.simplified(made, self.shapes)
            have = ex.shape_of(made, self.shapes)
        except RuleError:
            return None
        if have != entry.shape:
            return ex.reshape(made, entry.shape) if prod(have) == prod(entry.shape) else None
        return made

    def _going_on(self, rows: Expr, more: int) -> Expr | None:
        """Rows of a table that are looked up with as many MORE of it as it has: those of longer texts."""
        rows = ex.simplified(rows, self.shapes)
        if rows.op != "slice" or rows.params[0] != 0 or not rows.args[0].is_copy:
            return None
        table, (_, start, stop) = rows.args[0], rows.params
        end = min(int(stop) + more, self.shapes[table.key][0])
        return ex.part(table, 0, int(start), end) if end > int(stop) else None

    # -- what takes the same

    def _takes_the_same(self, f: Use) -> list[tuple[Use, list[int]]]:
        """The uses in the source that take the channels that F takes, and the order in which they come there."""
        if f.taken is None:
            return []
        found: dict[object, tuple[Use, list[int]]] = {}
        again = [u for u in self.own.uses if u.told == f.told] if f.told in self.own.repeated else [f]
        mine = [u.taken for u in (f, *self.own.repeated.get(f.told, ()), *again[:1]) if u.taken is not None]
        for s in chain(self.theirs.uses, *self.theirs.repeated.values()):
            if s.taken is None or not _same_family(f, s):
                continue
            order = next((o for taken in mine if (o := pairing(taken, s.taken)) is not None), None)
            if order is not None:
                found.setdefault((s.keys, s.held["weight"].expr if "weight" in s.held else None), (s, order))
        return list(found.values())

    def _from_what_goes_in(self, f: Use, matched: list[tuple[Use, list[int]]]) -> Iterator[Change]:
        if f.kind == "table":
            yield from self._tables(f, [s for s, _ in matched])
            return
        for u, order in matched:
            if order == sorted(order):
                yield from self._key_by_key(f, u)
        if f.kind in _VECTORS:
            for u, order in matched:
                pairs = [(f.held[role], columns(self.theirs_of(held), order, 0)) for role, held in u.held.items()
                         if role in f.held]  # fmt: skip
                yield from self._change("the same goes in", pairs)
            return
        sources = [
            Rows(columns(self.theirs_of(u.held["weight"]), order, 1), self.theirs_of(_bias(u, self.theirs)), u.rows)
            for u, order in matched
            if "weight" in u.held
        ]
        sources = [s for s in sources if s.weight is not None]
        twins = self._twins(f)
        if len(twins) > 1 and len(twins) == len(sources) and [t.rows for t in twins] == [s.rows for s in sources]:
            yield from self._rows("the same goes in, in the order of use", twins, sources)
        taken = {key for t in twins if t is not f for e in [self.now(t.held["weight"])] if e for key in e.keys()}  # noqa: SIM118
        fitting = [s for s in sources if s.rows == f.rows]
        for s in sorted(fitting, key=lambda s: s.weight is not None and set(s.weight.keys()) <= taken):
            yield from self._rows("the same goes in", [f], [s])
        if sum(t.rows for t in twins) == sum(s.rows for s in sources):
            yield from self._rows("the same goes in, rows in the order of use", twins, sources)
        for first in range(len(sources)):
            for last in range(first + 2, min(first + 8, len(sources)) + 1):
                if sum(s.rows for s in sources[first:last]) == f.rows:
                    yield from self._rows("the same goes into several", [f], sources[first:last])
        for s in sources:
            parts = [s.part(k, k + f.rows) for k in range(0, s.rows - f.rows + 1, f.rows)] if s.rows > f.rows else []
            for k, part in enumerate(sorted(parts, key=lambda part: self._is_used(part.weight))):
                yield from self._rows(f"the same goes in, part {k}", [f], [part])
            if s.rows > f.rows and s.rows % f.rows:
                yield from self._rows("the same goes in, the last rows", [f], [s.part(s.rows - f.rows, s.rows)])

    def _is_used(self, x: Expr | None) -> bool:
        """Whether some key of the model is made of this already."""
        plain = None if x is None else ex.simplified(x, self.shapes)
        return any(e.expr == plain for e in self.entries.values())

    def _key_by_key(self, f: Use, s: Use) -> Iterator[Change]:
        """The keys of S for those of F, where both compute what they use from several."""
        if not any(held.expr is None for held in f.held.values()):
            return
        new: dict[str, Expr] = {}
        for role in dict.fromkeys([*f.held, "bias"]):
            held = f.held.get(role) if role != "bias" else _bias(f, self.own)
            other = s.held.get(role) if role != "bias" else _bias(s, self.theirs)
            if held is None:
                continue
            if other is None or len(other.keys) != len(held.keys):
                return
            for own, key in zip(sorted(held.keys), sorted(other.keys), strict=True):
                if own not in self.entries or self.shapes.get(key) != self.entries[own].shape:
                    return
                new[own] = ex.of(key)
        if any(self.entries[own].expr != expr for own, expr in new.items()):
            yield "the same goes in", new

    def _made_together(self, f: Use) -> Iterator[Change]:
        """What both codes compute of weights alone, of which some are known: the others are each other's."""
        if all(held.expr is not None for held in f.held.values()):
            return
        made = {own: set(self.entries[own].sources) for own in f.keys if own in self.entries}
        for s in self.theirs.uses:
            shared = {key for keys in made.values() for key in keys & set(s.keys)}
            own = [key for key, keys in made.items() if not keys & shared]
            theirs = [key for key in s.keys if key not in shared and key in self.shapes]
            if shared and len(own) == len(theirs) <= 4:
                for order in permutations(theirs):
                    for turned in (False, True):
                        new = self._each_for_each(own, order, turned)
                        if new and any(self.entries[key].expr != expr for key, expr in new.items()):
                            yield "computed with the same", new

    def _each_for_each(self, own: Sequence[str], theirs: Sequence[str], turned: bool) -> dict[str, Expr] | None:
        """Keys of the source for keys of the model; square matrices as they are, or TURNED."""
        new: dict[str, Expr] = {}
        for key, other in zip(own, theirs, strict=True):
            wanted, have = self.entries[key].shape, self.shapes[other]
            if wanted == have and not (turned and len(have) == 2 and have[0] == have[1]):
                new[key] = ex.of(other)
            elif len(have) == 2 and wanted == have[::-1]:
                new[key] = ex.transpose(ex.of(other))
            else:
                return None
        return new

    def _twins(self, f: Use) -> list[Use]:
        """F and the other matrices that take what it takes."""
        if f.taken is None:
            return [f]
        return [
            u
            for u in self.own.uses
            if u.kind == f.kind
            and u.before == f.before
            and "weight" in u.held
            and u.taken is not None
            and torch.equal(u.taken, f.taken)
        ]

    def theirs_of(self, held: Held | None) -> Expr | None:
        """A weight as the source's code uses it; where that is computed, as the mapping computes it already."""
        if held is None:
            return None
        if held.expr is not None:
            return held.expr
        keys = set(held.keys)
        if len(keys) == 2 and all(key in self.shapes for key in keys):
            g, v = sorted(keys, key=lambda key: prod(self.shapes[key]))
            if self.shapes[v] == held.shape and self.shapes[g] == (held.shape[0],) + (1,) * (len(held.shape) - 1):
                return Expr("weight_norm", (ex.of(g), ex.of(v)))
        return next(
            (e.expr for e in self.entries.values() if e.expr is not None and set(e.sources) == keys and len(keys) > 1
             and squeezed(e.shape) == squeezed(held.shape)),
            None,
        )  # fmt: skip

    def _rows(self, label: str, uses: Sequence[Use], sources: Sequence[Rows]) -> Iterator[Change]:
        """The rows of SOURCES, one after the other, as those of USES."""
        weights = [s.weight for s in sources if s.weight is not None]
        some = any(s.bias is not None for s in sources)
        biases = [s.bias if s.bias is not None else Expr("zeros", (), (s.rows,)) for s in sources]
        edges = [0, *accumulate(u.rows for u in uses)]
        if [u.rows for u in uses] == [s.rows for s in sources]:
            split: list[tuple[Expr, Expr]] = list(zip(weights, biases, strict=True))
        else:
            try:
                sizes = [ex.shape_of(w, self.shapes) for w in weights]
                flat = [ex.reshape(w, (n[0], prod(n[1:])), n) for w, n in zip(weights, sizes, strict=True)]
            except RuleError:
                return
            w, b = ex.cat(0, *flat), ex.cat(0, *biases)
            split = [(ex.part(w, 0, i, j), ex.part(b, 0, i, j)) for i, j in pairwise(edges)]
        pairs: list[tuple[Held | None, Expr | None]] = []
        for u, (w, b) in zip(uses, split, strict=True):
            own_bias = _bias(u, self.own)
            pairs.append((u.held["weight"], w))
            if own_bias is not None:
                pairs.append((own_bias, b if some else Expr("zeros", (), own_bias.shape)))
        yield from self._change(label, pairs)

    def _tables(self, f: Use, matched: Sequence[Use]) -> Iterator[Change]:
        """Tables of words or places, of which the model may have fewer rows."""
        own = f.held["weight"]
        for s in matched:
            x = self.theirs_of(s.held.get("weight"))
            if x is not None and s.rows > f.rows and s.rows % f.rows == 0 and s.held["weight"].shape[0] == own.shape[0]:
                cut = [ex.part(x, 1, k, k + f.rows) for k in range(0, s.rows, f.rows)]
                for part in sorted(cut, key=self._is_used):
                    yield from self._change("columns of a table", [(own, part)])
            if x is None or s.rows != f.rows:
                continue
            have, want = s.held["weight"].shape[0], own.shape[0]
            for start in dict.fromkeys([0, have - want, 1, 2] if have > want else [0]):
                if have >= want + start:
                    yield from self._change(
                        f"table from row {start} on", [(own, x if have == want else ex.part(x, 0, start, start + want))]
                    )

    def _change(self, label: str, pairs: Sequence[tuple[Held | None, Expr | None]]) -> Iterator[Change]:
        new = self.put(pairs)
        if new and any(self.entries[key].expr != expr for key, expr in new.items()):
            yield label, new

    # -- arranged otherwise

    def _arrangements(self, f: Use) -> Iterator[Change]:
        """Rows of what comes before F in another order, which the set of channels does not show."""
        groups = [g for g in self._groups_before(f) if all(self.now(u.held["weight"]) is not None for u in g)]
        yield from self._gates(f, groups)
        for group in groups:
            rows = [self._current(u) for u in group]
            for label, new in self._orders(rows):
                yield from self._rearranged(label, group, new)
            for label, turn in self._turned(group):
                yield from self._rearranged(label, group, turn(rows))

    def _gates(self, f: Use, groups: Sequence[Sequence[Use]]) -> Iterator[Change]:
        """Gates of a recurrent layer in another order, in what they make of the input and of the state alike."""
        direct = [u for group in groups for u in group if u.index in f.before or f.before & _after(u, self.own)]
        for n in (4, 3):
            members = [u for u in direct if u.rows % n == 0 and u.rows == direct[0].rows]
            members = list({u.told: u for u in members}.values())
            if len(members) < 2:
                continue
            for order in islice(permutations(range(n)), 1, None):
                pairs: list[tuple[Held | None, Expr | None]] = []
                for u in members:
                    now, size = self._current(u), u.rows // n
                    new = joined([now.part(i * size, (i + 1) * size) for i in order])
                    pairs += [(u.held["weight"], new.weight), (_bias(u, self.own), new.bias)]
                yield from self._change(f"gates in the order {order}", pairs)

    def _groups_before(self, f: Use) -> list[list[Use]]:
        """The matrices whose results F takes, over norms and the like, those that take the same together."""
        found: list[Use] = []
        open_ = set(f.before)
        for _ in range(4):
            uses = [self.own.uses[i] for i in sorted(open_)]
            found += [u for u in uses if u.kind in _MATRICES and u not in found and "weight" in u.held]
            through = [u for u in uses if u.kind not in _MATRICES]
            open_ = set(chain.from_iterable(u.before for u in through))
        found += [t for u in list(found) for t in self._twins(u) if t not in found]
        by_input: dict[frozenset[int], list[Use]] = {}
        for u in sorted(found, key=lambda u: u.index):
            if len(by_input.setdefault(u.before, [])) < 8:
                by_input[u.before].append(u)
        return list(by_input.values())[:4]

    def _current(self, u: Use) -> Rows:
        return Rows(self.now(u.held["weight"]), self.now(_bias(u, self.own)), u.rows)

    def _rearranged(self, label: str, group: Sequence[Use], rows: Sequence[Rows] | None) -> Iterator[Change]:
        if rows is None or [r.rows for r in rows] != [u.rows for u in group]:
            return
        pairs: list[tuple[Held | None, Expr | None]] = []
        for u, r in zip(group, rows, strict=True):
            pairs += [(u.held["weight"], r.weight), (_bias(u, self.own), r.bias)]
        yield from self._change(label, pairs)

    def _orders(self, rows: Sequence[Rows]) -> Iterator[tuple[str, list[Rows]]]:
        """Parts in another order; parts that alternate by head, or do not."""
        sizes = [r.rows for r in rows]
        if 2 <= len(rows) <= 4 and len(set(sizes)) == 1:
            for order in islice(permutations(range(len(rows))), 1, None):
                yield f"parts in the order {order}", [rows[i] for i in order]
        whole = joined(sorted(rows, key=place_of))
        if 2 <= len(rows) <= 4 and len(set(sizes)) > 1:
            for order in islice(permutations(range(len(rows))), 1, None):
                ends = dict(zip(order, accumulate(sizes[i] for i in order), strict=True))
                yield f"parts cut in the order {order}", [whole.part(ends[i] - n, ends[i]) for i, n in enumerate(sizes)]
        if len(rows) > 2 and len(set(sizes)) > 1:
            for i, j in combinations(range(len(rows)), 2):
                if sizes[i] == sizes[j]:
                    swapped = list(rows)
                    swapped[i], swapped[j] = rows[j], rows[i]
                    yield f"parts {i} and {j} exchanged", swapped
        for n in (3, 2, 4):
            if whole.rows % n or (len(rows) > 1 and (len(rows) != n or len(set(sizes)) > 1)):
                continue
            size = whole.rows // n
            cut = [whole.part(i * size, (i + 1) * size) for i in range(n)]
            every = list(permutations(range(n)))
            if len(rows) == 1:
                for order in every[1:]:
                    yield f"{n} parts in the order {order}", like(rows, [cut[i] for i in order])
            for heads in _HEAD_COUNTS if n < 4 else ():
                if size % heads or heads == 1:
                    continue
                apart = [whole.of_heads(heads, n, i) for i in range(n)]
                for order in every:
                    yield f"{n} parts by {heads} heads, {order}", like(rows, [apart[i] for i in order])
                if len(rows) == 1:
                    for order in every:
                        together = by_heads(heads, [cut[i] for i in order])
                        yield f"{n} parts to {heads} heads, {order}", [together]
        if len(rows) == 3 and sizes[1] == sizes[2] and sizes[0] > sizes[1] and sizes[0] % sizes[1] == 0:
            times = sizes[0] // sizes[1]
            for heads in _HEAD_COUNTS:
                if sizes[1] % heads:
                    continue
                blocks = [whole.of_heads(heads, times + 2, i) for i in range(times + 2)]
                yield (
                    f"groups of {times} queries by {heads} heads",
                    [by_heads(heads, blocks[:times]), blocks[times], blocks[times + 1]],
                )

    def _turned(self, group: Sequence[Use]) -> Iterator[tuple[str, Turn]]:
        """Rows of queries and keys paired otherwise, as rotary embeddings take them."""
        said = [part_label(tuple(u.keys[0].split(".")[:-1])) if u.keys else None for u in group]
        named = [i for i, part in enumerate(said) if part in ("q", "k")]
        sizes = [u.rows for u in group]
        choices: list[tuple[int, ...]] = [tuple(named)] if len(named) == 2 else []
        choices += (
            [pair for pair in combinations(range(len(group)), 2) if pair not in choices] if len(group) < 5 else []
        )
        if len(group) == 1 and sizes[0] % 3 == 0:
            choices.append(())
        for chosen in choices:
            for head in _HEAD_SIZES:
                widths = [sizes[i] for i in chosen] or [sizes[0] // 3]
                if any(w % head for w in widths):
                    continue
                for kind in ("half", "interleaved"):
                    yield f"pairs of rotary embeddings of {head} {kind} {chosen}", Turn(chosen, head, kind)

    # -- other values

    def _rivals(self, f: Use) -> Iterator[Change]:
        """What the mapping says fits as well, for F and for what comes before it."""
        near = [f, *(self.own.uses[i] for i in sorted(f.before)[-8:])]
        keys = list(dict.fromkeys(key for u in near for key in u.keys if key in self.entries))
        doubtful = [self.entries[key] for key in keys if self.entries[key].rivals]
        for number in range(max((len(e.rivals) for e in doubtful), default=0)):
            fitting = {e.target: e.rivals[number] for e in doubtful if len(e.rivals) > number}
            yield f"rival {number}", fitting
            by_module: dict[str, dict[str, Expr]] = {}
            for key, expr in fitting.items():
                by_module.setdefault(key.rpartition(".")[0], {})[key] = expr
            if len(by_module) > 1:
                for new in by_module.values():
                    yield f"rival {number} of one", new
            for new in by_module.values():  # whoever had it gets that instead
                back = {
                    key: self.entries[own].expr
                    for own, expr in new.items()
                    for key, e in self.entries.items()
                    if e.expr == expr and key not in new
                }
                if back:
                    yield f"exchanged with rival {number}", new | {k: x for k, x in back.items() if x is not None}

    def _values(self, f: Use) -> Iterator[Change]:
        """Weights around 0 or around 1; low-rank adapters with another factor."""
        own = [self.entries[key] for key in f.keys if key in self.entries and self.entries[key].expr is not None]
        for e in own:
            assert e.expr is not None
            inner = e.expr.args[0] if e.expr.op == "shift" else e.expr
            if len(squeezed(e.shape)) == 1 and f.kind in _VECTORS:
                for amount in (1.0, -1.0):
                    yield f"{amount:+g}", {e.target: Expr("shift", (inner,), (amount,))}

    def _adapters(self, f: Use) -> Iterator[Change]:
        """Low-rank adapters with another factor, all of them: what comes of one alone is not seen."""
        near = {key for u in (f, *(self.own.uses[i] for i in f.before)) for key in u.keys}
        adapted = {k: e.expr for k, e in self.entries.items() if e.expr is not None and "lora" in e.expr.operations()}
        if near & adapted.keys():
            for factor in dict.fromkeys([*self.factors, *_FACTORS]):
                yield f"adapters times {factor:g}", {key: _with_factor(expr, factor) for key, expr in adapted.items()}

    def _any_of_these_sizes(self, f: Use) -> Iterator[Change]:
        """Any weight of these sizes in the source, the nearest in the order of execution first."""
        own = f.held.get("weight") or f.held.get("bias")
        if own is None:
            return
        place = f.index / max(len(self.own.uses), 1)
        length = max(len(self.theirs.uses), 1)
        seen = set()
        count = 0
        for s in sorted(self.theirs.uses, key=lambda s: abs(s.index / length - place)):
            have = s.held.get("weight") or s.held.get("bias")
            if have is None or (_family(s) != _family(f) and f.kind != "table") or s.keys in seen:
                continue
            if f.kind == "table" and s.kind == "table":
                seen.add(s.keys)
                yield from self._tables(f, [s])
                continue
            if sorted(squeezed(have.shape)) != sorted(squeezed(own.shape)) and prod(have.shape) != prod(own.shape):
                continue
            seen.add(s.keys)
            count += 1
            if count > 16:
                return
            bias = (_bias(f, self.own), self.theirs_of(_bias(s, self.theirs)))
            for label, x in self._in_other_sizes(self.theirs_of(have), have.shape, own.shape):
                pairs: list[tuple[Held | None, Expr | None]] = [(own, x)]
                if own is f.held.get("weight"):
                    pairs.append(bias)
                yield from self._change(label, pairs)

    def _in_other_sizes(self, x: Expr | None, have: Shape, own: Shape) -> Iterator[tuple[str, Expr]]:
        if x is None:
            return
        a, b = squeezed(have), squeezed(own)
        if a == b:
            yield "of these sizes", x
        elif prod(a) != prod(b):
            return
        if len(a) == len(b) <= 5 and sorted(a) == sorted(b):
            for order in islice(permutations(range(len(a))), 1, None):
                if tuple(a[i] for i in order) == b:
                    yield f"dimensions in the order {order}", ex.permute(ex.reshape(x, a, have), *order)
        elif a[:1] == b[:1]:
            if 3 <= len(a) <= 4:
                for order in permutations(range(1, len(a))):
                    moved = ex.permute(ex.reshape(x, a, have), 0, *order)
                    yield f"as rows, dimensions in the order {order}", ex.reshape(moved, own)
            elif 3 <= len(b) <= 4:
                for order in permutations(range(1, len(b))):
                    # laid out as (rows, …) in that order, and put back
                    back = [0] * len(b)
                    for new, old in enumerate((0, *order)):
                        back[old] = new
                    laid = ex.reshape(x, tuple(b[i] for i in (0, *order)))
                    yield f"from rows, dimensions in the order {order}", ex.reshape(ex.permute(laid, *back), own, b)


_FACTORS = (1.0, 2.0, 0.5, 4.0, 0.25, 8.0, 0.125, 16.0, 0.0625, 32.0)


def _with_factor(x: Expr, factor: float) -> Expr:
    if x.op == "lora":
        return replace(x, params=(factor,))
    return replace(x, args=tuple(_with_factor(arg, factor) for arg in x.args))


def _family(use: Use) -> str:
    return "matrix" if use.kind in _MATRICES else "vector" if use.kind in _VECTORS else use.kind


def _after(use: Use, flow: Flow) -> frozenset[int]:
    """What only adds something to the result of USE."""
    near = flow.uses[use.index + 1 : use.index + 4]
    return frozenset(u.index for u in near if u.kind == "shift" and u.before == frozenset({use.index}))


def _same_family(a: Use, b: Use) -> bool:
    return a.kind == b.kind or (a.kind in _MATRICES and b.kind in _MATRICES)


def _bias(use: Use, flow: Flow) -> Held | None:
    """The bias of a use, also where it is added afterwards."""
    if "bias" in use.held or use.kind not in _MATRICES:
        return use.held.get("bias")
    for other in flow.uses[use.index + 1 : use.index + 16]:
        if other.kind == "shift" and other.before == frozenset({use.index}) and "bias" in other.held:
            held = other.held["bias"]
            return held if prod(held.shape) == use.rows else None
    return None


__all__ = ["Change", "Ground"]
