"""Run a forward pass as in use: without training, gradients or warnings, and with nothing changed afterwards."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator

import torch

from ..garbage import all_kept


@contextlib.contextmanager
def in_eval(model: torch.nn.Module, device: str) -> Iterator[None]:
    """Put MODEL in eval mode, and let code make new tensors on DEVICE.

    Each module is in its own mode again afterwards: the statistics of some may have been frozen for a training. The
    layers of attention run step by step, so that each step is seen, and random numbers go on as if nobody had drawn.
    Who follows a pass keeps all that it makes, so nothing is garbage before its end.
    """
    training = [module for module in model.modules() if module.training]
    whole = model.training
    fast, state = torch.backends.mha.get_fastpath_enabled(), torch.get_rng_state()
    try:
        if training:
            model.eval()
        torch.backends.mha.set_fastpath_enabled(False)
        with warnings.catch_warnings(), torch.no_grad(), all_kept(), _making_on(torch.device(device)):
            warnings.simplefilter("ignore")
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        if training:
            model.train(whole)  # which the code of a model may do more in
            for module in {*model.modules()}.difference(training):
                module.training = False
            for module in training:
                module.training = True
        torch.set_rng_state(state)


def _making_on(device: torch.device) -> contextlib.AbstractContextManager[object]:
    """Return a context in which code makes tensors on DEVICE.

    A mode of torch does this, which then takes part in each operation and in each look at a shape. So it is set only if
    tensors were made elsewhere.
    """
    return contextlib.nullcontext() if torch.empty(0).device == device else device


__all__ = ["in_eval"]
