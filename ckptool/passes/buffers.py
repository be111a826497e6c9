"""Buffers that models compute themselves: what they are called, and what is in them where the weights tell.

Files of one version of a library have them, and code of another version has not (or the other way round), so that
strict loading fails on tensors that hold no knowledge. `ckptool.keys.known_buffers` is the table of their names.

    num_batches_tracked       steps that a batch norm has seen (torch since 0.4.1)       int64 []
    position_ids              0, 1, 2 … (transformers before 4.31)                       int64 [1, positions]
    relative_position_index   places in the table of a window (Swin, BEiT without class) int64 [w*w, w*w]
    inv_freq                  frequencies of rotary embeddings (transformers)            float32 [head / 2]
    bias [1, 1, n, n]         the causal mask of GPT-2 (transformers before 4.31)        uint8 [1, 1, n, n]
    masked_bias               what GPT-2 writes where the mask is 0                      float32 []
    attn_mask, causal_mask, tril, relative_coords_table, freqs_cis, freqs_cos, freqs_sin: known, and what is in them
                              depends on the code
    total_ops, total_params   what thop leaves in every module that it counts
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from math import isqrt, prod
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint, StateDict
from ..disk.documents import read_json, read_text
from ..disk.files import Buffer
from ..dtypes import BY_NAME
from ..errors import CheckpointError, NoMatch, printable
from ..keys.known_buffers import COMPUTED
from ..records import record
from ..tensor import LazyTensor, Storage, contiguous_stride
from ._words import changeable
from .by_key import Missing

#: The version of torch's batch norms that has the counter.
_COUNTED = 2
#: Places of a causal mask that is called like a bias: [1, 1, n, n].
_OF_MASKS = 4
#: Bytes of one buffer that is filled.
_LARGEST = 1 << 28


def is_buffer(key: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor is one that a model computes itself, by its name and sizes."""
    leaf = key.rpartition(".")[2]
    is_mask = leaf == "bias" and len(shape) == _OF_MASKS and shape[:2] == (1, 1) and shape[2] == shape[3] > 1
    return leaf in COMPUTED or is_mask


def _is_causal(tensor: LazyTensor) -> bool:
    """Whether a tensor called `bias` of sizes [1, 1, n, n] is a causal mask: one value up to the diagonal, 0 above.

    Some models learn a bias of these sizes.
    """
    import numpy as np

    source, n = tensor.source(), tensor.shape[-1]
    elements = np.frombuffer(source.read(0, source.length), np.uint8).reshape(n, n, -1)
    below = np.tri(n, dtype=bool)
    one = elements[0, 0]
    return bool(one.any() and not elements[~below].any() and (elements[below] == one).all())


def required(weights: StateDict) -> list[str]:
    """Counters that `load_state_dict(strict=True)` misses: the version of a batch norm says that it has one.

    Without a version, torch adds them itself.
    """
    if "running_var\n" not in weights.outline:
        return []
    metadata = weights.metadata or {}
    found = []
    for key, _, _ in _counters(dict.fromkeys(weights.tensors, ()), {}):
        entry = metadata.get(key.rpartition(".")[0])
        version = entry.get("version") if isinstance(entry, Mapping) else None
        if key not in weights and isinstance(version, int) and version >= _COUNTED:
            found.append(key)
    return found


def drop_buffers(ckpt: Checkpoint, *, at: str | None = None, missing: Missing = "error") -> Checkpoint:
    """Leave out the buffers that models compute themselves.

    Raises:
        NoMatch: there is none.
        RuleError: its keys are attributes of a pickled model.
    """
    from .rekeying import rekey

    weights = changeable(ckpt, at)
    gone = [
        key
        for key, tensor in weights.tensors.items()
        if is_buffer(key, tensor.shape) and (key.rpartition(".")[2] in COMPUTED or _is_causal(tensor))
    ]
    if not gone and missing == "error":
        raise NoMatch(
            "none of its tensors is a buffer that models compute themselves",
            where=ckpt.where,
            evidence=[f"these are {', '.join(sorted(COMPUTED))}, and causal masks"],
        )
    done = rekey(ckpt, weights, dict.fromkeys(gone)) if gone else ckpt
    return done.noting(f"drop buffers: {_said(gone)}" if gone else "drop buffers: there are none")


def fill_buffers(ckpt: Checkpoint, *, at: str | None = None, missing: Missing = "error") -> Checkpoint:
    """Add the buffers that code of another version wants, where the weights tell what is in them.

    Raises:
        NoMatch: there is nothing to add.
        RuleError: its keys are attributes of a pickled model.
    """
    from .values import with_other_entries

    weights = changeable(ckpt, at)
    shapes = {key: tensor.shape for key, tensor in weights.tensors.items()}
    made: dict[str, dict[str, _Filled]] = {}
    for fill in _FILLS:
        for key, after, filled in fill(shapes, _configuration(ckpt)):
            if key not in shapes and filled.nbytes <= _LARGEST:
                made.setdefault(after, {})[key] = filled
    keys = [key for some in made.values() for key in some]
    if not keys and missing == "error":
        raise NoMatch(
            "there is no layer with a buffer to be filled that the file does not have",
            where=ckpt.where,
            evidence=[
                "these are num_batches_tracked, position_ids, relative_position_index, masks of GPT-2,",
                "and inv_freq where a config.json beside the file says how",
            ],
        )
    entries: list[tuple[Any, Any]] = []
    for key, value in weights.node.entries:
        entries.append((key, value))
        if isinstance(key, str) and key in made:
            like = weights.tensors[key]
            entries += [(new, filled.tensor(like)) for new, filled in made[key].items()]
    done = with_other_entries(ckpt, weights, entries) if keys else ckpt
    return done.noting(f"fill buffers: {_said(keys)}" if keys else "fill buffers: there is nothing to add")


