"""Files that several ranks wrote one over the other, as HuggingFaceStorageWriter does without `save_distributed`.

What is left is what one rank held, perhaps with bytes of another behind it, beside an index of the whole. Seen in what
torch 2.13 writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ...checkpoint import Checkpoint
from ...disk.files import File
from ...errors import Malformed

#: What the header notes of a file that holds parts of tensors.
_PLACED = "DCP_SHARDING_INFO"


def opened_each(files: Mapping[str, File], opened: Callable[[File], Checkpoint], total: Any) -> dict[str, Checkpoint]:
    """What OPENED makes of each of FILES, which hold TOTAL bytes together, as an index says (None: it does not).

    Raises:
        Malformed: a file is none, or several ranks wrote it.
    """
    parts: dict[str, Checkpoint] = {}
    for name, file in files.items():
        try:
            parts[name] = opened(file)
        except Malformed as error:
            raise _refusal_of(file, error.what) or error from None
    noted = [name for name, part in parts.items() if _PLACED in part.metadata]
    held = sum(tensor.nbytes for part in parts.values() for _, tensor in part.tensors()) if noted else 0
    if noted and type(total) is int and held != total:
        found = _refusal_of(files[noted[0]], f"it holds {held:,} bytes, and the index says {total:,}")
        if found is not None:
            raise found
    return parts


def _refusal_of(file: File, evidence: str) -> Malformed | None:
    """The refusal of a file that several ranks wrote one over the other, or None if that is not what it is."""
    if _PLACED.encode() not in file.read(0, min(file.size, 1 << 16)):
        return None
    return Malformed(
        "was written by several ranks at once, one over the other; the parts of all but one are lost",
        where=file.path,
        evidence=[evidence, f"its header notes places of parts ({_PLACED}), as HuggingFaceStorageWriter does"],
        hint="save again, with HuggingFaceStorageWriter(…, save_distributed=True); ckptool joins what that writes",
    )
