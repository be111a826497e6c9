"""Add words to names whose meaning follows from other names in the same module."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace

from ..words import cut, label, table, words_of
from .fusing.projections import fused_kind, own_name, part_label
from .pieces import Canon, Piece, squeezed
from .roles import counted_by_letters


def name_in_company(canon: Canon) -> None:
    """Add words to the tensors of layers whose names mean something only together, in each module of CANON that has all
    names of one row of the vocabulary's `in_company`: `w1`, `w2`, `w3` are gate, down, up. The tensors of `w1` get the
    word "gate". Other names in the module do not matter, and case does not.

    A name counts only as the last component of a path; where the row says so, it may also be a module with layers in it
    (`theta`), and then all tensors in the module get the word.
    """
    for known in table().in_company:
        beside: dict[tuple[str, ...], set[str]] = defaultdict(set)
        found = [
            (piece, piece.path[:at], name.lower())
            for piece in canon.pieces.values()
            for at, name in enumerate(piece.path)
            if name.lower() in known.words and (known.modules or at == len(piece.path) - 1)
        ]
        for _, module, name in found:
            beside[module].add(name)
        for piece, module, name in found:
            if beside[module] == known.words.keys():
                _add(canon, canon.pieces[piece.name], known.words[name])


def name_seen_gates(source: Canon, target: Canon) -> None:
    """Add words to the tensors of two layers, on both sides, if the forward pass of the side multiplies their outputs,
    and the output of one is a gate: "gate proj" to the gate, "up proj" to the other layer, the value.

    Layers whose names mean a part of an attention get none. Nor does any layer of a module in which a value is called
    gate, as in RetNet, because what the other side calls its gate may be the value as well; but it does if the other
    side has layers called "up", or its forward pass shows a gate or value of these sizes.

    Two layers that both go through an activation, such as those of a recurrent cell, count only if SOURCE and TARGET
    have equally many tensors of these sizes that their code uses in this way.
    """
    shown = [Counter((p.shape, p.entry.facts.opens) for p in side.pieces.values()) for side in (source, target)]
    attention, neck = table().group("attention"), table().group("neck")
    for canon, other in ((source, target), (target, source)):
        named = any(part_label(p.path) == "up" for p in other.pieces.values())
        seen = {p.shape for p in other.pieces.values() if p.entry.facts.beside_gate}
        values = [p for p in canon.pieces.values() if p.entry.facts.beside_gate == "up" and p.shape not in seen]
        misnamed = {p.path[:-1] for p in values if label(neck, p.words) == "gate" and not named}
        for piece in [p for p in canon.pieces.values() if p.path[:-1] not in misnamed]:
            facts = piece.entry.facts
            look = piece.shape, facts.opens
            part = facts.beside_gate or (facts.opens if shown[0][look] == shown[1][look] else "")
            for one in [p for p in canon.pieces.values() if p.path == piece.path] if part else ():
                if label(attention, one.words) is None:
                    _add(canon, one, f"{part}_proj")


def forget_plain_words(one: Canon, other: Canon) -> None:
    """Drop the words that mean a part of a feed-forward block ("up", "down"; `fc1`, `fc2` mean these), and all words
    behind them (`_plain`), from two layers of ONE that are most likely a gate and its value. The numbers of `fc1` and
    `fc2` then only show which was registered first. All tensors of the two layers are changed, in place.

    A weight of ONE is looked at if the forward pass of OTHER uses a weight of its sizes as gate or value, and that of
    ONE does not use it so. The two layers are such weights directly in one module, exactly two there, and neither is
    called "gate", nor "up" as a part of a fused projection (`part_label`).
    """
    gated = {p.shape for p in other.pieces.values() if p.entry.facts.beside_gate and p.role == "weight"}
    neck = table().group("neck")
    beside: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    for piece in one.pieces.values():
        if piece.role == "weight" and piece.shape in gated and not piece.entry.facts.beside_gate and piece.path:
            beside[piece.path[:-1]].append(piece)
    for pieces in beside.values():
        parts = {part_label(p.path) for p in pieces}
        if len(pieces) != 2 or "gate" in parts | {label(neck, p.words) for p in pieces} or "up" in parts:
            continue
        paths = {p.path for p in pieces}
        for piece in [p for p in one.pieces.values() if p.path in paths]:
            one.pieces[piece.name] = replace(piece, words=_plain(piece.words))


def _plain(words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the longest beginning of WORDS without a word for a part of a feed-forward block."""
    while words and label(table().group("neck"), words) is not None:
        words = words[:-1]
    return words


