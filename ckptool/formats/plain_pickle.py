"""pickle: a file of Python's own pickle module. Read only.

Tensors in it carry their storages as bytes: `torch.storage._load_from_bytes(b"…")`, where the bytes are a legacy
stream of torch.save with the storage alone. (So each tensor has a storage of its own, whatever was shared.) Arrays of
numpy, and what else there is, are read as in any pickle.
"""

from __future__ import annotations

import re
from typing import Any, NoReturn

from ..checkpoint import Checkpoint
from ..disk.files import Buffer, File, FileRange
from ..errors import CannotCarry, Malformed
from ..inert.decode import check_all
from ..tensor import Storage
from ..tree import ABSENT, Global
from ._torch import StorageForm, TorchReader
from .base import Format
from .foreign import OLD_PICKLE
from .frameworks.paddle import told_of_paddle
from .torch_legacy import read_stream

_LARGEST = 1 << 30


def sniff(head: bytes, file: object = None) -> bool:
    """Whether HEAD begins as pickles do: with a protocol, or with a dict, list or object of protocol 0 or 1."""
    return bool(re.match(rb"\x80[\x01-\x05]", head) or OLD_PICKLE.match(head))


def open_pickle(file: File) -> Checkpoint:
    """Open a plain pickle, with the storages of the tensors that it holds where they are in the file."""
    if file.size > _LARGEST:
        raise CannotCarry(f"is a pickle of {file.size:,} bytes; 1 GiB is the limit", where=file.path)
    data = file.read(0, file.size)
    reader = PlainReader(data, file)
    root = reader.load()
    if reader.position < file.size:
        raise Malformed(
            f"is a plain pickle with {file.size - reader.position:,} bytes behind its end; is it several files in one?",
            where=file.path,
        )
    found = Checkpoint(
        root,
        "pickle",
        file.path,
        file.size,
        warnings=check_all(reader.others, file.path),
        lost_content=reader.lost_content(),
    )
    return told_of_paddle(found)


def _no_storage(key: str, form: StorageForm) -> NoReturn:
    raise Malformed("has a persistent id")


#: Bytes between the end of a text of bytes and what is read next, at most.
_NEAR = 4096


class PlainReader(TorchReader):
    """Reads the streams of torch.save that stand in a plain pickle as byte strings."""

    def __init__(self, data: bytes, file: File) -> None:
        super().__init__(data, file.path, _no_storage)
        self.file = file
        self._loaded: dict[int, Storage] = {}
        self._streams: list[bytes] = []

    def _storage(self, pid: Any) -> Any:
        return self._fail("has persistent ids, which only the program that wrote them understands")

    def _rebuild(self, callee: Any, args: Any) -> Any:
        named = isinstance(callee, Global) and str(callee) == "torch.storage._load_from_bytes"
        if not named or not isinstance(args, tuple) or len(args) != 1 or not isinstance(args[0], bytes):
            return super()._rebuild(callee, args)
        stream = args[0]
        if id(stream) not in self._loaded:
            found = read_stream(stream, self.where)
            if not isinstance(found, Storage):
                return ABSENT
            self._streams.append(stream)  # keeps it alive, so that its id stays its own
            self._loaded[id(stream)] = self._in_file(stream, found)
        return self._loaded[id(stream)]

    def _in_file(self, stream: bytes, storage: Storage) -> Storage:
        """The storage as a range of the file, where the stream stands there as it is, not as text (protocol 2)."""
        source = storage.source
        assert isinstance(source, FileRange)
        nearest = max(0, self.position - len(stream) - _NEAR)  # the bytes of an opcode that was just read
        start = self.data.rfind(stream[:64], nearest, self.position)
        if start >= 0 and self.data[start : start + len(stream)] == stream:
            return storage.changed(source=FileRange(self.file, start + source.offset, source.length))
        return storage.changed(source=Buffer(stream[source.offset : source.offset + source.length]))


FORMAT = Format(
    name="pickle",
    aliases=("pkl",),
    suffixes=(),
    summary="a file of Python's pickle module, also with tensors in it",
    carries="everything; tensors that shared memory have storages of their own",
    pickles=True,
    sniff=sniff,
    open=open_pickle,
    loader="pickle",
)
