"""Going on from a checkpoint of this or another strategy, read without running anything that is inside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..disk.files import StrPath, is_folder
from ..errors import CannotCarry, CheckpointError, Malformed, counted, printable
from ..formats import open as open_checkpoint
from ..formats.loading import load
from ..passes.by_key import unwrap
from ..passes.envelopes import extract
from ..tree import Dict

if TYPE_CHECKING:
    from .session import Session


@dataclass
class Progress:
    """What a checkpoint knows of a run. What it does not know is None or empty.

    Attributes:
        weights: key, as the code of the model names it -> tensor.
        optimizer: the state of the optimizer, its parameters numbered or named.
        param_names: the names of numbered parameters, in order.
    """

    weights: dict[str, Any]
    optimizer: dict[str, Any] | None = None
    param_names: list[str] | None = None
    scheduler: dict[str, Any] | None = None
    scaler: dict[str, Any] | None = None
    average: dict[str, Any] | None = None
    rng: list[dict[str, Any]] = field(default_factory=list)
    history: list[dict[str, Any]] = field(default_factory=list)

    def load_weights(self, model: nn.Module, where: object) -> None:
        """Give MODEL the weights.

        Raises:
            CannotCarry: keys or shapes are not those of the model.
        """
        own = model.state_dict()
        no_tensors = [key for key, value in self.weights.items() if not isinstance(value, torch.Tensor)]
        if no_tensors:
            evidence = [printable(key, 60) for key in no_tensors[:5]]
            raise CannotCarry("its weights are not all tensors", where=where, evidence=evidence)
        missing = [key for key in own if key not in self.weights]
        unknown = [key for key in self.weights if key not in own]
        shapes = [
            f"{key}: {list(self.weights[key].shape)} in the file, {list(own[key].shape)} in the model"
            for key in own
            if key in self.weights and self.weights[key].shape != own[key].shape
        ]
        if missing or unknown or shapes:
            evidence = [f"missing: {', '.join(missing[:5])}"] if missing else []
            evidence += [f"unknown: {', '.join(printable(key, 60) for key in unknown[:5])}"] if unknown else []
            raise CannotCarry(
                "its weights are not those of this task's network", where=where, evidence=evidence + shapes[:5]
            )
        model.load_state_dict(self.weights)

    def restore(self, session: Session) -> list[str]:
        """Give the rest to a run that has begun with the weights. Returns what a person should know about it.

        Raises:
            CannotCarry: it is the state of another optimizer or scheduler.
            Malformed: it is not the state of any.
        """
        try:
            return self._restored(session)
        except CheckpointError:
            raise
        except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
            what = printable(f"{type(error).__name__}: {error}".splitlines()[0], 120)
            raise Malformed(
                "what it holds beside the weights is nothing that training goes on from",
                where=session.config.resume or "",
                evidence=[what],
                hint="take its weights alone: ckptool extract-weights",
            ) from None

    def _restored(self, session: Session) -> list[str]:
        from .optim import parameter_names
        from .session import Epoch

        lacking = []
        remarks = []
        strategy = session.strategy
        if not self.optimizer or not self.optimizer.get("param_groups"):  # empty: a wrapped optimizer's own state_dict
            lacking.append("optimizer state")
        else:
            numbered = by_number(self.optimizer, self.param_names, parameter_names(strategy))
            remarks = _settings(numbered["param_groups"], strategy.optimizer.param_groups)
            strategy.load_optimizer(numbered)
        session.history = [Epoch(**epoch) for epoch in self.history]
        if not self.history:
            lacking.append("epoch")
        for name, part, state in (
            ("scheduler", session.scheduler, self.scheduler),
            ("gradient scaler", strategy.scaler if strategy.scaler.is_enabled() else None, self.scaler),
            ("moving average", session.average, self.average),
        ):
            if part is None:
                continue
            if not state:
                lacking.append(name)
            elif part.state_dict().keys() != state.keys():
                raise CannotCarry(
                    f"its {name} is another one",
                    where=session.config.resume or "",
                    evidence=[f"it has {', '.join(printable(str(key), 40) for key in state)}"],
                    hint="give the same --schedule as the run that is resumed",
                )
            else:
                part.load_state_dict(state)
        line = (
            f"continuing after epoch {session.epoch}" if self.history else "starting from the weights of the checkpoint"
        )
        line += f"; it holds no {', no '.join(lacking)}" if lacking else ""
        return [line, *remarks, *self._restore_rng(session)]

    def _restore_rng(self, session: Session) -> list[str]:
        if not self.rng:
            return []
        place = session.place
        if len(self.rng) != place.world:
            return [
                f"the checkpoint has random number states of {counted(len(self.rng), 'rank')}, this run has "
                f"{place.world}: they are not restored, so dropout and augmentation draw other numbers"
            ]
        mine = self.rng[place.rank]
        torch.set_rng_state(mine["torch"])
        on_gpus = mine.get("cuda", [])
        if place.device.type == "cuda" and len(on_gpus) == len(place.devices):
            for device, state in zip(place.devices, on_gpus, strict=True):
                torch.cuda.set_rng_state(state, device)
        return []


def read(path: StrPath) -> Progress:
    """Read what a checkpoint knows of a run: a training checkpoint, a directory, or weights of any kind.

    Raises:
        CheckpointError: it cannot be read, or holds no weights.
    """
    if is_folder(path):
        return _read_directory(Path(path))
    ckpt = open_checkpoint(path)
    if isinstance(ckpt.root, Dict) and isinstance(ckpt.root.get("model"), Dict) and "optimizer" in ckpt.root:
        root = load(ckpt, map_location="cpu")
        return Progress(
            weights=_unwrapped(root["model"]),
            optimizer=root["optimizer"],
            param_names=root.get("param_names"),
            scheduler=root.get("scheduler"),
            scaler=root.get("scaler"),
            average=root.get("ema"),
            rng=_states(root.get("rng")),
            history=_epochs(root.get("history")),
        )
    return Progress(_unwrapped(load(extract(ckpt), map_location="cpu")))


def _states(value: Any) -> list[dict[str, Any]]:
    """The states of random number generators as we keep them; other scripts keep other things under that name."""
    states = list(value) if isinstance(value, list) else []
    one = torch.get_rng_state()

    def known(state: Any) -> bool:
        given = state.get("torch") if isinstance(state, dict) else None
        return isinstance(given, torch.Tensor) and (given.dtype, given.shape) == (one.dtype, one.shape)

    return states if all(map(known, states)) else []


def _epochs(value: Any) -> list[dict[str, Any]]:
    epochs = list(value) if isinstance(value, list) else []
    fields = {"number", "loss", "test_loss", "accuracy", "rate"}
    return epochs if all(isinstance(epoch, dict) and set(epoch) == fields for epoch in epochs) else []


def _settings(given: list[dict[str, Any]], wanted: list[dict[str, Any]]) -> list[str]:
    """What the optimizer of a checkpoint is told otherwise than that of this run: it goes on with its own settings.

    Raises:
        CannotCarry: it is another kind of optimizer.
    """
    remarks = []
    for theirs, ours in zip(given, wanted, strict=True):
        other = theirs.keys() ^ ours.keys()
        if {"momentum", "betas"} & other:
            raise CannotCarry(
                "its optimizer is another one",
                evidence=[f"settings that only one of the two has: {', '.join(sorted(map(str, other)))}"],
                hint="give the same --optimizer as the run that is resumed",
            )
        rates = theirs.get("initial_lr", theirs.get("lr")), ours.get("initial_lr", ours["lr"])
        for name, (kept, asked) in {
            "rate": rates,
            **{name: (theirs.get(name), ours.get(name)) for name in ("momentum", "weight_decay")},
        }.items():
            if kept != asked:
                remarks.append(f"its {name.replace('_', ' ')} of {kept:g} goes on; {asked:g} was asked for")
    return list(dict.fromkeys(remarks))


def _unwrapped(state_dict: Mapping[str, Any]) -> dict[str, Any]:
    """The weights under the names that the code of the model gives."""
    plain: Any = dict(state_dict)
    unwrapped: Any = unwrap(plain, missing="ok")
    return dict(unwrapped)


def by_number(state: Mapping[str, Any], names: Sequence[str] | None, wanted: Sequence[Sequence[str]]) -> dict[str, Any]:
    """The state of an optimizer with its parameters numbered through the groups of WANTED.

    Args:
        state: numbered as in NAMES, or with names for keys, as torch.distributed.checkpoint gives it.
        names: the names of its numbers; None if they are numbered as in WANTED.
        wanted: the names of the parameters of each group of the optimizer that goes on.

    Raises:
        CannotCarry: the groups are not of the same parameters.
    """
    flat = [name for group in wanted for name in group]
    number_of = {name: number for number, name in enumerate(flat)}

    def name(old: Any) -> str:
        if isinstance(old, str):
            return old
        listed = names or flat
        return listed[old] if old < len(listed) else f"number {old}"

    given = {frozenset(map(name, group["params"])): group for group in state["param_groups"]}
    if set(given) != {frozenset(group) for group in wanted}:
        sizes = [len(group["params"]) for group in state["param_groups"]]
        raise CannotCarry(
            f"its optimizer has groups of {', '.join(map(str, sizes))} parameters, this run's groups are of "
            f"{', '.join(str(len(group)) for group in wanted)}, or of others",
            hint="give the same --lr-group options as the run that is resumed",
        )
    groups = [{**given[frozenset(group)], "params": [number_of[name] for name in group]} for group in wanted]
    entries = {number_of[name(old)]: entry for old, entry in state["state"].items()}
    return {"state": dict(sorted(entries.items())), "param_groups": groups}


# -- directories of torch.distributed.checkpoint


def _read_directory(folder: Path) -> Progress:
    """Read a directory of torch.distributed.checkpoint whole, on the CPU, whatever the number of its ranks."""
    state = load(folder, map_location="cpu")
    if not isinstance(state, Mapping) or not isinstance(state.get("model"), Mapping):
        raise Malformed("holds no entry 'model'", where=folder)
    progress = state.get("progress")
    progress = progress if isinstance(progress, Mapping) else {}
    history: Any = progress.get("history")
    known = isinstance(history, torch.Tensor) and history.ndim == 2 and history.shape[1] == 5
    return Progress(
        weights=_unwrapped(state["model"]),
        optimizer=state.get("optimizer") or None,
        scheduler=state.get("scheduler") or None,
        rng=_states(progress.get("rng")),
        history=[_epoch(row) for row in history.tolist()] if known else [],
    )


def _epoch(row: list[float]) -> dict[str, Any]:
    number, loss, test_loss, accuracy, rate = row
    return {
        "number": int(number),
        "loss": loss,
        "test_loss": test_loss,
        "accuracy": None if accuracy != accuracy else accuracy,
        "rate": rate,
    }