def name_listed_attention(canon: Canon) -> None:
    """Add words to the weights and biases of a list in a module whose name says that it is an attention
    (`attn.linears.0`), by their numbers: "q" to member 0, "k" to 1, "v" to 2, "o proj" to 3.

    The list has to have exactly the members 0 to 3, or 0 to 2 if a layer beside the list is the output by its name. The
    weights are matrices of equal sizes. Other lists stay as they are.
    """
    lists: dict[tuple[str, ...], list[Piece]] = defaultdict(list)
    outputs: set[tuple[str, ...]] = set()
    for piece in canon.pieces.values():
        if len(piece.path) > 1 and piece.last.isdecimal() and piece.role in ("weight", "bias"):
            lists[piece.path[:-1]].append(piece)
        elif piece.path and piece.role == "weight" and _is_output(piece):
            outputs.add(piece.path[:-1])
    for head, pieces in lists.items():
        known = _LISTED[: 3 if head[:-1] in outputs else 4]
        if set(cut("".join(head[-2:-1]))) & _ATTENTION and _is_list_of(len(known), pieces):
            for piece in pieces:
                if int(piece.last) < len(known):  # a bias of a further member is none of the attention
                    _add(canon, piece, known[int(piece.last)])


def _is_list_of(count: int, pieces: Sequence[Piece]) -> bool:
    """Return whether PIECES, tensors of members of a list, have exactly one weight for each of the members 0 to
    COUNT - 1 and no other weight, and these are matrices of equal sizes.
    """
    weights = [p for p in pieces if p.role == "weight"]
    numbers = sorted(int(p.last) for p in weights)
    alike = len({p.shape for p in weights}) == 1 and len(squeezed(weights[0].shape)) == 2
    return alike and numbers == list(range(count))


def _is_output(piece: Piece) -> bool:
    """Return whether PIECE is the output of an attention by its name: its label in the group "attention" is "o", or the
    last name in its path has the word "output".
    """
    return label(table().group("attention"), piece.words) == "o" or "output" in cut(piece.last)


#: The layers of a list in an attention.
_LISTED = ("q", "k", "v", "o_proj")

_ATTENTION = frozenset({"attn", "attention", "mha", "att"})


def name_norm_of_layer(canon: Canon) -> None:
    """Add words to the vectors of a norm whose key is in the module of the linear layer after it
    (`qkv.layer_norm_weight` beside `qkv.weight`; the last name begins with `layer_norm_` or `layernorm_`): "attn norm"
    if the name of that layer says that it is a fused projection with queries, "ffn norm" if it is the first layer of a
    feed-forward block. Norms of other layers, and of cross-attentions, stay as they are.
    """
    neck, crossing = table().group("neck"), table().group("crossing")
    layers = {p.entry.key.removesuffix("weight"): p for p in canon.pieces.values() if len(p.shape) == 2}
    for piece in [p for p in canon.pieces.values() if len(p.shape) == 1]:
        module, _, leaf = piece.entry.key.rpartition(".")
        layer = layers.get(f"{module}.")
        if layer is None or not leaf.startswith(_NORM_OF_LAYER) or label(crossing, piece.words) == "cross":
            continue
        kind = fused_kind(layer)
        parts = () if kind is None else kind.parts
        if "q" in parts:
            _add(canon, piece, "attn_norm")
        elif "up" in parts or label(neck, layer.words) == "up":
            _add(canon, piece, "ffn_norm")


_NORM_OF_LAYER = ("layer_norm_", "layernorm_")


