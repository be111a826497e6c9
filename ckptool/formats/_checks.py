"""Checksums of the source that are compared while its bytes are written in another form.

A zip archive has a checksum for each record. To another archive it goes along with its record. Where it does not, the
bytes lose what could show that they are damaged, so it is compared on the way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

from ..checkpoint import Checkpoint
from ..disk.checksums import Damaged, crc32_of, recorded
from ..disk.composing import OF_OTHERS, Piece, Recorded, Verify
from ..disk.files import Buffer, FileRange, shell_quote
from ..errors import Malformed, printable

_WITHOUT_RECORD = (Buffer, *OF_OTHERS)


class Checks:
    """The comparisons that belong to one plan.

    Args:
        ckpt: what is written, for the names of its tensors.
        allow_loss: go on where a checksum is wrong, and note it.
    """

    def __init__(self, ckpt: Checkpoint, *, allow_loss: bool) -> None:
        self._ckpt = ckpt
        self._found: dict[Recorded, int] | None = {} if allow_loss else None

    def among(self, pieces: Sequence[Piece], *, carried: bool) -> list[Piece]:
        """PIECES, with a `Verify` for each recorded checksum behind the last piece that needs it.

        CARRIED: the checksums of whole records are written along with them.
        """
        last: dict[Recorded, int] = {}
        for number, piece in enumerate(pieces):
            if isinstance(piece, _WITHOUT_RECORD) or (carried and getattr(piece, "crc", None) is not None):
                continue
            for one in recorded(piece):
                last[one] = number
        if not last:
            return list(pieces)
        behind: dict[int, list[Recorded]] = defaultdict(list)
        for record, number in last.items():
            behind[number].append(record)
        return [
            one
            for n, piece in enumerate(pieces)
            for one in ((piece, *(Verify(r, self._found) for r in behind[n])) if n in behind else (piece,))
        ]

    def clear(self) -> None:
        """Begin anew."""
        if self._found:
            self._found.clear()

    def finish(self, pieces: Iterable[Piece]) -> None:
        """Compare what a run that was cut off had written. What is on the web is not fetched again."""
        for one in (piece.source for piece in pieces if isinstance(piece, Verify)):
            far = isinstance(one, FileRange) and one.file.far
            if self._found is not None and one not in self._found and not far:
                self._found[one] = crc32_of(one)

    def lines(self) -> list[str]:
        """What was written though its checksum is wrong."""
        wrong = {record: crc for record, crc in (self._found or {}).items() if crc != record.crc}
        return [f"{self._named(record)}: {_said(record, found)}" for record, found in wrong.items()]

    def refusal(self, error: Damaged) -> Malformed:
        """The error with the name of the tensor in it."""
        where = _file_of(error.source)
        return Malformed(
            f"the bytes of {self._named(error.source)} are damaged: their checksum does not match",
            where=where,
            evidence=[_said(error.source, error.found)],
            hint=f"ckptool verify {shell_quote(where)}   # lists all that is damaged; --allow-loss writes it as it is",
        )

    def _named(self, record: Recorded) -> str:
        """The tensors that are made of a record."""
        names = self._names.get(record)
        more = f" and {len(names) - 1:,} more" if names and names[1:] else ""
        return (printable(names[0], 80) + more) if names else f"a run of {record.length:,} bytes"

    @cached_property
    def _names(self) -> dict[Recorded, list[str]]:
        names: dict[Recorded, list[str]] = defaultdict(list)
        for path, tensor in self._ckpt.tensors():
            for record in dict.fromkeys(recorded(tensor.storage.source)):
                names[record].append(path)
        return names


def _said(record: Recorded, found: int) -> str:
    return f"CRC-32 recorded {record.crc:08x}, found {found:08x} over {record.length:,} bytes"


def _file_of(record: Recorded) -> str:
    path = record.file.path if isinstance(record, FileRange) else getattr(record, "path", "")
    return str(path)
