"""joblib: pickles whose arrays stand between their opcodes, as scikit-learn's models are saved. Read only.

Behind the BUILD opcode of each `joblib.numpy_pickle.NumpyArrayWrapper`, which states type, shape and order, stand
(since joblib 1.2) a byte with the number of padding bytes, these, and the values. The whole may be compressed. Nothing
of the pickle is run: objects of scikit-learn are shown as what they would be made of.
"""

from __future__ import annotations

import bz2
import lzma
import os
import zlib
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from ...checkpoint import Checkpoint
from ...disk.door import unnamed_file
from ...disk.files import CHUNK, File
from ...errors import CannotCarry, Malformed, printable
from ...inert.decode import check_all
from ...inert.other_tensors import numpy_dtype
from ...tensor import LazyTensor
from ...tree import Dict, Global, Object
from ..base import Format
from ..pickle.reader import Reader
from ..plain_pickle import PlainReader
from ..plain_pickle import sniff as is_pickle
from .found import checked_shape, tensor_at

_LARGEST = 1 << 30
_MARK = b"joblib.numpy_pickle"
_WRAPPER = "joblib.numpy_pickle.NumpyArrayWrapper"
_BUILD = ord("b")
_ALIGNMENT = "numpy_array_alignment_bytes"


class _JoblibReader(PlainReader):
    """Reads a pickle with arrays between its opcodes."""

    opcodes: ClassVar[Mapping[int, Callable[[Reader], None]]]

    def _build(self) -> None:
        super()._build()
        target = self._stack[-1]
        if isinstance(target, Object) and _is_wrapper(target):
            self._stack[-1] = self._array(target)

    def _array(self, wrapper: Object) -> LazyTensor:
        """The array behind this place."""
        state = dict(wrapper.state.entries) if isinstance(wrapper.state, Dict) else {}
        shape: Any = state.get("shape")
        order, kind = state.get("order"), numpy_dtype(state.get("dtype"))
        if not isinstance(shape, tuple) or order not in ("C", "F"):
            self._fail("has an array of joblib without a shape or order")
        if kind is None:
            raise CannotCarry(
                "holds an array of Python objects, of text or of records, in joblib's own form", where=self.where
            )
        dtype, big_endian = kind
        checked_shape(shape, dtype, "an array", self.where)
        at = self.position
        if self._frame_end is not None and self._opcode_at < self._frame_end and at != self._frame_end:
            self._fail("has an array within a frame")
        self._frame_end = None
        if isinstance(state.get(_ALIGNMENT), int):
            at += 1 + (self.data[at] if at < len(self.data) else 0)
        sizes = shape if order == "C" else shape[::-1]
        tensor = tensor_at(self.file, at, dtype, sizes, f"the array at byte {at:,}", big_endian=big_endian)
        self.position = at + tensor.nbytes
        self.arrays += 1
        if order == "F":
            return LazyTensor(tensor.storage, dtype, shape, tensor.stride[::-1])
        return tensor

    arrays = 0


_JoblibReader.opcodes = {**Reader.opcodes, _BUILD: lambda reader: reader._build()}


def _is_wrapper(made: Object) -> bool:
    named = made.args[0] if made.how in ("newobj", "newobj_ex") and made.args else made.callee
    return any(isinstance(one, Global) and str(one) == _WRAPPER for one in (named, made.callee, *made.args[:1]))


def open_joblib(file: File) -> Checkpoint:
    """Open a file of joblib: its pickle is read, no array is. One that is compressed is inflated to an unnamed file."""
    held = _inflated(file)
    if held.size > _LARGEST:
        raise CannotCarry(f"is a joblib file of {held.size:,} bytes; 1 GiB is the limit", where=file.path)
    reader = _JoblibReader(held.read(0, held.size), held)
    root = reader.load()
    if reader.position < held.size:
        raise Malformed(f"{held.size - reader.position:,} bytes follow the end of its pickle", where=file.path)
    return Checkpoint(
        root,
        "joblib",
        file.path,
        file.size,
        warnings=check_all(reader.others, file.path),
        lost_content=reader.lost_content(),
        framework="joblib",
    )


def _unpacker(head: bytes) -> Any:
    """What inflates a file that begins with HEAD, or None."""
    if head[:2] == b"\x1f\x8b" or (head[:1] == b"\x78" and len(head) > 1 and int.from_bytes(head[:2], "big") % 31 == 0):
        return zlib.decompressobj(47)
    if head.startswith(b"BZh"):
        return bz2.BZ2Decompressor()
    if head.startswith((b"\xfd7zXZ", b"\x5d\0\0")):
        return lzma.LZMADecompressor(memlimit=1 << 28)
    return None


def _parts(file: File, unpacker: Any, most: int) -> Any:
    """What comes out of a compressed file, up to MOST bytes, in pieces."""
    size = at = 0
    packed = b""
    try:
        while size <= most and not unpacker.eof:
            if not packed and getattr(unpacker, "needs_input", True):
                packed = file.read(at, min(CHUNK, file.size - at))
                at += len(packed)
                if not packed:
                    return
            data = unpacker.decompress(packed, min(CHUNK, most + 1 - size))
            packed = getattr(unpacker, "unconsumed_tail", b"")
            size += len(data)
            yield data
    except (zlib.error, OSError, lzma.LZMAError, EOFError, ValueError) as error:
        raise Malformed("cannot be inflated", where=file.path, evidence=[printable(str(error), 100)]) from None


def _inflated(file: File) -> File:
    unpacker = _unpacker(file.read(0, min(16, file.size)))
    if unpacker is None:
        return file
    with unnamed_file() as out:
        out.writelines(_parts(file, unpacker, _LARGEST))
        out.flush()
        if not unpacker.eof and out.tell() <= _LARGEST:
            raise Malformed(
                "is cut short: what is compressed in it does not end",
                where=file.path,
                hint="the download or copy did not finish; compare the size with the source",
            )
        return File(file.path, os.dup(out.fileno()))


def _is_joblib(head: bytes, file: Any) -> bool:
    """Whether a pickle, perhaps a compressed one, names joblib's wrapper of arrays near its beginning."""
    unpacker = _unpacker(head)
    if unpacker is not None:
        try:
            head = b"".join(_parts(file, unpacker, 4096))
        except Malformed:
            return False
    return is_pickle(head) and _MARK in head[:4096]


FORMAT = Format(
    name="joblib",
    aliases=(),
    suffixes=(),
    summary="a pickle with its arrays between the opcodes, from joblib.dump, also compressed",
    carries="everything; objects as what they would be made of",
    pickles=True,
    sniff=_is_joblib,
    open=open_joblib,
    loader="other",
)
