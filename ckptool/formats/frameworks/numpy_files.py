"""npy and npz: arrays of numpy.

    .npy   93 "NUMPY", version (1.0, 2.0, 3.0), length of the header (2 bytes; 4 from 2.0 on), the header: a dict in
           Python's spelling {'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }, then the values
    .npz   a zip archive of NAME.npy, stored (numpy.savez) or deflated (numpy.savez_compressed)

The layout is that of numpy's `lib/format.py`. The header is taken apart by a pattern and never evaluated. Types that
numpy does not know are written by it as bytes without a meaning: `V2` of ml_dtypes is bfloat16, its only type of two
bytes; of one byte it has many, which cannot be told apart. Arrays of Python objects are pickles and are not read.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from math import prod
from typing import Any

from ...checkpoint import Checkpoint, around
from ...disk.composing import Joined, Piece
from ...disk.files import Buffer, File, FileRange, Source, shell_path
from ...dtypes import BY_NAME, DType
from ...errors import CannotCarry, CheckpointError, Malformed, UnknownFormat, counted, printable
from ...inert.other_tensors import as_dense
from ...records import record
from ...tensor import MOST_DIMENSIONS, LazyTensor, Storage
from ...tree import List
from ..base import Draft, Format
from ..zip.archive import Archive, Inflated, open_archive
from ..zip.layout import Record, lay_out
from ..zip.structure import DEFLATED, STORED, Member
from .found import NUMPY_TYPES, checked_shape, named

_MAGIC = b"\x93NUMPY"
#: Longest header, as numpy reads it (`max_header_size`).
_LARGEST_HEADER = 10_000
#: Arrays of text up to so many bytes are read as text; larger ones are no settings.
_LARGEST_TEXT = 1 << 20
_ENDING = ".npy"

_FIELD = r"\s*'(?:descr|fortran_order|shape)'\s*:\s*(?:'[^'\\]*'|True|False|\([\d\s,L]*\))\s*,?"
_HEADER = re.compile(rf"\{{(?:{_FIELD}){{3}}\s*\}}\s*")
_TYPES = {**NUMPY_TYPES, "V2": "bfloat16", "f1": "float8_e5m2"}
_DESCR = {name: code for code, name in _TYPES.items() if code != "f1"}
_WORDS = {
    "O": "Python objects, which are a pickle",
    "M": "dates",
    "m": "spans of time",
    "V": "bytes without a type",
    "f": "floating point numbers that torch does not have",
    "c": "complex numbers that torch does not have",
}


@record(frozen=True, slots=True)
class _Header:
    """What the header of a .npy file says. `words` says why the values are no tensor; "" if they are one."""

    code: str
    dtype: DType | None
    big_endian: bool
    fortran: bool
    shape: tuple[int, ...]
    start: int
    words: str = ""


def _read_header(head: bytes, name: str, where: object) -> _Header:
    """The header at the beginning of HEAD, some kilobytes of an array."""
    shown = printable(repr(name), 80)
    major = head[6] if len(head) > 6 else 0
    wide = 2 if major == 1 else 4
    if not head.startswith(_MAGIC) or major not in (1, 2, 3) or len(head) < 8 + wide:
        raise Malformed(f"{shown} does not begin as an array of numpy does: {head[:8].hex(' ')}", where=where)
    length = int.from_bytes(head[8 : 8 + wide], "little")
    start = 8 + wide + length
    if length > _LARGEST_HEADER:
        raise Malformed(
            f"{shown} announces a header of {length:,} bytes; {_LARGEST_HEADER:,} is the limit", where=where
        )
    if start > len(head):
        raise Malformed(f"{shown} ends within its header", where=where)
    text = head[8 + wide : start].decode("utf-8" if major == 3 else "latin-1", "replace")
    if re.search(r"'descr'\s*:\s*[\[(]", text):
        return _Header("", None, False, False, (), start, "records of several fields")
    if not _HEADER.fullmatch(text):
        raise Malformed(f"{shown} has a header that is none: {printable(text.strip(), 100)}", where=where)
    found = {field: re.search(rf"'{field}'\s*:\s*(.*?)(?=,\s*'|,?\s*\}}\s*$)", text) for field in _FIELDS}
    if any(match is None for match in found.values()):
        raise Malformed(f"{shown} has a header that is none: {printable(text.strip(), 100)}", where=where)
    descr, order, sizes = (match[1].strip() for match in found.values() if match)
    if descr[:1] != "'" or order not in ("True", "False") or sizes[:1] != "(":
        raise Malformed(f"{shown} has a header that is none: {printable(text.strip(), 100)}", where=where)
    numbers = [digits for digits in re.split(r"[\s,()]+", sizes.replace("L", "")) if digits]
    if len(numbers) > MOST_DIMENSIONS or any(len(digits) > 19 for digits in numbers):
        raise Malformed(f"the shape of {shown} is none: {printable(sizes, 80)}", where=where)
    shape = tuple(map(int, numbers))
    code = descr.strip("'")
    big = code[:1] == ">"
    kind = code.lstrip("<>|=")
    dtype = BY_NAME.get(_TYPES.get(kind, ""))
    words = "" if dtype else _WORDS.get(kind[:1], "text" if kind[:1] in "US" else "")
    if dtype is None and not words:
        raise Malformed(f"{shown} has the unknown type {printable(repr(code), 40)}", where=where)
    return _Header(code, dtype, big, order == "True", shape, start, words)


def bytes_behind(head: bytes) -> int | None:
    """How many bytes of values the header in HEAD announces; None for records, and where that cannot be told.

    Of an array of objects, which is a pickle, at least so many: numpy counts a pointer for each.
    """
    try:
        header = _read_header(head, "array", "")
    except CheckpointError:
        return None
    if re.fullmatch(r"[|]?O\d?", header.code):
        return 8 * prod(header.shape)
    kind = re.fullmatch(r"[<>|=]?([USVfcMm])(\d{1,9}).*", header.code)
    if header.dtype is None and kind is None:
        return None
    width = header.dtype.itemsize if header.dtype else int(kind[2]) * (4 if kind[1] == "U" else 1) if kind else 0
    return prod(header.shape) * width


_FIELDS = ("descr", "fortran_order", "shape")


def _tensor(header: _Header, values: Source, name: str, where: object) -> LazyTensor:
    """The array whose values are the bytes of VALUES."""
    dtype = header.dtype
    assert dtype is not None
    checked_shape(header.shape, dtype, name, where)
    nbytes = prod(header.shape) * dtype.itemsize
    if values.length != nbytes:
        raise Malformed(
            f"{printable(repr(name), 80)} has {values.length:,} bytes of values; {header.code} of shape "
            f"{printable(str(list(header.shape)), 80)} takes {nbytes:,}",
            where=where,
            hint="the download or copy did not finish; compare the size with the source"
            if values.length < nbytes
            else None,
        )
    turned = header.big_endian and dtype.itemsize > 1
    storage = Storage(values, "cpu", dtype if dtype.storage else None, name, getattr(values, "crc", None), turned)
    stride, step = [], 1
    for size in header.shape if header.fortran else reversed(header.shape):
        stride.append(step)
        step *= max(size, 1)
    return LazyTensor(storage, dtype, header.shape, tuple(stride if header.fortran else reversed(stride)))


def _text(header: _Header, raw: bytes) -> Any:
    """An array of text (U: UCS-4, S: bytes) as a text, or lists of texts within each other, one for each dimension.

    None if it is none.
    """
    found = re.fullmatch(r"[<>|=]?([US])(\d{1,9})", header.code)
    count = prod(header.shape)
    if not found:
        return None
    width = int(found[2]) * (4 if found[1] == "U" else 1)
    if count * width != len(raw):
        return None
    order = "utf-32-be" if header.big_endian else "utf-32-le"
    if not width and count > 1 << 16:
        return None
    try:
        texts: list[Any] = [
            raw[at * width : (at + 1) * width].decode(order if found[1] == "U" else "latin-1").rstrip("\0")
            for at in range(count)
        ]
    except UnicodeDecodeError:
        return None
    for size in reversed(header.shape[1:]):
        texts = [List(texts[at : at + size]) for at in range(0, len(texts), size)] if size else []
    return List(texts) if header.shape else texts[0]


# -- one array


def open_npy(file: File) -> Checkpoint:
    """Open an array: its header is read, no value is. It is called `array`."""
    head = file.read(0, min(_LARGEST_HEADER + 12, file.size))
    header = _read_header(head, "array", file.path)
    if header.words:
        hint = f"ckptool scan {shell_path(file.path)} says what is in the pickle" if "objects" in header.words else None
        raise UnknownFormat(
            f"is an array of {header.words}, not of numbers", where=file.path, evidence=[_said(header)], hint=hint
        )
    tensor = _tensor(header, file.range(header.start, file.size - header.start), "array", file.path)
    return Checkpoint(
        named([("array", tensor)], file.path),
        "npy",
        file.path,
        file.size,
        warnings=tuple(_guessed([("array", header)])),
        framework="numpy",
    )


def _said(header: _Header) -> str:
    shown = "".join(f"{size} × " for size in header.shape[:6])
    return (
        f"its type is {printable(repr(header.code), 40)}, its shape {shown.removesuffix(' × ') or 'that of a scalar'}"
    )


def _guessed(headers: list[tuple[str, _Header]]) -> Iterator[str]:
    """A line for what the type of some arrays is a guess of."""
    two = [name for name, header in headers if header.code.endswith("V2")]
    if two:
        shown = ", ".join(printable(name, 60) for name in two[:3])
        arrays = counted(len(two), "array is", "arrays are")
        yield f"{arrays} of two bytes without a type, which are taken for bfloat16, as ml_dtypes writes it: {shown}"


# -- several


def open_npz(file: File) -> Checkpoint:
    """Open an archive of arrays: their headers are read, no value is."""
    archive = open_archive(file, any_layout=True)
    entries: list[tuple[str, Any]] = []
    headers: list[tuple[str, _Header]] = []
    lost: list[str] = []
    for name, member in archive.members.items():
        if not name.endswith(_ENDING):
            lost.append(f"{printable(name, 80)}, which is not an array")
            continue
        key = name.removesuffix(_ENDING)
        header = _read_header(_head(archive, member), key, file.path)
        if header.words == "text" and member.size - header.start <= _LARGEST_TEXT:
            text = _text(header, archive.read(name, member.size)[header.start :])
            if text is not None:
                entries.append((key, text))
                continue
        if header.words:
            lost.append(f"the array {printable(key, 80)} of {header.words} ({printable(header.code, 20)})")
            continue
        headers.append((key, header))
        entries.append((key, _tensor(header, _behind(archive, member, header.start), key, file.path)))
    return Checkpoint(
        named(entries, file.path),
        "npz",
        file.path,
        file.size,
        warnings=(*_guessed(headers), *lost),
        lost_content=tuple(lost),
        framework="numpy",
    )


def _head(archive: Archive, member: Member) -> bytes:
    """The first bytes of a record, inflated if need be."""
    most = min(_LARGEST_HEADER + 12, member.size)
    if member.method == STORED:
        return archive.range(member.name).read(0, most)
    out = bytearray()
    for chunk in islice(archive.inflate(member), 64):
        out += chunk
        if len(out) >= most:
            break
    return bytes(out[:most])


def _behind(archive: Archive, member: Member, start: int) -> Source:
    """What follows the first START bytes of a record."""
    source = archive.payload(member)
    if isinstance(source, FileRange):
        return source.part(start, member.size - start)
    assert isinstance(source, Inflated)
    return InflatedBehind(source, start)


@record(frozen=True, slots=True)
class InflatedBehind:
    """What follows the first bytes of a compressed record.

    Attributes:
        whole: the record.
        start: how many bytes are not part of it.
    """

    whole: Inflated
    start: int

    @property
    def length(self) -> int:
        """How many bytes there are."""
        return self.whole.length - self.start

    @property
    def packed(self) -> FileRange:
        """The compressed bytes of the whole record."""
        return self.whole.packed

    def read(self, offset: int, length: int) -> bytes:
        """LENGTH bytes from OFFSET."""
        return self.whole.read(self.start + offset, length)

    def chunks(self) -> Iterator[bytes | memoryview]:
        """All bytes, as they come out."""
        skip = self.start
        for chunk in self.whole.chunks():
            if skip < len(chunk):
                yield memoryview(chunk)[skip:]
            skip = max(skip - len(chunk), 0)


def draft_npz(ckpt: Checkpoint) -> Draft:
    """Lay out the weights of a checkpoint as numpy.savez would: a stored archive of arrays, each in its own order."""
    weights = ckpt.state_dict()
    content = around(ckpt, weights)
    form: list[str] = []
    records: list[Record] = []
    typeless = 0
    for key, value in weights.node.entries:
        tensor = as_dense(value) if not isinstance(value, LazyTensor) else value
        shown = printable(str(key), 60)
        if isinstance(value, str):
            records.append(_text_record(key, value))
        elif tensor is None:
            content.append(f"the value {shown}, which is not a dense tensor")
        elif tensor.dtype.name not in _DESCR:
            content.append(f"the tensor {shown} of {tensor.dtype.name}")
        elif not isinstance(key, str) or not _is_name(key):
            content.append(f"the tensor {shown}, whose name no archive can hold")
        else:
            typeless += tensor.dtype.name == "bfloat16"
            records.append(Record(f"{key}{_ENDING}", _array(tensor), None))
    ties = sum(len(keys) - 1 for keys in weights.ties())
    if ties:
        form.append(counted(ties, "tied key is stored twice", "tied keys are stored twice"))
    if typeless:
        form.append(
            f"{counted(typeless, 'tensor')} of bfloat16, for which numpy has no type: numpy.load gives two bytes "
            "without a type each, .view(ml_dtypes.bfloat16) the values"
        )
    if ckpt.metadata:
        form.append("the text metadata of the file are left out")
    if not records:
        raise CannotCarry("holds nothing that an archive of arrays can hold", where=ckpt.where, evidence=content[:8])
    pieces: list[Piece] = lay_out(None, records, case_counts=True)
    return Draft(pieces, tuple(form), tuple(content), "a new archive, tensors copied as they are")


def _is_name(key: str) -> bool:
    from ..zip.directory import name_fault

    try:
        raw = f"{key}{_ENDING}".encode()
    except UnicodeEncodeError:
        return False
    return len(raw) < 1 << 16 and not name_fault(f"{key}{_ENDING}") and not key.startswith("__MACOSX/")


def _array(tensor: LazyTensor) -> Source:
    """A tensor as a .npy file, in C order."""
    code = _DESCR[tensor.dtype.name]
    order = "|" if tensor.dtype.itemsize == 1 else "<"
    head = Buffer(_header_of(f"{order}{code}", tensor.shape))
    return Joined((head, tensor.source())) if tensor.nbytes else head


def _header_of(descr: str, shape: tuple[int, ...]) -> bytes:
    """The header of version 1.0, so long that the values begin at a multiple of 64."""
    sizes = f"({shape[0]},)" if len(shape) == 1 else f"({', '.join(map(str, shape))})"
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {sizes}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return _MAGIC + b"\1\0" + len(text).to_bytes(2, "little") + text.encode()


def _text_record(key: str, text: str) -> Record:
    raw = text.encode("utf-32-le", "surrogatepass")
    return Record(f"{key}{_ENDING}", Buffer(_header_of(f"<U{max(len(text), 1)}", ()) + (raw or bytes(4))), None)


def _is_npz(head: bytes, file: object) -> bool:
    """Whether the first record of a zip archive is an array."""
    length = int.from_bytes(head[26:28], "little")
    named_npy = head[30 : 30 + length].endswith(_ENDING.encode())
    return head.startswith(b"PK\3\4") and named_npy and int.from_bytes(head[8:10], "little") in (STORED, DEFLATED)


NPY = Format(
    name="npy",
    aliases=(),
    suffixes=(),
    summary="one array of numpy",
    carries="one array; one of Python objects is a pickle, and is not read",
    pickles=False,
    sniff=lambda head, file: head.startswith(_MAGIC),
    open=open_npy,
    loader="other",
)
NPZ = Format(
    name="npz",
    aliases=("numpy",),
    suffixes=(".npz",),
    summary="named arrays of numpy in a zip archive, from numpy.savez",
    carries="tensors of all types of numpy, bfloat16 without its name; no ties, strides or order of the whole",
    pickles=False,
    sniff=_is_npz,
    open=open_npz,
    draft=draft_npz,
    loader="other",
    checksums=True,
    kept_as="npz",
)


# -- several in a row, as equinox writes the leaves of a model


def open_equinox(file: File) -> Checkpoint:
    """Open arrays that stand one behind the other. They have no names: the first is called 0."""
    metadata, at = {}, 0
    head = file.read(0, min(_LARGEST_HEADER + 12, file.size))
    if head.startswith(b"{"):
        line = file.read(0, min(_LARGEST_TEXT, file.size)).partition(b"\n")[0]
        metadata, at = {"hyperparameters": line.decode("utf-8", "replace")}, len(line) + 1
    entries: list[tuple[str, Any]] = []
    headers: list[tuple[str, _Header]] = []
    while at < file.size:
        name = str(len(entries))
        header = _read_header(file.read(at, min(_LARGEST_HEADER + 12, file.size - at)), name, file.path)
        if header.words or header.dtype is None:
            raise UnknownFormat(f"holds an array of {header.words}", where=file.path, evidence=[_said(header)])
        checked_shape(header.shape, header.dtype, name, file.path)
        start, length = at + header.start, prod(header.shape) * header.dtype.itemsize
        if start + length > file.size:
            raise Malformed(
                f"array {name} is cut short: {length:,} bytes are stated, {file.size - start:,} are there",
                where=file.path,
                hint="the download or copy did not finish; compare the size with the source",
            )
        headers.append((name, header))
        entries.append((name, _tensor(header, file.range(start, length), name, file.path)))
        at = start + length
    return Checkpoint(
        named(entries, file.path),
        "equinox",
        file.path,
        file.size,
        metadata=metadata,
        warnings=tuple(_guessed(headers)),
        framework="equinox",
    )


def _is_series(head: bytes, file: Any) -> bool:
    """Whether a file holds more than one array, perhaps behind a line of JSON."""
    if head.startswith(b"{"):
        line, _, rest = head.partition(b"\n")
        return line.endswith(b"}") and rest.startswith(_MAGIC)
    if not head.startswith(_MAGIC):
        return False
    try:
        header = _read_header(head, "", "")
    except CheckpointError:
        return False
    end = header.start + prod(header.shape) * (header.dtype.itemsize if header.dtype else 0)
    return bool(header.dtype and end + 6 <= file.size and file.read(end, 6) == _MAGIC)


EQUINOX = Format(
    name="equinox",
    aliases=("eqx",),
    suffixes=(),
    summary="arrays of numpy in a row, from equinox.tree_serialise_leaves",
    carries="tensors under their numbers: the file has no names",
    pickles=False,
    sniff=_is_series,
    open=open_equinox,
    loader="other",
)
