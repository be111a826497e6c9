"""The tables of formats, and how one is chosen: by the first bytes of a file, by a name, or for a target."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar, overload

from ..checkpoint import Checkpoint
from ..disk.addresses import HUB, STORES, as_path, is_remote, is_store, scheme_of
from ..disk.files import File, StrPath, is_folder, is_there, shell_path, shell_quote
from ..disk.inside import Folder
from ..errors import RuleError, UnknownFormat, Unwritable, printable
from ..lazy import later
from .base import AnyFormat, FolderFormat, Format, Split

if TYPE_CHECKING:
    from . import torch_zip
    from .flat import dividing, safetensors, sharded
else:  # a search for pickles needs none of these
    torch_zip = later(".torch_zip", __package__)
    dividing, safetensors = later(".flat.dividing", __package__), later(".flat.safetensors", __package__)
    sharded = later(".flat.sharded", __package__)

_AnyOne = TypeVar("_AnyOne", Format, FolderFormat)


class _Table(Sequence[_AnyOne]):
    """Formats in the order in which they are tried. The module of one is imported when it is reached."""

    def __init__(self, *places: str) -> None:
        self._places = places
        self._found: dict[str, _AnyOne] = {}

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, number: int) -> _AnyOne: ...
    @overload
    def __getitem__(self, number: slice) -> Sequence[_AnyOne]: ...
    def __getitem__(self, number: int | slice) -> _AnyOne | Sequence[_AnyOne]:
        if isinstance(number, slice):
            return tuple(self)[number]
        place = self._places[number]
        if place not in self._found:
            module, _, name = place.rpartition(".")
            self._found[place] = getattr(import_module(f".{module}", __package__), name)
        return self._found[place]


_FILES = (
    "frameworks.numpy_files.NPZ",
    "frameworks.keras.FORMAT",
    "torch_zip.FORMAT",
    "torch_legacy.FORMAT",
    "flat.safetensors.FORMAT",
    "torchscript.FORMAT",
    "torch_package.FORMAT",
    "pt2.FORMAT",
    "torch_tar.FORMAT",
    "frameworks.joblib.FORMAT",
    "plain_pickle.FORMAT",
    "frameworks.numpy_files.EQUINOX",
    "frameworks.numpy_files.NPY",
    "frameworks.gguf.FORMAT",
    "frameworks.hdf5.FORMAT",
    "frameworks.flax.FORMAT",
    "frameworks.tensorflow.FORMAT",
    "frameworks.tflite.FORMAT",
    "frameworks.onnx.FORMAT",
    "frameworks.tfjs.FORMAT",
)
_WITH_PICKLES = frozenset(
    {
        "torch_zip.FORMAT",
        "torch_legacy.FORMAT",
        "torchscript.FORMAT",
        "torch_package.FORMAT",
        "torch_tar.FORMAT",
        "frameworks.joblib.FORMAT",
        "plain_pickle.FORMAT",
    }
)
FORMATS: Sequence[Format] = _Table(*_FILES)
#: Those of them that hold no pickle, in the same order: a search for pickles does not import the others.
WITHOUT_PICKLES: Sequence[Format] = _Table(*(place for place in _FILES if place not in _WITH_PICKLES))
#: The formats that are directories, in the order in which they are tried.
FOLDERS: Sequence[FolderFormat] = _Table(
    "dcp.FORMAT",
    "flat.sharded.SAFETENSORS",
    "flat.sharded.BIN",
    "one_a_rank.ZERO",
    "one_a_rank.FORMAT",
    "one_a_rank.MEGATRON",
    "frameworks.tensorflow.FOLDER",
    "frameworks.orbax.FORMAT",
)


def _all() -> Iterator[AnyFormat]:
    yield from FORMATS
    yield from FOLDERS


_HEAD = 4096
#: Suffixes that promise a format which is none of ours.
_NOT_WRITTEN = frozenset(".onnx .npy .h5 .hdf5 .keras .msgpack .pb .tflite .zip .json .pt2 .jit".split())


def find_format(name: str) -> Format:
    """The file format that is called NAME.

    Raises:
        RuleError: there is none.
    """
    found = named_format(name)
    if isinstance(found, Format):
        return found
    raise RuleError(
        f"{found.name} is a format of directories, and this is a file", where="--to", hint="ckptool formats"
    )


def named_format(name: str) -> AnyFormat:
    """The format that is called NAME, of files or of directories."""
    for format_ in _all():
        if name.lower() in (format_.name, *format_.aliases):
            return format_
    known = ", ".join(format_.name for format_ in _all() if format_.draft)
    from difflib import get_close_matches

    names = {alias: format_.name for format_ in _all() if format_.draft for alias in (format_.name, *format_.aliases)}
    near = get_close_matches(name.lower(), names, 1)
    hint = f"-t {names[near[0]]}" if near else "ckptool formats"
    raise RuleError(f"there is no format {printable(name)!r}; there are {known}", where="--to", hint=hint)


def format_of(ckpt: Checkpoint) -> AnyFormat | None:
    """The format that a checkpoint was read from, or None if it came from no file."""
    return next((format_ for format_ in _all() if format_.name == ckpt.format), None)


def detect_folder(folder: Folder) -> FolderFormat:
    """The format of a directory, from what is in it."""
    for format_ in FOLDERS:
        if format_.fits(folder):
            return format_
    names = [printable(name, 60) for name in folder.names[:8]]
    raise UnknownFormat(
        "not a checkpoint that can be read: a folder without sharded weights",
        where=folder.path,
        evidence=[f"it holds {', '.join(names)}{', …' if len(folder.names) > 8 else ''}" if names else "it is empty"],
        hint=_which(folder),
    )


def _which(folder: Folder) -> str | None:
    """What helps who named a folder of files."""
    if any(name.endswith(_COMMON) for name in folder.names):
        return f"ckptool doctor {shell_path(folder.path)}   # looks at each file in it"
    return "name a file in it" if folder.names else None


#: How the names of most checkpoints end.
_COMMON = (".pth", ".pt", ".ckpt", ".safetensors", ".bin", ".pkl", ".pth.tar")


def detect_file(file: File) -> Format:
    """The format of a file, from its first bytes."""
    head = file.read(0, min(_HEAD, file.size))
    for format_ in FORMATS:
        if format_.sniff(head, file):
            return format_
    from .foreign import describe

    what, hint = describe(head, file.size, file.path)
    if file.path.suffix == ".safetensors" and "no format that" in what:
        return safetensors.FORMAT  # it says itself what is wrong with its header
    raise UnknownFormat(f"not a checkpoint that can be read: {what}", where=file.path, hint=hint)


def target_format(
    ckpt: Checkpoint, path: StrPath, format: str | None = None, split: Split | None = None
) -> Format | FolderFormat:
    """The format that a checkpoint is written in: as asked for, as the suffix says, or as it came.

    A directory is asked for by a format that is one and by a SPLIT, and never by one that is there. What came out of a
    directory goes into one again, if the target has no suffix, ends with a slash or is a directory.

    Raises:
        RuleError: the target is not on this machine, or what is asked for does not go together.
        Unwritable: PATH is a directory, and the checkpoint would be a file.
    """
    if is_remote(path) and not is_store(path):
        raise _not_written_there(path)
    named = named_format(format) if format else None
    suffix = Path(path).suffix.lower()
    before = format_of(ckpt)
    came = before if isinstance(before, FolderFormat) else None
    like_a_file = any(suffix in f.suffixes for f in FORMATS)
    there, as_folder = is_folder(path), os.fspath(path).endswith(("/", os.sep))
    stem = Path(path).stem
    asked = isinstance(named, FolderFormat) or split not in (None, Split())
    if asked and like_a_file and not as_folder and not there:
        raise RuleError(
            "is the name of a file, and what is asked for is a folder",
            where=path,
            hint=f"name it {shell_path(f'{as_path(path).parent / stem if is_store(path) else stem}/')}",
        )
    if isinstance(named, FolderFormat):
        if split is not None and split.variant is not None and not named.variants:
            raise RuleError("goes with the names of shards", where="--variant")
        return named
    if came is not None:
        asked |= as_folder or (there and not like_a_file)
        asked |= not suffix and named is None and not is_there(path)
    if asked:
        if named is None:
            return came if came is not None and came.draft else sharded.SAFETENSORS
        inside = next((f for f in FOLDERS if named.name in f.within), None)
        if inside is None:
            raise RuleError(f"{named.name} is a format of files, and this is a folder", where=path)
        return inside
    refuse_folder(path, ckpt.path, named)
    if named is not None:
        return named
    if suffix in _NOT_WRITTEN:
        raise RuleError(
            f"ckptool does not write {suffix} files", where=path, hint="choose another suffix, or a format with --to"
        )
    if suffix and suffix not in torch_zip.FORMAT.suffixes:  # what has those of torch is none of the others
        own = next((f for f in FORMATS if f.draft is not None and not f.pickles and suffix in f.suffixes), None)
        if own is not None:
            return own
        if not is_there(path):
            _refuse_misspelt(path, suffix)
    kept = find_format(before.kept_as) if before is not None and before.kept_as else torch_zip.FORMAT
    return torch_zip.FORMAT if kept.suffixes and suffix in torch_zip.FORMAT.suffixes else kept


def _refuse_misspelt(path: StrPath, suffix: str) -> None:
    """Refuse a suffix that is nearly that of a format: a pickle named x.safetensor is not what was asked for."""
    from difflib import get_close_matches

    known = [s for f in FORMATS if f.draft is not None and not f.pickles for s in f.suffixes]
    for meant in get_close_matches(suffix, known, 1, 0.85):
        name = as_path(path).with_suffix(meant)
        what = f"no format has the suffix {printable(suffix, 40)}; -t names a format for any name"
        raise RuleError(what, where=path, hint=f"did you mean {shell_path(name)}?")


def _not_written_there(path: StrPath) -> RuleError:
    """The refusal of a target that is neither here nor in an object store, with what takes it there."""
    if scheme_of(path) == HUB:
        repo, _, inner = re.sub(r"^hf://|@[^/]*", "", str(path)).partition("/")
        name, _, inner = inner.partition("/")
        upload = f"hf upload {shell_quote(f'{repo}/{name}')} FILE{f' {shell_quote(inner)}' if inner else ''}"
        what = "is on the hub, where its own client uploads"
        return RuleError(what, where=path, hint=f"name a file or folder here, then: {upload}")
    if str(path).partition(":")[0].lower() in STORES:
        return RuleError("a URL is given as text; a Path loses one of its slashes", where=path)
    what = "files are written here and to object stores (s3://, gs://, az://), not to other URLs"
    return RuleError(what, where=path, hint="name a file here, and copy it there")


def refuse_folder(path: StrPath, source: Path | None, format: Format | None = None) -> None:
    """Refuse a directory as the place of a file. The hint is the name that `cp SOURCE PATH` would give it there."""
    if not os.fspath(path).endswith(("/", os.sep)) and not is_folder(path):
        return
    others = () if format else safetensors.FORMAT.suffixes
    suffixes = ((format and format.suffixes) or torch_zip.FORMAT.suffixes) + others
    name = Path((source and source.name) or "model")
    name = name if name.suffix.lower() in suffixes else name.with_suffix(suffixes[0])
    raise Unwritable(
        "is a folder, and this format is one file",
        where=path,
        hint=f"name the file: {shell_path(as_path(path) / name)}   (-t shards writes a folder of shards)",
    )


def split_of(max_shard_size: int | str | None = None, variant: str | None = None) -> Split:
    """How shards are wanted, from what a person says (see `plan`)."""
    return Split(
        None if max_shard_size is None else dividing.parse_size(max_shard_size), dividing.check_variant(variant)
    )
