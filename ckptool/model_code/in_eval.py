"""Run a forward pass as in use: without training, gradients or warnings, and with nothing changed afterwards."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch

from ..garbage import all_kept


@contextlib.contextmanager
def in_eval(model: torch.nn.Module, device: str | None = None) -> Iterator[None]:
    """Return a context in which forward passes of MODEL run as in use: in eval mode (see `modes_kept`), without
    gradients, warnings and garbage collection. The context itself runs no forward pass.

    New tensors of code are made on DEVICE, if one is given. The layers of attention run step by step (without torch's
    fast path), so that each step is seen. Afterwards all of this is as before, and torch's random numbers on the CPU go
    on as if nobody had drawn. Nothing is garbage before the end, because all tensors of a pass that is followed are
    kept.
    """
    fast, state = torch.backends.mha.get_fastpath_enabled(), torch.get_rng_state()
    try:
        with modes_kept(model), warnings.catch_warnings(), torch.no_grad(), all_kept(), _making_on(device):
            torch.backends.mha.set_fastpath_enabled(False)
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        torch.set_rng_state(state)


@contextlib.contextmanager
def modes_kept(model: torch.nn.Module) -> Iterator[None]:
    """Return a context in which MODEL is in eval mode. Afterwards each module is in its own mode again, also if only
    some were in training mode: the statistics of some may have been frozen for a training.

    If no module is in training mode at the beginning, nothing is changed.
    """
    training = [module for module in model.modules() if module.training]
    whole = model.training
    try:
        if training:
            model.eval()
        yield
    finally:
        if training:
            model.train(whole)  # which the code of a model may do more in
            for module in {*model.modules()}.difference(training):
                module.training = False
            for module in training:
                module.training = True


def _making_on(device: str | None) -> contextlib.AbstractContextManager[object]:
    """Return a context in which code makes tensors on DEVICE; one that does nothing if DEVICE is None, or if tensors
    are made there anyway.

    A mode of torch does this, which then takes part in each operation and in each look at a shape. So it is set only if
    it is needed.
    """
    there = None if device is None else torch.device(device)
    return contextlib.nullcontext() if there is None or torch.empty(0).device == there else there


__all__ = ["in_eval", "modes_kept"]
