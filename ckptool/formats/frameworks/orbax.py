"""orbax: folders of Orbax with one Zarr array for each leaf (`use_ocdbt=False`). Read only.

    _METADATA            JSON: the tree; a leaf has the keys on the way to it
    a.b.c/.zarray        JSON: shape, chunks, type, order, compression of the leaf at a, b, c   (Zarr, version 2)
    a.b.c/0.1            a chunk, compressed as a whole (zstd, gzip, zlib) or not at all

What Orbax writes unless it is told otherwise is one store for all leaves (OCDBT), which only TensorStore reads: that is
refused, with the way to write it anew.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any

from ...checkpoint import Checkpoint
from ...disk.documents import read_json
from ...disk.files import Buffer, FileRange, Source
from ...disk.inside import Folder
from ...dtypes import BY_NAME, DType
from ...errors import CannotCarry, CheckpointError, Malformed, UnknownFormat, printable
from ...tensor import LazyTensor, Storage, contiguous_stride, little_endian
from ..base import FolderFormat
from ..tiles import Chunk, assemble
from .flax import flattened
from .found import NUMPY_TYPES, checked_shape, lacking, tensor_over

_TREE = "_METADATA"
_STORE = "manifest.ocdbt"
_LARGEST_JSON = 1 << 28
_LARGEST_CHUNK = 1 << 30
_MOST_CHUNKS = 1_000_000
_PACKED = ("zstd", "gzip", "zlib")


@dataclass(frozen=True, slots=True)
class Unpacked:
    """A compressed chunk, unpacked when it is read.

    Attributes:
        stored: the bytes in the file.
        how: "zstd", "gzip" or "zlib".
        length: bytes of its values.
    """

    stored: FileRange
    how: str
    length: int

    @property
    def step(self) -> int:
        """Bytes that are unpacked at once."""
        return self.length

    def read(self, offset: int, length: int) -> bytes:
        """LENGTH bytes of values from OFFSET."""
        whole: bytes = _unpacked(self)
        return whole[offset : offset + length]

    def chunks(self) -> Iterator[bytes]:
        """All values."""
        yield _unpacked(self)


@lru_cache(maxsize=4)
def _unpacked(chunk: Unpacked) -> bytes:
    where = chunk.stored.file.path
    raw = chunk.stored.read(0, chunk.stored.length)
    data = b""
    if chunk.how == "zstd":
        zstandard = _zstandard(where)
        try:
            stream = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(raw)
            data = stream.read(chunk.length + 1)
        except zstandard.ZstdError as error:
            raise Malformed("a chunk cannot be unpacked", where=where, evidence=[str(error)[:200]]) from None
    else:
        try:
            data = zlib.decompressobj(47).decompress(raw, chunk.length + 1)
        except zlib.error as error:
            raise Malformed("a chunk cannot be unpacked", where=where, evidence=[str(error)]) from None
    if len(data) != chunk.length:
        raise Malformed(f"a chunk has {len(data):,} bytes of values, and {chunk.length:,} are stated", where=where)
    return data


def _zstandard(where: object) -> Any:
    try:
        import zstandard
    except ImportError:
        raise lacking("zstandard", "arrays that are compressed with zstd", where) from None
    return zstandard


def _fits(folder: Folder) -> bool:
    return _TREE in folder.names


def open_folder(folder: Folder) -> Checkpoint:
    """Open a folder of Orbax: its tree and the descriptions of its arrays are read, no value is."""
    if _STORE in folder.names:
        raise UnknownFormat(
            "is a folder of Orbax with all arrays in one store (OCDBT), which is not read",
            where=folder.path,
            hint="restore it, and save it with ocp.PyTreeCheckpointHandler(use_ocdbt=False)",
        )
    described = _json(folder, _TREE)
    leaves = described.get("tree_metadata")
    if not isinstance(leaves, dict):
        raise Malformed(f"its {_TREE} describes no tree", where=folder.path)
    if described.get("use_zarr3"):
        raise CannotCarry(
            "has arrays of Zarr 3, which are not read",
            where=folder.path,
            hint="restore it, and save it with ocp.PyTreeCheckpointHandler(use_ocdbt=False, use_zarr3=False)",
        )
    tree: dict[str, Any] = {}
    lost: list[str] = []
    size = folder.file(_TREE, _TREE).size
    for leaf in leaves.values():
        keys = [str(one.get("key")) for one in leaf.get("key_metadata", [])] if isinstance(leaf, dict) else []
        if not keys:
            raise Malformed(f"its {_TREE} has a leaf without keys", where=folder.path)
        name = ".".join(keys)
        if name not in folder.names:
            kind = str(leaf.get("value_metadata", {}).get("value_type", "?"))
            if kind not in ("None", "Dict", "List", "Tuple"):
                lost.append(f"{printable(name, 80)} ({printable(kind, 40)}), which has no folder")
            continue
        if (folder.path / name).is_symlink():
            raise Malformed(f"{printable(repr(name), 80)} is a link, which is not followed", where=folder.path)
        inner = Folder(folder.path / name)
        at = tree
        for key in keys[:-1]:
            at = at.setdefault(key, {})
            if not isinstance(at, dict):
                raise Malformed(f"{printable(repr(name), 80)} lies below an array", where=folder.path)
        at[keys[-1]], more = _array(inner, name)
        size += more
    return Checkpoint(
        flattened(tree, folder.path),
        "orbax",
        folder.path,
        size,
        warnings=tuple(lost),
        lost_content=tuple(lost),
        framework="orbax",
    )


def _json(folder: Folder, name: str) -> dict[str, Any]:
    file = folder.file(name, name)
    if file.size > _LARGEST_JSON:
        raise Malformed(f"has {file.size:,} bytes of JSON", where=file.path)
    found = read_json(file.read(0, file.size), file.path, name)
    if not isinstance(found, dict):
        raise Malformed("is no description", where=file.path)
    return found


def _array(folder: Folder, name: str) -> tuple[LazyTensor, int]:
    """The Zarr array in a folder, and the bytes of its chunks."""
    said = _json(folder, ".zarray")
    where = folder.path
    shape, size, order = said.get("shape"), said.get("chunks"), said.get("order")
    packed, filters = said.get("compressor"), said.get("filters")
    code = said.get("dtype")
    dtype = BY_NAME.get(NUMPY_TYPES.get(code.lstrip("<>|"), code)) if isinstance(code, str) else None
    if dtype is None or dtype.numpy is None:
        raise CannotCarry(f"has values of type {printable(str(code), 40)}, which are not read", where=where)
    how = packed.get("id") if isinstance(packed, dict) else None
    if filters or order not in ("C", "F") or (packed is not None and how not in _PACKED):
        what = f"compressor {how}" if how not in (*_PACKED, None) else "filters or order"
        raise CannotCarry(f"has an array with {printable(what, 60)} that are not read", where=where)
    if not isinstance(shape, list) or not isinstance(size, list) or len(shape) != len(size):
        raise Malformed("its .zarray has no shape and chunks", where=where)
    checked_shape(shape, dtype, name, where)
    checked_shape(size, dtype, name, where)
    whole = prod(size) * dtype.itemsize
    counts = [-(-n // c) if c else 0 for n, c in zip(shape, size, strict=True)]
    if 0 in size or whole > _LARGEST_CHUNK or prod(counts) > _MOST_CHUNKS:
        raise Malformed(f"its chunks are none: {printable(str(size), 60)}", where=where)
    between = said.get("dimension_separator", ".")
    stride = contiguous_stride(tuple(size))
    if order == "F":
        stride = contiguous_stride(tuple(size)[::-1])[::-1]
    big = str(code).startswith(">") and dtype.itemsize > 1
    filling = said.get("fill_value")
    chunks: list[Chunk] = []
    read = 0
    for place in product(*map(range, counts)):
        file_name = between.join(map(str, place)) or "0"
        values: Source
        steps = stride
        if file_name in folder.names:
            file = folder.file(file_name, ".zarray")
            read += file.size
            stored = FileRange(file, 0, file.size)
            values = Unpacked(stored, how, whole) if how else stored
            if values.length != whole:
                raise Malformed(f"chunk {file_name} has {values.length:,} bytes, not {whole:,}", where=file.path)
        elif filling in (0, 0.0, False):
            values, steps = Buffer(bytes(dtype.itemsize)), (0,) * len(size)
        else:
            raise Malformed(
                f"chunk {printable(file_name, 60)} is missing",
                where=where,
                hint="the download or copy did not finish; fetch the missing file",
            )
        starts = tuple(at * c for at, c in zip(place, size, strict=True))
        cut = tuple(min(c, n - s) for c, n, s in zip(size, shape, starts, strict=True))
        storage = little_endian(Storage(values, "cpu", None, name, None, big), dtype)
        chunks.append(Chunk(starts, LazyTensor(storage, dtype, cut, steps)))
    return _assembled(shape, dtype, chunks, name, where), read


def _assembled(shape: list[int], dtype: DType, chunks: list[Chunk], name: str, where: object) -> LazyTensor:
    try:
        return tensor_over(assemble(tuple(shape), dtype, chunks), dtype, shape, name)
    except CheckpointError as error:
        error.where = error.where or str(where)
        raise


FORMAT = FolderFormat(
    name="orbax",
    aliases=(),
    summary="a folder of Orbax with an array of Zarr for each leaf (use_ocdbt=False)",
    carries="tensors under the paths of the tree",
    pickles=False,
    within=(),
    fits=_fits,
    open=open_folder,
    draft=None,
    loader="other",
)
