"""Writing a folder of files so that it is whole or absent, and going on where a run was cut off.

The files are made in a directory beside the target (see `ckptool.disk.work`), which has a record of the plan and of the
files that are finished. The plan is a SHA-256 over everything that decides about the bytes: names, the ranges of input
files with the size, time of change and number of each file, bytes in memory, and how values are computed. A run with
the same plan goes on with what is finished; another one begins anew and leaves the old work alone.
"""

from __future__ import annotations

import contextlib
import enum
import hashlib
import os
import stat
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType
from typing import IO, TYPE_CHECKING, Any

from ..errors import CheckpointError, Malformed, OutputExists, Unreadable, Unwritable, counted, printable
from .composing import Piece, room_for
from .door import Seen
from .files import Buffer, File, FileRange, StrPath, reason, shell_path
from .interrupts import put_off_signals
from .targets import Target, written
from .work import Work
from .writing import Progress, write_pieces

if TYPE_CHECKING:
    from concurrent.futures import Future

#: More bytes in memory than this get a CRC in the fingerprint: much faster, and nobody forges his own plan.
_HASHED = 1 << 20
_SHOWN = 5
#: Files that are written and not on the disk yet.
_WAITING = 64


def check_folder(
    path: StrPath,
    *,
    overwrite: bool = False,
    names: Sequence[str] = (),
    replaced: Callable[[str], bool] = lambda _: True,
    backup: str | None = None,
) -> bool:
    """Refuse a target that cannot or must not become a folder, before any work is done.

    Args:
        path: the target. It may be an empty folder.
        overwrite: allow a folder that is not empty.
        names: of the files that will be in it.
        replaced: whether a file that is there may go, though none of NAMES takes its place.
        backup: suffix under which the old folder will be kept.

    Returns:
        Whether there is something in it.

    Raises:
        OutputExists: it exists, and OVERWRITE is false.
        Unwritable: it is a file, or holds what would be lost, or no folder can be made there.
    """
    with Target(path) as target:
        there = there_in(target, overwrite=overwrite, names=names, replaced=replaced)
        if there:
            target.backup(backup)
        return bool(there)


def there_in(
    target: Target, *, overwrite: bool, names: Sequence[str], replaced: Callable[[str], bool]
) -> dict[str, Seen] | None:
    """What is in the folder at TARGET, all of which may go. None if there is no folder.

    Raises:
        OutputExists, Unwritable: see `check_folder`.
    """
    if target.old is None:
        return None
    if not stat.S_ISDIR(target.old.st_mode):
        raise Unwritable("is a file, where a folder is to be written", where=target.path, hint="choose another name")
    if os.path.ismount(target.path):
        what = "a disk is mounted there, and a folder is replaced as a whole"
        raise Unwritable(
            what, where=target.path, hint=f"name a folder in it: {shell_path(os.path.join(target.path, 'NAME'))}"
        )
    try:
        with target.folder.enter(target.name) as folder:
            there = folder.contents()
            folders = {name for name in there if stat.S_ISDIR((folder.status(name) or target.old).st_mode)}
    except OSError as error:
        raise Unwritable(reason(error), where=target.path) from None
    if there and not overwrite:
        hint = "add --overwrite, or choose another name"
        raise OutputExists("is a folder that is not empty", where=target.path, hint=hint)
    lost = [name for name in there if name in folders or (name not in names and not replaced(name))]
    if lost:
        raise Unwritable(
            f"holds {counted(len(lost), 'other thing')}, which would be lost:",
            where=target.path,
            evidence=_listed(lost),
            hint="move them away, or write to another folder",
        )
    if not os.access(target.real.parent, os.W_OK):
        raise Unwritable("no permission to write into its folder", where=target.path)
    return there


def _listed(names: Sequence[str]) -> list[str]:
    return [printable(name, 100) for name in names[:_SHOWN]] + (["…"] if len(names) > _SHOWN else [])