def name_third_norm(canon: Canon) -> None:
    """Add the words "block norm 3" to the norm of the feed-forward part in each block with exactly three norms
    (`_norms_of_blocks`): to the vectors of each of the three whose path inside the block has a word for that part
    ("ffn", "mlp", "ff"). A block with two attentions has a norm before each, and the feed-forward part comes last.
    Nothing is added if that norm is not the last of the three that is registered, and no other of them says which place
    it has ("norm_cross", `_says_place`): in ProteinMPNN the edges come after the feed-forward part.

    If the last name of some norm of the block has a word for an attention (`attn_norm`), norms inside an attention are
    not among the three.
    """
    for norms in _norms_of_blocks(canon).values():
        if any(set(words_of(path[-1:])) & _ATTENTION for path in norms):  # others inside of an attention are its own
            norms = {path: held for path, held in norms.items() if not set(words_of(path[:-1])) & _ATTENTION}
        of_third = [path for path in norms if set(words_of(path)) & _FEED_FORWARD]
        others = [path for path in norms if path not in of_third]
        if len(norms) != 3 or not (any(map(_says_place, others)) or [*norms][-1] in of_third):
            continue
        for piece in [piece for path in of_third for piece in norms[path]]:
            _add(canon, piece, "block_norm3")  # after `ff`, `norm3` is the norm of a third `ff`


def _says_place(path: tuple[str, ...]) -> bool:
    """Return whether PATH, of a norm in a block, has a place among the norms of a block ("norm1", "norm_cross"), or a
    word for an attention.
    """
    words = words_of(path)
    return bool(set(words) & _ATTENTION) or label(table().group("position"), words) is not None


def _norms_of_blocks(canon: Canon) -> dict[tuple[str, ...], dict[tuple[str, ...], list[Piece]]]:
    """Return path of a block -> path in it of a norm -> vectors of the norm, for modules of CANON that are norms by the
    last name in their path. The block is the member of the innermost list around the norm, or else the module around
    it.
    """
    group = table().group("purpose")
    blocks: dict[tuple[str, ...], dict[tuple[str, ...], list[Piece]]] = defaultdict(lambda: defaultdict(list))
    for piece in canon.pieces.values():
        if piece.path and len(piece.shape) == 1 and label(group, _singular(piece.path)) == "norm":
            path = piece.path
            at = next((at + 1 for at in range(len(path) - 2, -1, -1) if path[at].isdecimal()), len(path) - 1)
            blocks[path[:at]][path[at:]].append(piece)
    return blocks


def _singular(path: tuple[str, ...]) -> tuple[str, ...]:
    """Return the words of the last component of PATH that is no number, the last word without "s" for a member of a
    list: ("norm",) for `norms.1`. () if all components are numbers.
    """
    words = cut(own_name(path))
    return (*words[:-1], words[-1].removesuffix("s")) if path[-1].isdecimal() and words else words


_FEED_FORWARD = frozenset({"ffn", "mlp", "ff", "ffw", "fc"})


def _add(canon: Canon, piece: Piece, word: str) -> None:
    """Add the words of the name WORD ("o_proj") to those of PIECE in the side CANON."""
    canon.pieces[piece.name] = replace(piece, words=(*piece.words, *cut(word)))


def count_letters(source: Canon, target: Canon) -> None:
    """Replace letters from a on by numbers in the paths of modules on both sides: `conv_a`, `conv_b` become `conv_1`,
    `conv_2` (`counted_by_letters`, which also makes `netG_ab`, `netG_ba` of `netG_A2B`, `netG_B2A`). They stay if each
    of these letters is the last word of some name in the paths of the other side, also before a number (`conv_a2`), and
    a lone `conv_a` stays, too. The paths of the counters of batch norms change in the same way.

    This comes after the parts of tensors are joined: their letters (`b_q`, `b_k`) do not count anything.
    """
    sides = (source, target)
    names = [{name for piece in canon.pieces.values() for name in piece.path} for canon in sides]
    letters = [{word for name in own for word in [*filter(str.isalpha, cut(name))][-1:]} for own in names]
    for canon, theirs in zip(sides, reversed(letters), strict=True):
        found = counted_by_letters({piece.path for piece in canon.pieces.values()}, beside=theirs)
        for piece in [p for p in canon.pieces.values() if p.path in found]:
            canon.change(piece, replace(piece, path=found[piece.path]))
        canon.counters.update((key, found[path]) for key, path in canon.counters.items() if path in found)
