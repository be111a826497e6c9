"""The ways of training on several devices. This is the one place where they differ.

Read `Strategy` first: it trains on one device. Each of the others says in a few lines what it does otherwise: how the
model is wrapped, how a batch is worked through, what happens to the gradients before the step, and what is saved.

    single              model(x)                                              keys as the model names them
    data-parallel       nn.DataParallel(model)(x)                             module.
    functional          nn.parallel.data_parallel(model, x, devices)          keys as the model names them
    manual              replicas[i](x[i]), allreduce by hand                  keys as the model names them
    average-gradients   model(x), all_reduce of each gradient by hand         keys as the model names them
    ddp                 DistributedDataParallel(model)(x)                     module.
    fsdp                fully_shard(model); model(x)                          keys as the model names them, DTensors
"""

from __future__ import annotations

import contextlib
import copy
import logging
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import DistributedSampler, Sampler

from .config import Config
from .data import Partition
from .devices import Place

Criterion = Callable[[Tensor, Tensor], Tensor]
BuildOptimizer = Callable[[nn.Module], torch.optim.Optimizer]


class Strategy:
    """One device: the model and every batch are moved to it.

    Attributes:
        plain: the model as its code names it.
        wrapped: the model as the strategy wraps it: what is called, and whose state dict a run saves.
        called: the same, in torch.compile if the run compiles.
        optimizer: the one that is saved and whose rate is scheduled.
    """

    def __init__(self, config: Config, place: Place, model: nn.Module, build_optimizer: BuildOptimizer) -> None:
        self.config = config
        self.place = place
        self.device = place.device
        self.plain = model
        self.wrapped = self.wrap(model.to(self.device))
        self.called = self.wrapped
        if config.compiles:
            torch._logging.set_logs(dynamo=logging.ERROR)  # it remarks on what DataParallel does
            self.called = torch.compile(self.wrapped, backend="eager")  # other backends need a C++ compiler
        self.optimizer = build_optimizer(self.plain)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=config.amp == "fp16")

    def wrap(self, model: nn.Module) -> nn.Module:
        """What is called in the place of MODEL, which is on the device already."""
        return model

    def sampler(self, samples: Any) -> Sampler[int]:
        """The part of the samples that this process trains with, in another order for each epoch."""
        config, place = self.config, self.place
        return DistributedSampler(samples, place.world, place.rank, seed=config.seed, drop_last=config.drop_last)

    def train(self, mode: bool = True) -> None:
        """Switch dropout and batch norm between training and evaluation."""
        self.wrapped.train(mode)

    def forward(self, inputs: Tensor) -> Tensor:
        """The outputs for a batch."""
        outputs: Tensor = self.called(inputs.to(self.device, non_blocking=True))
        return outputs

    def backward(self, inputs: Tensor, targets: Tensor, criterion: Criterion, share: float, *, last: bool) -> Tensor:
        """Add the gradients of one batch.

        Args:
            inputs, targets: the batch.
            criterion: the mean loss of outputs and targets.
            share: part of this batch in the step of the optimizer (1, unless gradients are accumulated).
            last: whether the step comes next, so that processes must agree on the gradients now.

        Returns:
            The mean loss of the batch.
        """
        with self.synchronised(last):
            with self.autocast():
                loss = criterion(self.forward(inputs), targets.to(self.device, non_blocking=True))
            self.scaler.scale(loss * share).backward()
        return loss.detach()

    def synchronised(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Within it gradients are exchanged, unless more of the same step will follow."""
        return contextlib.nullcontext()

    def autocast(self) -> Any:
        """Mixed precision, if it is asked for."""
        dtype = torch.float16 if self.config.amp == "fp16" else torch.bfloat16
        return torch.autocast(self.device.type, dtype, enabled=self.config.amp != "none")

    def step(self) -> None:
        """Move the weights along the gradients, and forget the gradients."""
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()

    def total(self, numbers: Tensor) -> Tensor:
        """The sum of NUMBERS over all processes."""
        return numbers

    # -- what is saved

    def wrapped_state(self) -> dict[str, Any]:
        """The state dict that a script saves which calls `state_dict()` on what it trains."""
        state: dict[str, Any] = self.wrapped.state_dict()
        return state

    def unwrapped_state(self) -> dict[str, Any]:
        """The state dict with the names that the code of the model gives."""
        state: dict[str, Any] = self.plain.state_dict()
        return state

    def compiled_state(self) -> dict[str, Any]:
        """The state dict of what torch.compile returned."""
        state: dict[str, Any] = self.called.state_dict()
        return state

    def optimizer_state(self) -> dict[str, Any]:
        """The state of the optimizer, its parameters numbered."""
        state: dict[str, Any] = self.optimizer.state_dict()
        return state

    def load_optimizer(self, state: dict[str, Any]) -> None:
        """Go on with the state of an optimizer, its parameters numbered."""
        self.optimizer.load_state_dict(state)


class DataParallel(Strategy):
    """nn.DataParallel: at each step the model is copied to all devices and the batch is cut into as many pieces.

    With `wrap_optimizer` the optimizer is wrapped too, a recipe of 2018: it is then reached through `.module`. The
    wrapper holds no parameters, so its own state_dict() is empty: who saves that loses the momentum.
    """

    def __init__(self, config: Config, place: Place, model: nn.Module, build_optimizer: BuildOptimizer) -> None:
        super().__init__(config, place, model, build_optimizer)
        self.wrapped_optimizer: Any = None
        if config.wrap_optimizer and not (len(place.devices) == 1 and self.device.type == "cuda"):
            self.wrapped_optimizer = nn.DataParallel(self.optimizer, device_ids=self._device_ids())
            self.optimizer = self.wrapped_optimizer.module

    def wrap(self, model: nn.Module) -> nn.Module:
        """In nn.DataParallel; on a CPU that calls the model as it is."""
        return nn.DataParallel(model, device_ids=self._device_ids())

    def _device_ids(self) -> list[torch.device] | None:
        return list(self.place.devices) if self.device.type == "cuda" else None

    def step(self) -> None:
        """Step, through the wrapper of the optimizer if there is one."""
        if self.wrapped_optimizer is None:
            super().step()
            return
        self.scaler.step(self.wrapped_optimizer.module)
        self.scaler.update()
        self.wrapped_optimizer.module.zero_grad()


class Functional(Strategy):
    """nn.parallel.data_parallel: what DataParallel does at each step, without a wrapper that stays."""

    def forward(self, inputs: Tensor) -> Tensor:
        """Split over the devices; without a GPU torch refuses that, and the model is called directly."""
        if self.device.type == "cpu":
            return super().forward(inputs)
        inputs = inputs.to(self.device, non_blocking=True)
        outputs: Tensor = nn.parallel.data_parallel(self.called, inputs, list(self.place.devices))
        return outputs


class Manual(Strategy):
    """All by hand, in one process: a replica for each device, a shard of the batch for each, gradients summed."""

    def __init__(self, config: Config, place: Place, model: nn.Module, build_optimizer: BuildOptimizer) -> None:
        super().__init__(config, place, model, build_optimizer)
        copies = [copy.deepcopy(model).to(device) for device in place.devices[1:]]
        self.replicas = [self.plain, *copies]
        self.calls = [self.called, *(torch.compile(c, backend="eager") if config.compiles else c for c in copies)]
        self.optimizers = [self.optimizer, *(build_optimizer(replica) for replica in copies)]

    def train(self, mode: bool = True) -> None:
        """Switch all replicas."""
        for replica in self.replicas:
            replica.train(mode)

    def scatter(self, batch: Tensor) -> list[Tensor]:
        """Cut a batch along its first dimension, a shard for each device; some are empty if there are few samples."""
        if self.device.type == "cpu":  # torch's scatter is for GPUs
            return list(batch.tensor_split(len(self.replicas)))
        return list(nn.parallel.scatter(batch, list(self.place.devices)))

    def backward(self, inputs: Tensor, targets: Tensor, criterion: Criterion, share: float, *, last: bool) -> Tensor:
        """One backward pass for each shard; each counts by its size, so that their sum is that of the whole batch."""
        losses = []
        with self.autocast():
            for call, x, y in zip(self.calls, self.scatter(inputs), self.scatter(targets), strict=False):
                if len(x):
                    losses.append(criterion(call(x), y) * (len(x) / len(inputs)))
        for loss in losses:
            self.scaler.scale(loss * share).backward()
        return torch.stack([loss.detach().to(self.device) for loss in losses]).sum()

    def step(self) -> None:
        """Sum the gradients over the replicas, then each replica makes the same step."""
        for parameters in zip(*(replica.parameters() for replica in self.replicas), strict=True):
            allreduce(list(parameters))
        rates = [group["lr"] for group in self.optimizer.param_groups]  # the scheduler knows the first optimizer only
        for optimizer in self.optimizers:
            for group, rate in zip(optimizer.param_groups, rates, strict=True):
                group["lr"] = rate
            self.scaler.step(optimizer)
            optimizer.zero_grad()
        self.scaler.update()

    def load_optimizer(self, state: dict[str, Any]) -> None:
        """All replicas go on from the same state."""
        for optimizer in self.optimizers:
            optimizer.load_state_dict(copy.deepcopy(state))


def allreduce(parameters: list[nn.Parameter]) -> None:
    """Give the copies of one parameter the sum of their gradients: summed on the first device, then broadcast."""
    given = [p.grad for p in parameters if p.grad is not None]
    if not given:
        return
    first = parameters[0]
    total = given[0].to(first.device, copy=True)
    for gradient in given[1:]:
        total += gradient.to(first.device)
    for parameter in parameters:
        parameter.grad = total.to(parameter.device, copy=True)


class _InProcesses(Strategy):
    """What the strategies with several processes have in common: each process has a part of the samples."""

    def total(self, numbers: Tensor) -> Tensor:
        """The sum over all processes."""
        numbers = numbers.to(self.device)
        dist.all_reduce(numbers)
        return numbers


class AverageGradients(_InProcesses):
    """Each process trains its own copy of the model; before each step all average every gradient, by hand."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model itself; all copies begin with the weights of the first process."""
        for value in (*model.parameters(), *model.buffers()):
            dist.broadcast(value.detach(), 0)
        return model

    def sampler(self, samples: Any) -> Sampler[int]:
        """A partition of the samples, also by hand."""
        config, place = self.config, self.place
        return Partition(len(samples), place.rank, place.world, config.seed, drop_last=config.drop_last)

    def step(self) -> None:
        """Average the gradients, then step."""
        for parameter in self.plain.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.place.world
        super().step()


class DistributedDataParallel(_InProcesses):
    """DistributedDataParallel: gradients are averaged in buckets, while the backward pass still runs."""

    wrapped: nn.parallel.DistributedDataParallel

    def wrap(self, model: nn.Module) -> nn.Module:
        """In DistributedDataParallel, which also sends the weights of the first process to all."""
        device_ids = [self.device] if self.device.type == "cuda" else None
        return nn.parallel.DistributedDataParallel(model, device_ids=device_ids)

    def synchronised(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """`no_sync` while gradients are accumulated."""
        return contextlib.nullcontext() if last else self.wrapped.no_sync()


class FullyShard(_InProcesses):
    """fully_shard (FSDP2): each process keeps a shard of every parameter and of the state of the optimizer."""

    def wrap(self, model: nn.Module) -> nn.Module:
        """The model itself, its parameters now DTensors over a mesh of all processes."""
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        for value in (*model.parameters(), *model.buffers()):
            dist.broadcast(value.detach(), 0)
        mesh = init_device_mesh(self.device.type, (self.place.world,))
        fully_shard(model, mesh=mesh, mp_policy=MixedPrecisionPolicy())
        return model

    @contextlib.contextmanager
    def synchronised(self, last: bool) -> Iterator[None]:
        """Gradients are reduced at the last of several batches only."""
        self.wrapped.set_requires_gradient_sync(last)
        yield

    def wrapped_state(self) -> dict[str, Any]:
        """The gathered state dict: on the first process whole tensors on the CPU, on the others nothing."""
        from torch.distributed.checkpoint.state_dict import get_model_state_dict

        return get_model_state_dict(self.plain, options=self._gathered())

    def unwrapped_state(self) -> dict[str, Any]:
        """The same, since fully_shard adds no prefix."""
        return self.wrapped_state()

    def compiled_state(self) -> dict[str, Any]:
        """The gathered state dict under the names that torch.compile gives."""
        return {f"_orig_mod.{key}": value for key, value in self.wrapped_state().items()}

    def optimizer_state(self) -> dict[str, Any]:
        """The gathered state of the optimizer, its parameters under their names."""
        from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict

        return get_optimizer_state_dict(self.plain, self.optimizer, options=self._gathered())

    def load_optimizer(self, state: dict[str, Any]) -> None:
        """Go on with a gathered state; each process takes its shards."""
        from torch.distributed.checkpoint.state_dict import set_optimizer_state_dict

        from .optim import by_name, parameter_names

        named = by_name(state, [name for group in parameter_names(self) for name in group])
        set_optimizer_state_dict(self.plain, self.optimizer, named, options=self._gathered())

    @staticmethod
    def _gathered() -> Any:
        from torch.distributed.checkpoint.state_dict import StateDictOptions

        return StateDictOptions(full_state_dict=True, cpu_offload=True)


#: The class of each of the `ways`.
STRATEGIES: dict[str, type[Strategy]] = {
    "single": Strategy,
    "data-parallel": DataParallel,
    "functional": Functional,
    "manual": Manual,
    "average-gradients": AverageGradients,
    "ddp": DistributedDataParallel,
    "fsdp": FullyShard,
}
