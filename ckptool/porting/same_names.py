"""The mapping of a file whose keys and sizes are those of the model, which `load_state_dict(strict=True)` would load.

Nothing is matched, and no forward pass is followed. Most files are loaded in this way.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..errors import CheckpointError
from . import expression as ex
from .forms.axes import is_foreign
from .mapping import Entry, Mapping

if TYPE_CHECKING:
    import torch

    from ..checkpoint import Checkpoint


def by_same_names(ckpt: Checkpoint, model: torch.nn.Module, at: str | None = None) -> Mapping | None:
    """Return the mapping that takes each key of MODEL from the same key of a checkpoint, in the order of the model.

    Args:
        ckpt: the source.
        model: the model; for a parameter that ranks share, the whole size counts.
        at: the path of the weights in the file, if there are several.
    Returns:
        The mapping, without guesses and gaps; its `at` is AT. None if the two sides do not have the same keys (in any
        order) with the same sizes, if the state dict of either holds anything but dense tensors, if the file states
        that a tensor has its axes in another order than torch's, or if there is no state dict at AT (without AT: not
        exactly one). Element types may differ.
    """
    from ..model_code.trace import without_sizes

    try:
        weights = ckpt.state_dict(at)
    except CheckpointError:  # matching joins the parts of a model, and says what is wrong
        return None
    own: dict[str, Any] = model.state_dict()
    shapes = {key: tensor.shape for key, tensor in weights.tensors.items()}
    if own.keys() != shapes.keys() or len(weights.node.entries) != len(shapes):
        return None
    if any(is_foreign(ckpt.roles[key]) for key in shapes if key in ckpt.roles):  # equal sizes, and turned all the same
        return None
    if without_sizes(own) is not None:  # matching says what to do
        return None
    if any(tuple(getattr(value, "shape", (-1,))) != shapes[key] for key, value in own.items()):
        return None
    parameters = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    entries = (
        Entry(
            key,
            shapes[key],
            expr=ex.of(key),
            evidence="the same name and sizes",
            dtype=str(value.dtype).removeprefix("torch."),
            parameter=key in parameters,
        )
        for key, value in own.items()
    )
    metadata = getattr(own, "_metadata", None)
    name = type(model).__name__
    metadata = {path: dict(value) for path, value in metadata.items()} if metadata else None
    return Mapping(tuple(entries), (), shapes, ckpt.where, name, metadata=metadata, at=at)
