"""The present mapping and the flows of both models with it, from which changes are proposed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from math import prod

from ...errors import RuleError
from .. import expression as ex
from ..expression import Expr, Shape
from ..forms.pieces import squeezed, substituted
from ..mapping import Entry
from .fingerprints import pairing
from .flow import Flow, Held, Use
from .rows import Rows, columns

#: A name for a kind of change, which may work in other blocks too, and the expressions that it changes.
Change = tuple[str, dict[str, Expr]]


@dataclass(slots=True)
class Ground:
    """What changes are proposed from: the present mapping, and the forward passes of both models.

    Attributes:
        entries: the present mapping, by key of the model.
        own: the flow of the model with these entries.
        theirs: the flow of the source's code.
        shapes: key of the source -> its sizes.
        factors: possible scales of low-rank adapters.
    """

    entries: dict[str, Entry]
    own: Flow
    theirs: Flow
    shapes: MappingOf[str, Shape]
    factors: Sequence[float] = ()
    _next: list[Use] | None = field(default=None, repr=False)

    @property
    def next_uses(self) -> list[Use]:
        """Return the layers of the source's code that come next: the model gives the outputs of all layers directly
        before them (if there are any), but not their own output. [] if there are none. They are found only once.
        """
        if self._next is None:
            given = [self.own.gives(use.given) for use in self.theirs.uses]
            place = {use.index: at for at, use in enumerate(self.theirs.uses)}
            self._next = [
                use
                for use, known in zip(self.theirs.uses, given, strict=True)
                if not known and all(given[place[i]] for i in use.before if i in place)
            ]
        return self._next

    @property
    def next_keys(self) -> frozenset[str]:
        """Return the keys of the source's uses that come next."""
        return frozenset(key for use in self.next_uses for key in use.keys)

    def now(self, held: Held | None) -> Expr | None:
        """Return the expression over keys of the source that the present mapping gives to HELD, a weight as the model
        uses it. None if HELD is None, if one of its keys has no source, if no expression makes HELD of its keys, or if
        the operations do not fit.
        """
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

    def put(self, pairs: Sequence[tuple[Held | None, Expr | None]], *, in_part: bool = False) -> dict[str, Expr] | None:
        """Return key of the model -> its new expression, with which each weight in PAIRS gets its new value. PAIRS has
        (weight as the model uses it, expression of its new value); a new value of other sizes is reshaped. Pairs with
        None are skipped; {} if no others are left. Nothing is changed here.

        A weight may be some rows of a key. If the new value is rows of a whole tensor of the source, the next rows of
        that tensor fill the rows after them, as far as there are any (`_going_on`); the other rows keep their present
        expression. If the key has none, IN_PART lets the other rows be zeros until other layers show them; without
        IN_PART the result is None.

        None also if no expression makes one of the weights of its keys, if sizes do not fit, or if no expression for a
        key gives the new value.
        """
        own_shapes = {key: entry.shape for key, entry in self.entries.items()}
        pieces: dict[str, list[tuple[Expr, Expr]]] = {}
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
            made = self._whole(key, parts, in_part)
            if made is None:
                return None
            out[key] = made
        return out

    def _whole(self, key: str, pieces: list[tuple[Expr, Expr]], in_part: bool = False) -> Expr | None:
        """Return the new expression of KEY, a key of the model, made of PIECES, pairs (expression of a value, part of
        the key that gets it). None if they do not make the whole key, or if the operations do not fit.

        If all pieces are slices of rows and do not cover the key, the other rows are added by `_with_rows`; if the key
        has no expression now, only with IN_PART. A result of other sizes is reshaped if it has as many numbers, else
        the result is None.
        """
        entry = self.entries[key]
        made = ex.reassembled(pieces, entry.shape)
        rows = [(*cut[1:], value) for value, piece in pieces if (cut := ex.rows_cut(piece)) is not None]
        if made is None and len(rows) == len(pieces) and (entry.expr is not None or in_part):
            made = self._with_rows(entry, sorted(rows, key=lambda cut: cut[0]))
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

    def _with_rows(self, entry: Entry, rows: Sequence[tuple[int, int, Expr]]) -> Expr:
        """Return the expression of ENTRY with some rows replaced. ROWS has (first row, row after the last, new value),
        in order. The rows before and between them keep their present expression, or are zeros if ENTRY has none. The
        rows after the last of them are the next rows of the table that the last value is cut from, as far as it has
        more (`_going_on`), and then likewise the present ones or zeros.
        """
        size = entry.shape[0]
        before = ex.zeros(*entry.shape) if entry.expr is None else entry.expr
        parts: list[Expr] = []
        at = 0
        for start, stop, value in rows:
            parts += [ex.part(before, 0, at, start)] if start > at else []
            parts.append(value)
            at = stop
        rest = self._going_on(parts[-1], size - at) if at < size else None
        if rest is not None:
            first, stop, _ = rows[-1]
            parts[-1] = rest
            at += ex.shape_of(rest, self.shapes)[0] - (stop - first)
        parts += [ex.part(before, 0, at, size)] if at < size else []
        return ex.cat(0, *parts)

    def _going_on(self, rows: Expr, more: int) -> Expr | None:
        """Return ROWS, rows cut from a table of the source, extended by up to MORE of its next rows: longer texts use
        these. None if ROWS are not cut from a whole tensor of the source, or if that has no more rows.
        """
        cut = ex.rows_cut(ex.simplified(rows, self.shapes))
        if cut is None or not cut[0].is_copy:
            return None
        table, start, stop = cut
        end = min(stop + more, self.shapes[table.key][0])
        return ex.part(table, 0, start, end) if end > stop else None

    def theirs_of(self, held: Held | None) -> Expr | None:
        """Return the expression, over keys of the source, of HELD, a weight as the source's code uses it. None if HELD
        is None.

        If HELD has no expression of its own, because the code computes it from several keys, the first of these that
        fits is returned, else None:

        - the weight norm of its keys, if these are two of the source, one of the sizes of HELD and one of the sizes
          [rows, 1, 1 …] (a factor for each row);
        - the expression of the first entry of the mapping that reads just these keys (two or more) and has the sizes of
          HELD, where sizes of 1 do not count.
        """
        if held is None:
            return None
        if held.expr is not None:
            return held.expr
        keys = set(held.keys)
        if len(keys) == 2 and all(key in self.shapes for key in keys):
            g, v = sorted(keys, key=lambda key: prod(self.shapes[key]))
            if self.shapes[v] == held.shape and self.shapes[g] == (held.shape[0],) + (1,) * (len(held.shape) - 1):
                return ex.weight_norm(ex.of(g), ex.of(v))
        return next(
            (e.expr for e in self.entries.values() if e.expr is not None and set(e.sources) == keys and len(keys) > 1
             and squeezed(e.shape) == squeezed(held.shape)),
            None,
        )  # fmt: skip

    def is_used(self, x: Expr | None) -> bool:
        """Return whether a key of the model has the expression X, simplified; for None, whether a key of the model has
        no expression.
        """
        plain = None if x is None else ex.simplified(x, self.shapes)
        return any(e.expr == plain for e in self.entries.values())

    def change(
        self, label: str, pairs: Sequence[tuple[Held | None, Expr | None]], *, in_part: bool = False
    ) -> Iterator[Change]:
        """Yield the change (LABEL, key -> expression) that gives weights of the model new expressions. PAIRS has
        (weight as the model uses it, its new expression); IN_PART is as for `put`.

        Nothing is yielded if no expressions for the keys of these weights do this, or if the keys have these
        expressions already.
        """
        new = self.put(pairs, in_part=in_part)
        if new and any(self.entries[key].expr != expr for key, expr in new.items()):
            yield label, new

    def twins(self, f: Use) -> list[Use]:
        """Return the layers of the model with a weight that are of the kind of F, a layer of the model, and have its
        input, from the same layers before; in the order of execution. F is among them if it has a weight. [F] if the
        input of F is not known. Inputs are the same if `pairing` finds all channels in their order: those of a sequence
        that is read from its end are rounded in another order.
        """
        if f.taken is None:
            return [f]
        return [
            u
            for u in self.own.uses
            if u.kind == f.kind
            and u.before == f.before
            and "weight" in u.held
            and u.taken is not None
            and pairing(u.taken, f.taken) == list(range(len(f.taken)))
        ]

    def current(self, u: Use) -> Rows:
        """Return the weight, the bias (`Flow.bias`) and the number of rows of the use U of the model, as the present
        mapping fills them; None for a weight or bias that is not known (`now`).
        """
        return Rows(self.now(u.held["weight"]), self.now(self.own.bias(u)), u.rows)

    def theirs_rows(self, u: Use, order: Sequence[int] | None) -> Rows:
        """Return the weight, the bias (`Flow.bias`) and the number of rows of the use U of the source's code, with the
        columns of the weight in ORDER; as they are if that is None. The weight is None if it has no expression
        (`theirs_of`), or if ORDER would cut it into more than 64 slices (`columns`).
        """
        weight = self.theirs_of(u.held["weight"])
        return Rows(columns(weight, order, 1) if order else weight, self.theirs_of(self.theirs.bias(u)), u.rows)

    def rows(self, label: str, uses: Sequence[Use], sources: Sequence[Rows]) -> Iterator[Change]:
        """Yield the change (LABEL, key -> expression) that gives the rows of SOURCES, concatenated, to USES, layers of
        the model: the first rows to the first layer, the next to the second …. Biases go along with the weights: zeros
        where SOURCES lack one, none where the layer has none. Nothing if the sizes do not fit, if no expressions for
        the keys do this, or if the keys have these expressions already.
        """
        some = any(s.bias is not None for s in sources)
        try:
            split = self._split(uses, sources)
        except RuleError:
            return
        pairs: list[tuple[Held | None, Expr | None]] = []
        for u, (w, b) in zip(uses, split, strict=True):
            own_bias = self.own.bias(u)
            pairs.append((u.held["weight"], w))
            if own_bias is not None:
                pairs.append((own_bias, b if some else ex.zeros(*own_bias.shape)))
        yield from self.change(label, pairs)

    def _split(self, uses: Sequence[Use], sources: Sequence[Rows]) -> list[tuple[Expr, Expr]]:
        """Return (weight, bias) for each of USES, layers of the model. If SOURCES are as many and each has as many rows
        as the layer in its place, these are their weights and biases. Else the rows of all SOURCES are flattened to
        vectors, concatenated and cut anew. A bias that is missing is zeros.

        Raises:
            RuleError: an operation does not fit the sizes.
        """
        weights = [s.weight for s in sources if s.weight is not None]
        biases = [s.bias if s.bias is not None else ex.zeros(s.rows) for s in sources]
        if [u.rows for u in uses] == [s.rows for s in sources]:
            return list(zip(weights, biases, strict=True))
        sizes = [ex.shape_of(w, self.shapes) for w in weights]
        flat = [ex.reshape(w, (n[0], prod(n[1:])), n) for w, n in zip(weights, sizes, strict=True)]
        w, b = ex.cat(0, *flat), ex.cat(0, *biases)
        edges = pairwise([0, *accumulate(u.rows for u in uses)])
        return [(ex.part(w, 0, i, j), ex.part(b, 0, i, j)) for i, j in edges]


def exchanged(entries: MappingOf[str, Entry], new: MappingOf[str, Expr]) -> dict[str, Expr]:
    """Return the change NEW, as key -> expression, with its other half: each other key of ENTRIES (key -> entry) that
    has the new expression of a key of NEW now, and the same sizes, gets the present expression of that key in exchange;
    nothing changes for it if that has none.
    """
    out = dict(new)
    for own, expr in new.items():
        old = entries[own].expr
        for key, entry in entries.items():
            if key not in out and entry.expr == expr and old is not None and entry.shape == entries[own].shape:
                out[key] = old
    return out


def module_of(key: str) -> str:
    """Return the path of the module that holds KEY: "a.b" for "a.b.weight", "" for "weight"."""
    return key.rpartition(".")[0]


__all__ = ["Change", "Ground", "exchanged", "module_of"]
