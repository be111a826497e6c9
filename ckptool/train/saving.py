"""What a run saves: each kind of checkpoint as training scripts do, with torch.save or the safetensors library."""

from __future__ import annotations

import contextlib
import glob
import io
import os
import shutil
import warnings
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..disk.files import reason
from ..disk.writing import replacing
from ..errors import CannotCarry, OutputExists, Unwritable
from . import curves
from .config import Config, Save

if TYPE_CHECKING:
    from .loop import Session


def check_targets(config: Config) -> None:
    """Make the folder of a run, and refuse to replace what another run left there.

    Raises:
        OutputExists: a file of that name is there, `overwrite` was not asked for, and it is not this run that goes on.
        Unwritable: the folder cannot be made or written to.
    """
    folder = Path(config.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unwritable(reason(error), where=folder) from None
    if not os.access(folder, os.W_OK):
        raise Unwritable("the folder may not be written to", where=folder)
    goes_on = config.resume is not None and Path(config.resume).resolve().parent == folder.resolve()
    for path in [] if config.overwrite or goes_on else _targets(config):
        if path.exists():
            raise OutputExists("exists already", where=path, hint="add --overwrite, or choose another --out")


def _targets(config: Config) -> list[Path]:
    """Everything that a run writes."""
    folder = Path(config.out)
    return [*(folder / save.name(config.task, config.strategy) for save in config.saves), *curves.targets(config)]


def clear(config: Config) -> None:
    """Remove what a run that was broken off has written of a file; the names of whole files are not like that."""
    for target in _targets(config):
        _bring_back(target)
        for path in target.parent.glob(f".{glob.escape(target.name)}.*ckptool-tmp"):
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def save(session: Session) -> list[Path]:
    """Write everything that the run is asked to save. All processes call this, the first one writes single files."""
    config, folder = session.config, Path(session.config.out)
    paths = []
    payloads: dict[str, Any] = {}
    for wanted in config.saves:
        path = folder / wanted.name(config.task, config.strategy)
        paths.append(path)
        if wanted.kind == "dcp":
            _save_directory(session, path)
            continue
        if wanted.kind not in payloads:
            payloads[wanted.kind] = _payload(session, wanted.kind)
        if session.place.leads:
            write(payloads[wanted.kind], path, wanted)
    if session.place.leads:
        paths += curves.draw(session)
    if session.place.world > 1:
        dist.barrier()  # nobody goes on, or ends, before the files are whole
    return paths


def _payload(session: Session, kind: str) -> Any:
    strategy = session.strategy
    if kind == "wrapped":
        return strategy.wrapped_state()
    if kind == "unwrapped":
        return strategy.unwrapped_state()
    if kind == "compiled":
        return strategy.compiled_state()
    if kind == "model":
        return strategy.wrapped
    if kind == "ema":
        assert session.average is not None
        return session.average.state_dict()
    checkpoint = _training_checkpoint(session)
    if kind == "full-2018":
        checkpoint["optimizer"] = strategy.wrapped_optimizer.state_dict()
    return checkpoint


def _training_checkpoint(session: Session) -> dict[str, Any]:
    """What a run can be resumed from, in the layout of the many scripts that keep `model`, `optimizer` and `epoch`."""
    from .loop import plain_history
    from .optim import parameter_names

    strategy = session.strategy
    checkpoint: dict[str, Any] = {
        "epoch": session.epoch,
        "model": strategy.wrapped_state(),
        "optimizer": strategy.optimizer_state(),
        # an optimizer numbers its parameters; these are their names
        "param_names": [name for group in parameter_names(strategy) for name in group],
        "scheduler": session.scheduler.state_dict() if session.scheduler else None,
        "rng": _rng_states(session),
        "history": plain_history(session.history),
        "args": session.config.as_namespace(),
    }
    if strategy.scaler.is_enabled():
        checkpoint["scaler"] = strategy.scaler.state_dict()
    if session.average is not None:
        checkpoint["ema"] = session.average.state_dict()
    return checkpoint


def _rng_states(session: Session) -> list[dict[str, Any]]:
    """The states of the random number generators, of each process."""
    mine: dict[str, Any] = {"torch": torch.get_rng_state()}
    if session.place.device.type == "cuda":
        mine["cuda"] = [torch.cuda.get_rng_state(device) for device in session.place.devices]
    if session.place.world == 1:
        return [mine]
    states: list[Any] = [None] * session.place.world
    dist.all_gather_object(states, mine)
    return states


def write(value: Any, path: Path, save: Save) -> None:
    """Write VALUE as torch or the safetensors library write it; PATH is the new file or the old one, whatever happens.

    Raises:
        Unwritable: no room, no permission.
        CannotCarry: the value cannot be pickled, or shares memory where safetensors does not allow that.
    """
    with replacing(path, overwrite=True) as raw:
        out = io.BufferedWriter(_WithoutDescriptor(raw))
        try:
            if save.container == "safetensors":
                import safetensors.torch

                out.write(safetensors.torch.save({key: t.contiguous() for key, t in value.items()}, {"format": "pt"}))
            else:
                torch.save(value, out, _use_new_zipfile_serialization=save.container == "zip")
            out.flush()
        except OSError:
            raise
        except RuntimeError as error:
            # torch's writer of archives reports a full disk in words of its own, in the place of the OSError
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise CannotCarry(f"cannot be saved: {str(error).splitlines()[0]}", where=path) from None
        except (TypeError, AttributeError) as error:
            raise CannotCarry(f"cannot be pickled: {error}", where=path) from None
        finally:
            with contextlib.suppress(OSError, ValueError):
                out.detach()  # `replacing` closes the file itself


class _WithoutDescriptor(io.RawIOBase):
    """A file that can be written to in one way only: torch's writer of legacy files would take the descriptor, and
    report a full disk in words of its own."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any) -> int | None:
        """Write some of DATA."""
        return self._raw.write(data)


def _save_directory(session: Session, path: Path) -> None:
    """Write a torch.distributed.checkpoint directory beside PATH, and give it that name once it is whole."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException  # no Exception, but a BaseException
    from torch.distributed.checkpoint.state_dict import get_state_dict

    leads, alone = session.place.leads, session.place.world == 1
    temporary = path.with_name(f".{path.name}.new.ckptool-tmp")
    if leads:
        shutil.rmtree(temporary, ignore_errors=True)
        _bring_back(path)
    if not alone:
        dist.barrier()
    model, optimizer = get_state_dict(session.strategy.plain, session.strategy.optimizer)
    state = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": session.scheduler.state_dict() if session.scheduler else {},
        "progress": {"epoch": session.epoch, "history": _history(session), "rng": _rng_states(session)},
    }
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as was asked for
            dcp.save(state, checkpoint_id=temporary, no_dist=alone)
        if leads:
            old = _aside(path)
            if path.exists():
                path.replace(old)
            temporary.replace(path)
            shutil.rmtree(old, ignore_errors=True)
    except (Exception, CheckpointException) as error:
        cause = next((e for e in causes(error) if isinstance(e, OSError)), None)
        if cause is None:
            raise
        raise Unwritable(reason(cause), where=path) from None
    finally:
        if leads:
            shutil.rmtree(temporary, ignore_errors=True)
            _bring_back(path)


def _aside(path: Path) -> Path:
    """Where a directory stands while another takes its name: no call of the system swaps the two everywhere."""
    return path.with_name(f".{path.name}.old.ckptool-tmp")


def _bring_back(path: Path) -> None:
    """Give a directory that was moved aside its name back, if nothing has taken it."""
    if _aside(path).exists() and not path.exists():
        _aside(path).replace(path)


def _history(session: Session) -> torch.Tensor:
    """The history as a table, so that no directory needs a pickle of our own classes."""
    nan = float("nan")
    rows = [[e.number, e.loss, e.test_loss, nan if e.accuracy is None else e.accuracy, e.rate] for e in session.history]
    return torch.tensor(rows, dtype=torch.float64)


def causes(error: BaseException) -> list[BaseException]:
    """ERROR and what it was raised from; torch collects the errors of all ranks in one."""
    found: list[BaseException] = []
    pending: list[Any] = [error]
    while pending:
        one = pending.pop()
        if isinstance(one, BaseException) and one not in found:
            found.append(one)
            failures = getattr(one, "failures", {})
            pending += [one.__cause__, one.__context__]
            pending += [failure[0] for failure in failures.values()] if isinstance(failures, dict) else []
    return found
