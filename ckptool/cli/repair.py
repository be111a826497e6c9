"""`ckptool repair`."""

from __future__ import annotations

from typing import Any

import click

from .. import formats
from ..checkpoint import Checkpoint
from ..disk.addresses import is_url
from ..disk.files import shell_path
from ..disk.urls import size_of
from ..errors import CannotCarry, Malformed, NoMatch, counted, printable
from .help import Command
from .options import writing_options
from .output import WORTH_A_BAR, status_line
from .rewrite import rewrite

_SHOWN = 12


@click.command(cls=Command)
@writing_options
def repair(**options: Any) -> int:
    """Rebuild a damaged file: zipped again, without its directory, or cut short.

    Intact tensors are saved. If something is lost, repair lists it and writes the rest only with --allow-loss. A tensor
    is intact if all its bytes are there and match their checksum (if there is one). If no tensor is intact, nothing is
    written.

    \b
    ckptool repair rezipped.pth repaired.pth
    ckptool repair truncated.pth rest.pth --allow-loss
    """

    def salvaged(source: str) -> Checkpoint:
        large = not is_url(source) and size_of(source) >= WORTH_A_BAR
        with status_line(f"reading {printable(source, 60)}", wanted=large and not options["quiet"]):
            found = formats.salvage(source)
        if not found.wrong and not found.lost:
            hint = f"ckptool verify {shell_path(source)}"
            raise NoMatch("nothing is wrong with it that can be repaired", where=source, hint=hint)
        more = len(found.lost) - _SHOWN
        lost = [
            *(f"{printable(path, 80)}: {why}" for path, why in found.lost[:_SHOWN]),
            *([f"… and {more:,} more"] if more > 0 else []),
        ]
        if found.hopeless:
            none = f"none of its {counted(found.tensors, 'tensor')} is whole, so none can be saved:"
            raise Malformed(
                none if lost else "holds no tensor, so there is nothing to save",
                where=source,
                evidence=lost,
                hint="copy or download it again",
            )
        if found.lost and not options["allow_loss"]:
            whole = f"{found.kept:,} of {counted(found.tensors, 'tensor')}"
            raise CannotCarry(
                f"not all of it can be saved; {counted(len(found.lost), 'entry', 'entries')} would be lost:",
                where=source,
                evidence=[*lost, *found.unseen],
                hint=f"--allow-loss   # writes the rest, with {whole}",
            )
        return found.checkpoint

    return rewrite([], "repair", options, opener=salvaged)