def replacing_folder(
    path: StrPath,
    files: Mapping[str, Sequence[Piece]],
    *,
    overwrite: bool = False,
    backup: str | None = None,
    replaced: Callable[[str], bool] = lambda _: True,
    progress: Progress | None = None,
    check: Callable[[], None] = lambda: None,
) -> list[str]:
    """Make PATH a folder of FILES, whole or not at all.

    Args:
        path: the target; a link is followed, once.
        files: name -> pieces, in the order of writing.
        overwrite, replaced: see `check_folder`.
        backup: suffix under which an old folder is kept.
        progress: called with the number of bytes, each time some were written (or found finished).
        check: called when all files are written, before the folder takes its name; what it raises stops that.

    Returns:
        What a person should know: whether a run that was cut off was taken up, and what was kept.

    Raises:
        OutputExists, Unwritable: see `check_folder`; or no room, another run is writing it, or it changed meanwhile.
    """
    with Target(path) as target, contextlib.ExitStack() as opened:
        plan = fingerprint(files)
        try:
            work = Work.resume(target.folder, target.name, plan)
            if work is not None:
                opened.callback(work.close)
            if target.old is None:  # a folder that stood aside may have its name again
                target.old = target.folder.status(target.name)
            there = there_in(target, overwrite=overwrite, names=list(files), replaced=replaced)
            kept = target.backup(backup) if there else None
            with Making(target, names=list(files), plan=plan, work=work) as making:
                todo = (pieces for name, pieces in files.items() if name not in making.work.finished)
                target.require_room(sum(map(room_for, todo)))
                for name, pieces in files.items():
                    making.write(name, pieces, progress)
                making.finish()
                check()
                making.publish(there, kept)
        except OSError as error:
            if isinstance(error, CheckpointError):
                raise
            raise Unwritable(reason(error), where=path) from None
        return making.notes


@contextlib.contextmanager
def new_folder(
    path: StrPath, names: Sequence[str], *, overwrite: bool = False, replaced: Callable[[str], bool] = lambda _: True
) -> Iterator[Path]:
    """A folder for a library that writes its files itself; it becomes PATH when the block ends well.

    Args:
        path: the target; a link is followed, once.
        names: of all files that the library may make there; nothing else is removed when it fails.
        overwrite, replaced: see `check_folder`.

    Raises:
        OutputExists, Unwritable: see `check_folder`; or it changed meanwhile.
    """
    with Target(path) as target:
        there = there_in(target, overwrite=overwrite, names=names, replaced=replaced)
        try:
            with Making(target, names=names) as making:
                yield making.work.new_path
                making.publish(there, None)
        except OSError as error:
            if isinstance(error, CheckpointError):
                raise
            raise Unwritable(reason(error), where=path) from None


class Making:
    """The files of a folder, or the one file, while they are written: finished ones stay for the next run."""

    def __init__(
        self,
        target: Target,
        *,
        names: Sequence[str] | None,
        plan: str | None = None,
        work: Work | None = None,
        stays: bool = True,
    ) -> None:
        """Begin, or go on with WORK. Unless it STAYS, no later run can go on, and a failure leaves nothing behind."""
        from concurrent.futures import ThreadPoolExecutor

        self.target = target
        try:
            with put_off_signals():
                work = work or Work.start(target.folder, target.name, names=names, plan=plan)
        except BaseException:
            if work is not None and not work.finished:  # a signal arrived meanwhile
                work.discard()
            raise
        self.work = work
        self._stays = stays
        self.notes: list[str] = []
        if done := work.finished or work.parts:
            what = "file" if work.finished else "part"
            self.notes.append(f"went on from a run that was cut off: {counted(len(done), what)} finished")
        #: Brings a file to disk and notes it as finished, while the next one is being written.
        self._finisher = ThreadPoolExecutor(1, "sync")
        self._finishing: list[Future[None]] = []

    def __enter__(self) -> Making:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._finisher.shutdown(wait=True)
        if error is None or self.work.closed:  # closed: the folder has its name, and a signal arrived meanwhile
            return
        useless = isinstance(error, Malformed | Unreadable)  # the input is damaged: it has to become another file
        if useless or not self._stays or not (self.work.finished or self.work.parts):
            with put_off_signals():
                self.work.discard()
            return
        self.work.close()
        left = f"what is finished stays in {shell_path(self.work.path.name)}; the same command goes on from there"
        if isinstance(error, CheckpointError):
            error.hint = f"{error.hint}; {left}" if error.hint else left
        elif isinstance(error, OSError):
            raise Unwritable(reason(error), where=self.target.path, hint=left) from None
        else:
            error.left_behind = left  # type: ignore[attr-defined]  # of an interruption, for the last line

    def write(self, name: str, pieces: Sequence[Piece], progress: Progress | None) -> None:
        """Write one file, and note it as finished once it is on disk."""
        size = sum(piece.length for piece in pieces)
        if name in self.work.finished:
            if progress and size:
                progress(size)
            return
        mode = next((piece.file.mode & 0o777 for piece in pieces if isinstance(piece, FileRange)), 0o666)
        out = self.work.create(name, mode)
        try:
            write_pieces(out, pieces, progress)
        except BaseException:
            out.close()
            self.work.drop(name)
            raise
        self._finishing.append(self._finisher.submit(self._finish, name, out))
        while len(self._finishing) > _WAITING:  # each holds its file open
            self._finishing.pop(0).result()

    def _finish(self, name: str, out: IO[bytes]) -> None:
        with out:
            os.fsync(out.fileno())
        self.work.note_finished(name)

    def finish(self) -> None:
        """Wait until all files are on disk."""
        for finishing in self._finishing:
            finishing.result()

    def publish(self, there: Mapping[str, Seen] | None, kept: str | None) -> None:
        """Give the folder its name."""
        target = self.target
        mode = None if target.old is None else stat.S_IMODE(target.old.st_mode)
        try:
            with put_off_signals():
                left = self.work.publish_folder(there, kept, mode)
                with contextlib.suppress(OSError):
                    self.work.discard()
                written.append(os.fspath(target.path))
        except FileExistsError as error:
            changed = error.args[0] if error.args and isinstance(error.args[0], list) else []
            raise OutputExists(
                "was changed by somebody else while the new one was written" + (":" if changed else ""),
                where=target.path,
                evidence=_listed(changed),
                hint="move what is new away, and add --overwrite",
            ) from None
        if left:
            self.notes.append(
                f"kept in {printable(str(self.work.path), 200)}, since the old folder could not be removed whole: "
                + ", ".join(_listed(left))
            )


