"""One form for both sides: names without wrappers, roles instead of leaf names, projections apart, layouts of torch.

The same steps are taken on the source and on the target. On the source a step makes expressions over its keys; on the
target it makes the expression that puts a key together again, with holes where sources go. So what is fused on one side
and apart on the other meets in the middle, and what is fused on both comes out as a copy.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from .. import keys as names
from ..signature import Entry, Signature
from . import expression as ex
from .expression import Expr, Shape
from .words import Fused, cut, numbers, table, words_of

#: What is merged or derived rather than matched.
_COUNTER = "num_batches_tracked"
#: Roles of statistics, which a model computes and does not learn.
STATISTICS = frozenset({"running_mean", "running_var"})


@dataclass(frozen=True, slots=True)
class Piece:
    """One tensor in the common form.

    Attributes:
        path: components of the module that it belongs to.
        role: what it is there ("weight", "bias", "running_mean", "weight_ih").
        shape: its sizes.
        expr: over the source's keys; for a target, over holes (its own `name`).
        order: place in the state dict.
        used: place in the execution order, or None.
        words: its names, for words; those of the key it came from and of what it became.
        entry: the entry that it came from.
        doubts: why a step that made it is not certain, and the expression that is as likely.
    """

    path: tuple[str, ...]
    role: str
    shape: Shape
    expr: Expr
    order: float
    used: float | None
    words: tuple[str, ...]
    entry: Entry
    doubts: tuple[tuple[str, Expr | None], ...] = ()

    @property
    def name(self) -> str:
        """Its name in the common form."""
        return ".".join(self.path) + "|" + self.role


@dataclass(slots=True)
class Canon:
    """One side in the common form.

    Attributes:
        signature: what it was made from.
        is_target: expressions are over holes.
        pieces: by name.
        assembly: for a target, each key as an expression over holes.
        counters: keys of `num_batches_tracked`.
        notes: what was done, for the report.
    """

    signature: Signature
    is_target: bool
    pieces: dict[str, Piece] = field(default_factory=dict)
    assembly: dict[str, Expr] = field(default_factory=dict)
    counters: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, piece: Piece) -> Piece:
        """Add a piece; one whose name is taken gets another."""
        while piece.name in self.pieces:
            piece = replace(piece, path=(*piece.path, "again"))
        if self.is_target:
            piece = replace(piece, expr=ex.of(piece.name))
        self.pieces[piece.name] = piece
        return piece

    def become(self, old: Piece, new: Sequence[tuple[Piece, Callable[[Expr], Expr]]], up: Callable[..., Expr]) -> None:
        """Replace OLD by NEW pieces: each with what makes it from OLD; UP makes OLD from them."""
        del self.pieces[old.name]
        placed = [self.put(replace(piece, expr=down(old.expr))) for piece, down in new]
        if self.is_target:
            self._fill(old.name, up(*(piece.expr for piece in placed)))

    def _fill(self, hole: str, value: Expr) -> None:
        for key, expr in self.assembly.items():
            if hole in expr.keys():  # noqa: SIM118
                self.assembly[key] = substituted(expr, {hole: value})

    def merge(
        self, olds: Sequence[Piece], new: Piece, down: Callable[..., Expr], up: Sequence[Callable[[Expr], Expr]]
    ) -> None:
        """Replace OLDS by one NEW piece, made by DOWN from them; UP makes each of them from it."""
        for old in olds:
            del self.pieces[old.name]
        placed = self.put(replace(new, expr=down(*(old.expr for old in olds))))
        if self.is_target:
            for old, make in zip(olds, up, strict=True):
                self._fill(old.name, make(placed.expr))


def substituted(expr: Expr, values: dict[str, Expr]) -> Expr:
    """EXPR with some keys replaced by expressions."""
    if expr.op == "key":
        return values.get(expr.key, expr)
    return replace(expr, args=tuple(substituted(arg, values) for arg in expr.args))


def canonical(signature: Signature, *, is_target: bool) -> Canon:
    """The common form of one side, as far as it can be had without looking at the other."""
    canon = Canon(signature, is_target)
    entries = [e for e in signature.entries.values() if e.tied is None]
    short = names.unwrap([entry.key for entry in entries])
    tops = {key.split(".")[0] for key in short.values()}
    collections = table().collections if tops <= table().collections else frozenset()
    split = {}
    siblings: dict[tuple[str, ...], set[str]] = defaultdict(set)
    for entry in entries:
        path = tuple(short[entry.key].split("."))
        if collections and len(path) > 1:
            path = path[1:]
        split[entry.key] = path
        siblings[path[:-1]].add(path[-1])
    for order, entry in enumerate(entries):
        path, role = role_of(split[entry.key], siblings[split[entry.key][:-1]])
        if role == _COUNTER:
            canon.counters[entry.key] = ".".join(path)
            continue
        words = words_of(path)  # without the leaf: that two things have a mean does not make them alike
        piece = Piece(path, role, entry.shape, ex.of(entry.key), order, entry.used, words, entry)
        piece = canon.put(piece)
        if is_target:
            canon.assembly[entry.key] = piece.expr
    for piece in list(canon.pieces.values()):
        _torch_layout(canon, piece, split[piece.entry.key][-1])
    if not is_target:
        _turn_by_vote(canon)
    _missing_key_bias(canon)
    _gated(canon)
    return canon


_RNN = re.compile(r"(weight|bias)_(ih|hh|hr)(?:_l(\d+))?(_reverse)?\Z")
_SUFFIX = re.compile(r"(.+)_(weight|bias|kernel)\Z")


def role_of(path: tuple[str, ...], siblings: set[str]) -> tuple[tuple[str, ...], str]:
    """The module path and the role of a key, whatever its leaf is called."""
    if "parametrizations" in path:
        at = path.index("parametrizations")
        base, what = path[:at], path[at + 1] if at + 1 < len(path) else "weight"
        leaf = path[-1]
        roles = {"original0": "g", "original1": "v", "original": "orig", "_u": "u", "_v": "sv"}
        return base, f"{what}_{roles.get(leaf, leaf)}"
    head, leaf = path[:-1], path[-1]
    rnn = _RNN.match(leaf)
    if rnn:
        inner = ((rnn[3],) if rnn[3] else ()) + (("reverse",) if rnn[4] else ())
        return (*head, *inner), f"{rnn[1]}_{rnn[2]}"
    if leaf == "weight_v" and "weight_orig" in siblings:
        return head, "weight_sv"
    role = table().leaves.get(cut(leaf))
    if role is not None and head:
        if (
            role == "bias"
            and leaf not in ("bias",)
            and not siblings & {"weight", "gamma", "scale", "kernel", "w", "a_2"}
        ):
            return path, "weight"  # a parameter that is alone is no bias of anything
        return head, role
    if {"q_bias", "v_bias"} <= siblings and leaf in ("q_bias", "k_bias", "v_bias"):
        return path, "bias"
    suffix = _SUFFIX.match(leaf)
    if suffix:
        return (*head, suffix[1]), "weight" if suffix[2] == "kernel" else suffix[2]
    if leaf.endswith("_scale") and f"{leaf[:-6]}_bias" in siblings:
        return (*head, leaf[:-6]), "weight"
    return path, "weight"


_TURNED = {2: (1, 0), 3: (2, 1, 0), 4: (3, 2, 0, 1), 5: (4, 3, 0, 1, 2)}


def _torch_layout(canon: Canon, piece: Piece, leaf: str) -> None:
    """Weights that stand with the inputs first, as their name or their use says, in the layout of torch."""
    rank = len(piece.shape)
    if canon.is_target:
        if piece.entry.notes.get("right") and rank >= 2 and piece.entry.module != "Embedding":
            turn(canon, piece)
        return
    if leaf == "depthwise_kernel" and rank == 4:
        _reorder(canon, piece, (2, 3, 0, 1))
    elif leaf in table().inputs_first and rank in _TURNED:
        if piece.role == "weight" and {"recurrent_kernel"} & _leaves_beside(canon, piece):
            piece = _renamed(canon, piece, "weight_ih")
        _reorder(canon, piece, _TURNED[rank]) if rank != 2 else turn(canon, piece)
    elif leaf == "bias" and {"recurrent_kernel"} & _leaves_beside(canon, piece) and rank == 1:
        _renamed(canon, piece, "bias_ih")


def _leaves_beside(canon: Canon, piece: Piece) -> set[str]:
    head = piece.entry.key.rpartition(".")[0]
    return (
        {key.rpartition(".")[2] for key in canon.signature.entries if key.rpartition(".")[0] == head}
        if any("recurrent_kernel" in key for key in canon.signature.entries)
        else set()
    )


def _renamed(canon: Canon, piece: Piece, role: str) -> Piece:
    new = replace(piece, role=role)
    canon.become(piece, [(new, lambda e: e)], lambda e: e)
    return canon.pieces[new.name]


def turn(canon: Canon, piece: Piece) -> None:
    """Swap the last two dimensions of a piece."""
    shape = (*piece.shape[:-2], piece.shape[-1], piece.shape[-2])
    canon.become(piece, [(replace(piece, shape=shape), ex.transpose)], ex.transpose)


def _reorder(canon: Canon, piece: Piece, dims: tuple[int, ...]) -> None:
    back = [0] * len(dims)
    for new, old in enumerate(dims):
        back[old] = new
    shape = tuple(piece.shape[d] for d in dims)
    canon.become(
        piece,
        [(replace(piece, shape=shape), lambda e: ex.permute(e, *dims))],
        lambda e: ex.permute(e, *back),
    )


def _turn_by_vote(canon: Canon) -> None:
    """Find matrices that stand with the inputs first by the lengths of their biases; square ones follow their kin."""
    votes: dict[str, Counter[bool]] = defaultdict(Counter)
    everywhere: Counter[bool] = Counter()
    matrices = []
    for piece in canon.pieces.values():
        if piece.role != "weight" or len(piece.shape) != 2 or piece.expr.op != "key":
            continue
        bias = canon.pieces.get(".".join(piece.path) + "|bias")
        if bias is None or len(bias.shape) != 1:
            continue
        matrices.append(piece)
        rows, columns = piece.shape[0] == bias.shape[0], piece.shape[1] == bias.shape[0]
        if rows != columns:
            votes[_kin(piece)][columns] += 1
            everywhere[columns] += 1
    if not everywhere[True]:
        return
    for piece in matrices:
        vote = votes.get(_kin(piece)) or everywhere
        if vote[True] > vote[False]:
            turn(canon, piece)


def _kin(piece: Piece) -> str:
    return re.sub(r"\d+", "", piece.path[-1]) if piece.path else ""


_GATED = {"w1": "gate", "w2": "down", "w3": "up"}


def _with_zeros_between(q: Expr, v: Expr, *, n: int) -> Expr:
    return ex.cat(0, q, Expr("zeros", (), (n,)), v)


def _gated(canon: Canon) -> None:
    """Where w1, w2 and w3 stand together they are gate, down and up of a gated block."""
    heads = Counter(
        p.path[:-1] for p in canon.pieces.values() if p.path and p.path[-1] in _GATED and p.role == "weight"
    )
    for name, piece in list(canon.pieces.items()):
        if piece.path and piece.path[-1] in _GATED and heads[piece.path[:-1]] == 3:
            canon.pieces[name] = replace(piece, words=(*piece.words, _GATED[piece.path[-1]]))


def _missing_key_bias(canon: Canon) -> None:
    """`q_bias` and `v_bias` beside a fused projection without a bias: its bias, with zeros for the keys."""
    for piece in list(canon.pieces.values()):
        if piece.role != "bias" or piece.path[-1] != "q_bias" or len(piece.shape) != 1:
            continue
        base = piece.path[:-1]
        other = canon.pieces.get(".".join((*base, "v_bias")) + "|bias")
        fused = next(
            (
                p
                for p in canon.pieces.values()
                if p.path[:-1] == base and p.role == "weight" and cut(p.path[-1]) in table().fused
            ),
            None,
        )
        if other is None or fused is None:
            continue
        n = piece.shape[0]
        if ".".join(fused.path) + "|bias" in canon.pieces or fused.shape[0] != 3 * n:
            continue
        new = replace(piece, path=fused.path, role="bias", shape=(3 * n,))
        canon.merge(
            [piece, other],
            new,
            partial(_with_zeros_between, n=n),
            [partial(_block, start=0, stop=n), partial(_block, start=2 * n, stop=3 * n)],
        )


# ------------------------------------------------------------------------------------------- looking at the other


def reconcile(source: Canon, target: Canon, *, lora_scale: float | None = None) -> None:
    """Bring the two sides to the same granularity: what one holds in one tensor and the other in several."""
    _merge_lora(source, lora_scale)
    for one, other in ((source, target), (target, source)):
        _merge_norms(one, other)
    both = _fused_shapes(source) & _fused_shapes(target)
    for one, other in ((source, target), (target, source)):
        _split_fused(one, other, both)
    for one, other in ((source, target), (target, source)):
        _unstack(one, other)
    both = _fused_shapes(source) & _fused_shapes(target)
    for one, other in ((source, target), (target, source)):
        _split_fused(one, other, both)  # of experts that were stacked
    _general_dense(source, target)
    for one, other in ((source, target), (target, source)):
        _attach_biases(one, other)


def _merge_norms(one: Canon, other: Canon) -> None:
    """Weight norm and spectral norm as a plain weight, where the other side has no such thing."""
    roles = {piece.role for piece in other.pieces.values()}
    for g in [p for p in one.pieces.values() if p.role == "weight_g"]:
        v = one.pieces.get(".".join(g.path) + "|weight_v")
        if v is None or "weight_g" in roles:
            continue
        new = replace(v, role="weight")
        one.merge([g, v], new, lambda a, b: Expr("weight_norm", (a, b)), [lambda e: Expr("norm", (e,)), lambda e: e])
    for w in [p for p in one.pieces.values() if p.role == "weight_orig"]:
        if "weight_orig" in roles:
            continue
        u = one.pieces.get(".".join(w.path) + "|weight_u")
        v = one.pieces.get(".".join(w.path) + "|weight_sv")
        if u is None or v is None or one.is_target:
            continue
        one.merge([w, u, v], replace(w, role="weight"), lambda a, b, c: Expr("spectral_norm", (a, b, c)), [])


def _merge_lora(source: Canon, scale: float | None) -> None:
    """Low-rank adapters into the weights that they adapt."""
    by_base: dict[tuple[str, ...], dict[str, Piece]] = defaultdict(dict)
    for piece in source.pieces.values():
        for at, component in enumerate(piece.path):
            which = re.fullmatch(r"lora_(A|B|down|up)", component)
            if which:
                by_base[piece.path[:at]]["a" if which[1] in ("A", "down") else "b"] = piece
    if not by_base:
        return
    for base, pair in by_base.items():
        for middle in ((*base, "base_layer"), base):
            w = source.pieces.get(".".join(middle) + "|weight")
            if w is not None:
                break
        if w is None or len(pair) != 2:
            continue
        factor = 1.0 if scale is None else scale
        doubts = (("the scale of the low-rank adapters is not in the file", None),) if scale is None else ()
        source.merge(
            [w, pair["a"], pair["b"]],
            replace(w, path=base, words=tuple(x for x in w.words if x not in ("base", "layer")), doubts=doubts),
            lambda a, b, c, factor=factor: Expr("lora", (a, b, c), (factor,)),
            [],
        )
    for piece in list(source.pieces.values()):
        if "base_layer" in piece.path:
            path = tuple(c for c in piece.path if c != "base_layer")
            source.become(piece, [(replace(piece, path=path), lambda e: e)], lambda e: e)
    source.notes.append("low-rank adapters are merged into the weights that they adapt")


def _fused_kind(piece: Piece) -> Fused | None:
    words = tuple(word for word in cut(piece.path[-1]) if not word.isdigit()) if piece.path else ()
    return table().fused.get(words) or table().fused.get(words[-2:]) or table().fused.get(words[-1:])


def fused_by_name(key: str) -> bool:
    """Whether the name of a key says that it is several projections in one."""
    path, _ = role_of(tuple(key.split(".")), set())
    words = tuple(word for word in cut(path[-1]) if not word.isdigit()) if path else ()
    return any(phrase in table().fused for phrase in (words, words[-2:], words[-1:]))


def part_label(path: Sequence[str]) -> str | None:
    """Which part of a fused projection a module is by its name: q, k, v, gate, up, or None."""
    words = tuple(word for word in cut(path[-1]) if not word.isdigit()) if path else ()
    for phrase in (words, words[-2:], words[-1:]):
        if phrase in table().parts:
            return table().parts[phrase]
    return None


def _fused_shapes(canon: Canon) -> set[Shape]:
    return {p.shape for p in canon.pieces.values() if p.role == "weight" and _fused_kind(p)}


def _split_fused(one: Canon, other: Canon, both: set[Shape]) -> None:
    """Take fused projections apart, unless the other side has them fused, too: BOTH are shapes that both have."""
    fused = [(p, kind) for p in one.pieces.values() if p.role == "weight" and (kind := _fused_kind(p))]
    if not fused:
        return
    theirs = Counter(p.shape for p in other.pieces.values() if p.role == "weight")
    own = Counter(p.shape for p in one.pieces.values() if p.role == "weight")
    rows: dict[str, Counter[tuple[int, ...]]] = defaultdict(Counter)
    for p in other.pieces.values():
        label = part_label(p.path)
        if label and p.role == "weight" and len(p.shape) >= 2:
            rows[label][p.shape] += 1
    for weight, kind in fused:
        layout, heads = layout_of(weight.entry, len(kind.parts)) if one.is_target else ("", 0)
        rest = weight.shape[1:]
        apart = any(
            rows[label][_of_rows(size, rest)] for label in kind.parts for size in _part_sizes(weight, kind, rows) or ()
        )
        whole = weight.shape in both or theirs[weight.shape] >= (own[weight.shape] if apart else 1)
        if whole and not _conflicting_layout(one, other, weight, kind):
            continue
        sizes = _part_sizes(weight, kind, rows)
        if sizes is None:
            continue
        alike = all(theirs[_of_rows(size, rest)] >= 1 for size in sizes)
        if not alike and not whole:
            continue
        mha = weight.entry.module == "MultiheadAttention"
        doubtful = not (kind.sure or mha or layout)
        if not one.is_target and doubtful:
            heads = _heads_of(other) or heads
        _take_apart(one, weight, kind.parts, sizes, heads, doubtful)
        bias = one.pieces.get(".".join(weight.path) + "|bias")
        if bias is not None and bias.shape == weight.shape[:1]:
            _take_apart(one, bias, kind.parts, sizes, heads, doubtful)


def _conflicting_layout(one: Canon, other: Canon, weight: Piece, kind: Fused) -> bool:
    """Whether a projection that is fused on both sides is known to be laid out differently."""
    rivals = [p for p in other.pieces.values() if p.role == "weight" and p.shape == weight.shape]
    for rival in rivals:
        theirs = _fused_kind(rival)
        if theirs is None or rival.path == weight.path:
            return False
        target = weight if one.is_target else rival
        source_kind = theirs if one.is_target else kind
        if layout_of(target.entry, len(source_kind.parts))[0] == "heads" and source_kind.sure:
            return True
    return False


def layout_of(entry: Entry, parts: int) -> tuple[str, int]:
    """How the forward pass takes a projection of so many PARTS apart: ("block", 0), ("heads", how many), or ("", 0)."""
    kind, inner = entry.notes.get("layout", ("", ()))
    if kind == "block" or (inner and inner[0] == parts != inner[1]):
        return "block", 0
    if len(inner) == 3 and inner[1] == parts != inner[0]:
        return "heads", inner[0]
    if len(inner) == 2 and inner[0] == parts:
        return "block", 0
    if len(inner) == 2 and inner[1] % parts == 0:  # what is cut into heads first holds its parts inside of each
        return "heads", inner[0]
    return "", 0


def heads_of(entry: Entry) -> int:
    """How many attention heads the forward pass makes of what a projection gives, or 0."""
    kind, inner = entry.notes.get("layout", ("", ()))
    return inner[0] if kind == "grouped" and len(inner) == 2 else 0


def _heads_of(canon: Canon) -> int:
    """How many attention heads the code of a model has, as its forward pass shows for separate projections."""
    found = Counter(heads_of(p.entry) for p in canon.pieces.values() if part_label(p.path) == "q" and heads_of(p.entry))
    return found.most_common(1)[0][0] if found else 0


def _part_sizes(weight: Piece, kind: Fused, rows: dict[str, Counter[tuple[int, ...]]]) -> list[int] | None:
    total, rest = weight.shape[0], weight.shape[1:]
    n = len(kind.parts)
    if n == 3 and rows:
        found = {label: [s[0] for s in rows[label] if s[1:] == rest] for label in kind.parts}
        for q in found["q"]:
            for k in found["k"]:
                if q + 2 * k == total and k in found["v"]:
                    return [q, k, k]
    return [total // n] * n if total % n == 0 else None


def _of_rows(size: int, rest: Shape) -> Shape:
    return (size, *rest)


def _block(e: Expr, *, start: int, stop: int) -> Expr:
    return ex.part(e, 0, start, stop)


def _turn_of(e: Expr, *, heads: int, n: int, index: int) -> Expr:
    return Expr("of_heads", (e,), (heads, n, index))


def _take_apart(
    canon: Canon, piece: Piece, parts: Sequence[str], sizes: Sequence[int], heads: int, doubtful: bool
) -> None:
    new: list[tuple[Piece, Callable[[Expr], Expr]]] = []
    at, n = 0, len(parts)
    by_heads = heads > 1 and len(set(sizes)) == 1 and piece.shape[0] % (heads * n) == 0
    for index, (name, size) in enumerate(zip(parts, sizes, strict=True)):
        block = partial(_block, start=at, stop=at + size)
        turns = partial(_turn_of, heads=heads, n=n, index=index)
        chosen, rival = (turns, block) if by_heads else (block, turns if heads > 1 else None)
        doubt: tuple[tuple[str, Expr | None], ...] = ()
        if doubtful:
            other = None if rival is None or canon.is_target else rival(piece.expr)
            doubt = (("the name does not say whether the parts of this projection alternate by attention head", other),)
        new.append(
            (
                replace(
                    piece,
                    path=(*piece.path, name),
                    shape=(size, *piece.shape[1:]),
                    order=piece.order + index / 8,
                    used=None if piece.used is None else piece.used + index / 8,
                    words=(*piece.words, name),
                    doubts=(*piece.doubts, *doubt),
                ),
                chosen,
            )
        )
        at += size
    if by_heads:
        canon.become(piece, new, lambda *e: Expr("by_heads", e, (heads,)))
    else:
        canon.become(piece, new, lambda *e: ex.cat(0, *e))


def _unstack(one: Canon, other: Canon) -> None:
    """Take apart tensors that hold a list of layers or experts, where the other side has such a list."""
    lists = _lists(other)
    if not lists:
        return
    theirs = Counter(_squeezed(p.shape) for p in other.pieces.values())
    own = Counter(_squeezed(p.shape) for p in one.pieces.values())
    groups: dict[tuple[tuple[str, ...], int], list[Piece]] = defaultdict(list)
    for piece in one.pieces.values():
        if (
            len(piece.shape) >= 2
            and piece.shape[0] in lists
            and theirs[_squeezed(piece.shape)] < own[_squeezed(piece.shape)]
        ):
            groups[(piece.path[:-1], piece.shape[0])].append(piece)
    for (_, n), members in groups.items():
        inside = lists[n]
        fitting = [p for p in members if _fits_inside(p, inside)]
        big = [p for p in fitting if len(p.shape) >= 3]
        if not big:
            continue
        first = min(fitting, key=lambda p: p.order)
        for place, piece in enumerate(sorted(fitting, key=lambda p: p.order)):
            _unstacked(one, piece, n, first, place, len(fitting))


def _fits_inside(piece: Piece, inside: set[Shape]) -> bool:
    """Whether what one element of a stacked tensor holds is in the members of a list: as it is, turned, or in parts."""
    shape = piece.shape[1:]
    if _squeezed(shape) in inside or (len(shape) == 2 and shape[::-1] in inside):
        return True
    kind = _fused_kind(piece)
    return kind is not None and shape[0] % len(kind.parts) == 0 and (shape[0] // len(kind.parts), *shape[1:]) in inside


def _lists(canon: Canon) -> dict[int, set[Shape]]:
    """Numbered lists of equal members: length -> shapes that their members hold."""
    members: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[int, Shape]] = defaultdict(dict)
    for piece in canon.pieces.values():
        for at, component in enumerate(piece.path):
            if component.isdigit():
                members[(piece.path[:at], (*piece.path[at + 1 :], piece.role))][int(component)] = piece.shape
    found: dict[int, set[Shape]] = defaultdict(set)
    for shapes in members.values():
        if len(shapes) > 1 and len(set(shapes.values())) == 1:
            found[len(shapes)].add(_squeezed(next(iter(shapes.values()))))
    return found


def _unstacked(canon: Canon, piece: Piece, n: int, first: Piece, place: int, of: int) -> None:
    """Take apart one tensor of a list, so that its parts stand layer by layer among those of the others."""
    new: list[tuple[Piece, Callable[[Expr], Expr]]] = []
    cut_at = len(piece.path) - 1
    for i in range(n):
        made = replace(
            piece,
            path=(*piece.path[:cut_at], str(i), *piece.path[cut_at:]),
            shape=piece.shape[1:],
            order=first.order + (i * of + place) * 1e-6,
            used=None if piece.used is None or first.used is None else first.used + (i * of + place) * 1e-6,
        )
        new.append((made, partial(ex.select, dim=0, index=i)))
    canon.become(piece, new, lambda *e: ex.stack(*e))


def _general_dense(source: Canon, target: Canon) -> None:
    """Projections that hold their heads in a dimension of their own ([in, heads, width]), as plain matrices."""
    theirs = Counter(p.shape for p in target.pieces.values())
    for piece in list(source.pieces.values()):
        leaf = piece.entry.key.rpartition(".")[2]
        shape = piece.entry.shape
        if leaf in table().inputs_first and len(shape) == 3 and not theirs[piece.shape]:
            for flat in ((shape[0], shape[1] * shape[2]), (shape[0] * shape[1], shape[2])):
                if theirs[flat[::-1]]:
                    new = replace(piece, shape=flat[::-1])
                    source.become(piece, [(new, partial(_flat_dense, key=piece.entry.key, shape=flat))], _same)
                    break
        elif piece.role == "bias" and len(shape) == 2 and not theirs[piece.shape]:
            flat1 = (shape[0] * shape[1],)
            if theirs[flat1]:
                new = replace(piece, shape=flat1)
                source.become(piece, [(new, partial(ex.reshape, shape=flat1))], _same)


def _attach_biases(one: Canon, other: Canon) -> None:
    """Biases that stand apart from their matrices, as the biases of those, where the other side has none apart."""
    lone = _lone_biases(one)
    if not lone or _lone_biases(other):
        return
    matrices = [
        p
        for p in one.pieces.values()
        if p.role == "weight" and len(p.shape) >= 2 and ".".join(p.path) + "|bias" not in one.pieces
    ]
    for piece in lone:
        fitting = [m for m in matrices if m.shape[0] == piece.shape[0]]
        same = [m for m in fitting if numbers(m.path) == numbers(piece.path)]
        if len(same) != 1 and piece.used is not None:
            same = sorted((m for m in fitting if m.used is not None and m.used < piece.used), key=lambda m: m.used or 0)
        owner = same[-1] if same else fitting[0] if len(fitting) == 1 else None
        if owner is not None:
            matrices.remove(owner)
            one.become(piece, [(replace(piece, path=owner.path, role="bias"), _same)], _same)


def _lone_biases(canon: Canon) -> list[Piece]:
    together = Counter(piece.path for piece in canon.pieces.values())
    return [
        piece
        for piece in canon.pieces.values()
        if len(piece.shape) == 1 and together[piece.path] == 1 and {"bias", "biases"} & {*piece.words, piece.role}
    ]


def _flat_dense(_: Expr, *, key: str, shape: Shape) -> Expr:
    return ex.transpose(ex.reshape(ex.of(key), shape))


def _same(e: Expr) -> Expr:
    return e


def _squeezed(shape: Shape) -> Shape:
    return tuple(n for n in shape if n != 1)


squeezed = _squeezed
