"""What a run saves: each kind of checkpoint as training scripts do, with torch.save or the safetensors library."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ..disk.door import Directory, make_directories
from ..disk.files import reason
from ..disk.folders import check_folder, new_folder
from ..disk.runs import find
from ..disk.targets import check_target, replacing
from ..disk.work import remove
from ..errors import CannotCarry, CheckpointError, OutputExists, Unwritable
from . import curves
from .config import Config, Save

if TYPE_CHECKING:
    from .session import Session


def check_targets(config: Config) -> None:
    """Make the folder of a run, and refuse to replace what another run left there.

    Raises:
        OutputExists: a file of that name is there, `overwrite` was not asked for, and it is not this run that goes on.
        Unwritable: the folder cannot be made or written to, or a target is something else.
    """
    folder = Path(config.out)
    try:
        make_directories(folder)
    except OSError as error:
        raise Unwritable(reason(error), where=folder) from None
    if not os.access(folder, os.W_OK):
        raise Unwritable("no permission to write into the folder", where=folder)
    for path in _targets(config):
        if not may_replace(config) and path.exists():
            raise OutputExists("exists already", where=path, hint="add --overwrite, or choose another --out")
        if path.suffix:
            check_target(path, overwrite=True)
        else:
            check_folder(path, overwrite=True, replaced=is_part)


def may_replace(config: Config) -> bool:
    """Whether a run may replace what is in its folder: it was asked to, or goes on with the run that is in it."""
    goes_on = config.resume is not None and Path(config.resume).resolve().parent == Path(config.out).resolve()
    return config.overwrite or goes_on


def is_part(name: str) -> bool:
    """Whether a file in a folder that a run writes is one of those that the run makes there."""
    return name == ".metadata" or name.endswith(".distcp") or name.startswith("events.out.tfevents.")


def _targets(config: Config) -> list[Path]:
    """Everything that a run writes."""
    folder = Path(config.out)
    return [*(folder / save.name(config.task, config.strategy) for save in config.saves), *curves.targets(config)]


def clear(config: Config) -> None:
    """Remove what a rank that was killed had written of a file."""
    with contextlib.suppress(OSError), Directory.at(Path(os.path.realpath(config.out))) as folder:
        for target in _targets(config):
            for left in find(folder, target.name):
                if left.own and not left.lives:
                    remove(left)


def save(session: Session) -> list[Path]:
    """Write everything that the run is asked to save. All processes call this, the first one writes single files."""
    config, folder = session.config, Path(session.config.out)
    paths = []
    payloads: dict[str, Any] = {}
    for wanted in config.saves:
        path = folder / wanted.name(config.task, config.strategy)
        paths.append(path)
        overwrite = may_replace(config) or path in session.saved
        session.saved.add(path)
        if wanted.kind == "dcp":
            _save_directory(session, path, overwrite=overwrite)
            continue
        if wanted.kind not in payloads:
            payloads[wanted.kind] = _payload(session, wanted.kind)
        if session.place.leads:
            write(payloads[wanted.kind], path, wanted, overwrite=overwrite)
    if session.place.leads:
        drawn = curves.targets(config)
        paths += curves.draw(session, overwrite=may_replace(config) or set(drawn) <= session.saved)
        session.saved.update(drawn)
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
    from .optim import parameter_names
    from .session import plain_history

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


def write(value: Any, path: Path, save: Save, *, overwrite: bool = False) -> None:
    """Write VALUE as torch or the safetensors library write it; PATH is the new file or the old one, whatever happens.

    Raises:
        OutputExists: there is a file, and OVERWRITE is false.
        Unwritable: no room, no permission.
        CannotCarry: the value cannot be pickled, or shares memory where safetensors does not allow that.
    """
    with replacing(path, overwrite=overwrite) as raw:
        file = _WithoutDescriptor(raw)
        out = io.BufferedWriter(file)
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
            file.ended = True  # what an error left in the buffer goes nowhere, now or when the buffer is garbage
            with contextlib.suppress(ValueError):
                out.detach()  # `replacing` closes the file itself


class _WithoutDescriptor(io.RawIOBase):
    """A file that can be written to in one way only: torch's writer of legacy files would take the descriptor, and
    report a full disk in words of its own."""

    def __init__(self, raw: IO[bytes]) -> None:
        self._raw = raw
        self.ended = False

    def writable(self) -> bool:
        """Yes."""
        return True

    def write(self, data: Any) -> int | None:
        """Write some of DATA; nothing of it once the file has ended."""
        return memoryview(data).nbytes if self.ended else self._raw.write(data)


def _save_directory(session: Session, path: Path, *, overwrite: bool) -> None:
    """Let torch.distributed.checkpoint write a directory, and give it the name PATH once it is whole."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.api import CheckpointException  # no Exception, but a BaseException
    from torch.distributed.checkpoint.state_dict import get_state_dict

    leads, world = session.place.leads, session.place.world
    names = [".metadata", ".metadata.tmp", *(f"__{rank}_{n}.distcp" for rank in range(world) for n in range(8))]
    made: list[Any] = [None]
    model, optimizer = get_state_dict(session.strategy.plain, session.strategy.optimizer)
    state = {
        "model": model,
        "optimizer": optimizer,
        "scheduler": session.scheduler.state_dict() if session.scheduler else {},
        "progress": {"epoch": session.epoch, "history": _history(session), "rng": _rng_states(session)},
    }
    try:
        with contextlib.ExitStack() as stack, warnings.catch_warnings():
            if leads:
                made = [os.fspath(stack.enter_context(new_folder(path, names, overwrite=overwrite, replaced=is_part)))]
            if world > 1:
                dist.broadcast_object_list(made)
            warnings.filterwarnings("ignore", message="torch.distributed is disabled")  # as was asked for
            dcp.save(state, checkpoint_id=made[0], no_dist=world == 1)
    except (Exception, CheckpointException) as error:
        cause = next((e for e in causes(error) if isinstance(e, OSError) and not isinstance(e, CheckpointError)), None)
        if cause is None:
            raise
        raise Unwritable(reason(cause), where=path) from None


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