def _said(keys: list[str]) -> str:
    counts = Counter(key.rpartition(".")[2] for key in keys)
    return ", ".join(f"{number:,} {printable(name)}" for name, number in counts.items())


@record(frozen=True, slots=True)
class _Filled:
    """A buffer that is to be made: its type, its sizes, and what gives its values as an array."""

    dtype: str
    shape: tuple[int, ...]
    values: Callable[[], Any]

    @property
    def nbytes(self) -> int:
        return BY_NAME[self.dtype].itemsize * prod(self.shape)

    def tensor(self, like: LazyTensor) -> LazyTensor:
        """The tensor, on the device of LIKE."""
        import numpy as np

        dtype = BY_NAME[self.dtype]
        array = np.array(self.values(), dtype=self.dtype, order="C")
        assert array.shape == self.shape
        storage = Storage(Buffer(array.tobytes()), like.location, dtype)
        return LazyTensor(storage, dtype, self.shape, contiguous_stride(self.shape))


_Shapes = Mapping[str, tuple[int, ...]]
_Made = list[tuple[str, str, _Filled]]


def _counters(shapes: _Shapes, config: Mapping[str, Any]) -> _Made:
    """Of every batch norm with statistics: zero, after its last statistic."""
    return [
        (f"{key.removesuffix('running_var')}num_batches_tracked", key, _Filled("int64", (), lambda: 0))
        for key in shapes
        if key.endswith("running_var") and key.rpartition(".")[2] == "running_var"
    ]


def _positions(shapes: _Shapes, config: Mapping[str, Any]) -> _Made:
    """Of embeddings with a table of positions, as BERT and CLIP have them."""
    import numpy as np

    found = []
    for key, shape in shapes.items():
        module = re.fullmatch(r"(|.*\.)embeddings\.position_embeddings?\.weight", key, re.DOTALL)
        if module is not None and len(shape) == 2:
            count = shape[0]
            filled = _Filled("int64", (1, count), lambda count=count: np.arange(count)[None])  # type: ignore[misc]
            found.append((f"{module[1]}embeddings.position_ids", key, filled))
    return found


def _windows(shapes: _Shapes, config: Mapping[str, Any]) -> _Made:
    """Of a square window with a table of (2 w - 1)^2 biases: which of them is for each pair of places."""
    found = []
    for key, shape in shapes.items():
        if key.rpartition(".")[2] == "relative_position_bias_table" and len(shape) == 2:
            side = isqrt(shape[0])
            if side * side == shape[0] and side % 2:
                w = (side + 1) // 2
                name = f"{key.removesuffix('bias_table')}index"
                found.append((name, key, _Filled("int64", (w * w, w * w), lambda w=w: _window(w))))  # type: ignore[misc]
    return found


def _window(w: int) -> Any:
    import numpy as np

    rows, columns = np.divmod(np.arange(w * w), w)
    down, right = (place[:, None] - place[None, :] + w - 1 for place in (rows, columns))
    return down * (2 * w - 1) + right


def _masks(shapes: _Shapes, config: Mapping[str, Any]) -> _Made:
    """Of GPT-2: the causal mask, and what stands in place of masked values."""
    import numpy as np

    found: _Made = []
    for key in shapes:
        if not key.endswith(".attn.c_attn.weight"):
            continue
        attention = key.removesuffix("c_attn.weight")
        table = shapes.get(f"{attention.rpartition('h.')[0]}wpe.weight")
        if table is not None and len(table) == 2:
            n = table[0]
            mask = _Filled("uint8", (1, 1, n, n), lambda n=n: np.tril(np.ones((1, 1, n, n))))  # type: ignore[misc]
            found += [
                (f"{attention}bias", key, mask),
                (f"{attention}masked_bias", key, _Filled("float32", (), lambda: -1e4)),
            ]
    return found


#: Ends of keys of tables of positions.
_POSITION_TABLES = ("embed_positions.weight", "wpe.weight", "position_embeddings.weight", "position_embedding.weight")


def _frequencies(shapes: _Shapes, config: Mapping[str, Any]) -> _Made:
    """Of layers that turn queries and keys, where the configuration says how, and says nothing of scaling. Models with
    a table of positions turn none.
    """
    import numpy as np

    heads, width, size = (config.get(name) for name in ("num_attention_heads", "hidden_size", "head_dim"))
    told = config.get("rope_parameters")  # as transformers 5 writes it; of each kind of layer in some models
    config = {**config, **told} if isinstance(told, dict) else config
    if (told and config.get("rope_theta") is None) or config.get("rope_type", "default") != "default":
        return []
    if any(key.endswith(_POSITION_TABLES) for key in shapes):
        return []
    base = config.get("rope_theta", 10000.0)
    if size is None and isinstance(width, int) and isinstance(heads, int) and heads:
        size = width // heads
    if not isinstance(size, int) or size % 2 or not isinstance(base, int | float) or config.get("rope_scaling"):
        return []
    if config.get("partial_rotary_factor", 1) != 1:
        return []
    values = _Filled("float32", (size // 2,), lambda: 1 / base ** (np.arange(0, size, 2) / size))
    return [
        (f"{key.removesuffix('q_proj.weight')}rotary_emb.inv_freq", key, values)
        for key in shapes
        if key.endswith("self_attn.q_proj.weight")
    ]


_FILLS = (_counters, _positions, _windows, _masks, _frequencies)


def _configuration(ckpt: Checkpoint) -> dict[str, Any]:
    """What config.json beside the file, or in its folder, says."""
    try:
        place = Path(ckpt.path)  # type: ignore[arg-type]
        found = read_json(read_text((place if place.is_dir() else place.parent) / "config.json"))
    except (CheckpointError, OSError, TypeError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