def fingerprint(files: Mapping[Any, Sequence[Piece]]) -> str:
    """The plan in one word: a SHA-256 over all that decides about the bytes of FILES."""
    return fingerprints(files)[1]


def fingerprints(files: Mapping[Any, Sequence[Piece]]) -> tuple[str, str]:
    """Two SHA-256: over what is done with inputs of such sizes, which is the same on every machine; and over that and
    which files of this machine the inputs are.
    """
    inputs: dict[int, File] = {}
    digest = hashlib.sha256()
    for token in _tokens(list(files.items()), {}, inputs):
        digest.update(token.encode("utf-8", "surrogatepass") + b"\0")
    what = digest.hexdigest()
    for file in inputs.values():
        digest.update(os.fsencode(f"{file.path} {file.size} {file.modified} {file.identity}") + b"\0")
    return what, digest.hexdigest()


#: `id` of an object -> its number, and the object: while it lives, no other one gets its `id`.
_Seen = dict[int, tuple[int, object]]


def _tokens(value: Any, seen: _Seen, inputs: dict[int, File]) -> Iterator[str]:
    """What a piece is made of, as texts. Pieces are dataclasses of dataclasses, of files, of functions and of plain
    values.

    SEEN are objects that came before, INPUTS the files among them.
    """
    if isinstance(value, File):
        inputs.setdefault(id(value), value)
        yield f"file {seen.setdefault(id(value), (len(seen), value))[0]} {value.size}"
    elif isinstance(value, Buffer):
        data = value.data
        yield hashlib.sha256(data).hexdigest() if len(data) <= _HASHED else f"{len(data)} {zlib.crc32(data)}"
    elif isinstance(value, list | tuple):
        yield f"{len(value)} items"
        for item in value:
            yield from _tokens(item, seen, inputs)
    elif isinstance(value, Mapping):
        yield from _tokens(list(value.items()), seen, inputs)
    elif hasattr(value, "__match_args__") and not isinstance(value, type):
        if id(value) in seen:
            yield f"again {seen[id(value)][0]}"
            return
        seen[id(value)] = len(seen), value
        yield type(value).__name__
        for field in value.__match_args__:
            yield from _tokens(getattr(value, field), seen, inputs)
    elif value is None or isinstance(value, str | int | float | complex | bytes | range | enum.Enum):
        yield repr(value)
    elif isinstance(value, partial):
        yield from _tokens(["partial", value.func, value.args, value.keywords], seen, inputs)
    elif isinstance(value, set | frozenset):
        yield from _tokens(sorted(map(repr, value)), seen, inputs)
    elif isinstance(value, MethodType):
        of = value.__self__
        yield f"{type(of).__qualname__} {getattr(of, 'name', '')}"
        yield from _tokens([value.__func__, of if hasattr(of, "__match_args__") else None], seen, inputs)
    elif isinstance(value, FunctionType) and id(value) not in seen:
        seen[id(value)] = len(seen), value
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        yield from _tokens([value.__qualname__, value.__defaults__, value.__kwdefaults__, held], seen, inputs)
    elif hasattr(value, "tobytes"):  # an array
        yield from _tokens([str(value.dtype), value.shape, Buffer(value.tobytes())], seen, inputs)
    else:
        yield getattr(value, "__qualname__", type(value).__name__)
