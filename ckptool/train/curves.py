"""The curves of loss and accuracy: as a picture, and as logs for TensorBoard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..disk.door import scratch_directory
from ..disk.files import Buffer
from ..disk.folders import replacing_folder
from ..disk.targets import replacing
from ..errors import require

if TYPE_CHECKING:
    from .config import Config
    from .session import Session

_EVENTS = "events.out.tfevents."
_INSTALL = "pip install 'ckptool[train]'"


def check(config: Config) -> list[str]:
    """What cannot be drawn here for want of a library.

    Raises:
        NotInstalled: logs for TensorBoard were asked for, and it is not installed.
    """
    if config.tensorboard:
        require("--tensorboard", "tensorboard", extra="train")
    if config.curves and not _installed("matplotlib"):
        return [f"matplotlib is not installed, so the curves are not drawn ({_INSTALL})"]
    return []


def targets(config: Config) -> list[Path]:
    """The picture and the folder of logs, as far as they are wanted."""
    start = Path(config.out) / f"{config.task}-{config.strategy}-"
    wanted = {"curves.png": config.curves and _installed("matplotlib"), "tensorboard": config.tensorboard}
    return [start.with_name(start.name + name) for name, is_wanted in wanted.items() if is_wanted]


def draw(session: Session, *, overwrite: bool) -> list[Path]:
    """Draw the curves of a run, and log its epochs, as far as that is wanted. Returns where."""
    paths = targets(session.config)
    for path in paths:
        if path.suffix == ".png":
            with replacing(path, overwrite=overwrite) as out:
                out.write(_picture(session))
        else:
            _log(session, path, overwrite=overwrite)
    return paths


def _installed(package: str) -> bool:
    from importlib.util import find_spec

    return find_spec(package) is not None


def _picture(session: Session) -> bytes:
    import io

    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    history = session.history
    epochs = [epoch.number for epoch in history]
    shows_accuracy = bool(session.classes)
    figure = Figure(figsize=(9 if shows_accuracy else 5, 3.6), layout="constrained", dpi=120)
    axes: Any = figure.subplots(1, 2 if shows_accuracy else 1, squeeze=False)[0]
    axes[0].plot(epochs, [epoch.loss for epoch in history], "o-", markersize=3, label="training")
    axes[0].plot(epochs, [epoch.test_loss for epoch in history], "s--", markersize=3, label="test")
    axes[0].set_ylabel("loss")
    axes[0].legend()
    if shows_accuracy:
        axes[1].plot(epochs, [100 * (epoch.accuracy or 0.0) for epoch in history], "s--", markersize=3, color="C1")
        axes[1].set_ylabel("test accuracy, %")
        axes[1].set_ylim(0, 102)
    for axis in axes:
        axis.set_xlabel("epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
    figure.suptitle(f"{session.config.task}, {session.config.strategy}")
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def _log(session: Session, folder: Path, *, overwrite: bool) -> None:
    """Write the logs of all epochs anew: they are few, and those of a run that went before are not mixed with them."""
    from torch.utils.tensorboard import SummaryWriter

    with scratch_directory() as made:
        _write_events(SummaryWriter(os.fspath(made)), session)
        files = {path.name: [Buffer(path.read_bytes())] for path in sorted(made.iterdir())}
        replacing_folder(folder, files, overwrite=overwrite, replaced=lambda name: name.startswith(_EVENTS))


def _write_events(writer: Any, session: Session) -> None:
    with writer:
        for epoch in session.history:
            writer.add_scalar("loss/training", epoch.loss, epoch.number)
            writer.add_scalar("loss/test", epoch.test_loss, epoch.number)
            writer.add_scalar("rate", epoch.rate, epoch.number)
            if epoch.accuracy is not None:
                writer.add_scalar("accuracy", epoch.accuracy, epoch.number)
