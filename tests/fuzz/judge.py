"""What is asked of every file, whatever is in it, and what counts as a finding.

Each reading command either succeeds or raises a `CheckpointError` that a person can read. Nothing is run or imported,
nothing is written outside the folder for outputs, and neither time nor memory depends on what a file says of itself.
"""

import contextlib
import importlib
import os
import pkgutil
import resource
import shutil
import signal
import socket
import sys
import time
import traceback
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import ckptool
from ckptool.reports.diagnosis.doctor_text import doctor_text
from ckptool.reports.inspect import describe
from ckptool.reports.inspect_text import inspect_text
from ckptool.reports.scanning.scan_text import scan_text
from ckptool.reports.verify import digests_of
from ckptool.reports.verify_text import verify_text

#: Seconds of CPU for one mutant. They have some kilobytes.
MOST_SECONDS = 5.0
MOST_MEGABYTES = 1024
#: The largest message that a person may get, in characters and in lines.
_LONGEST, _LINES = 4000, 20
_FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "os.fork", "os.spawn", "os.startfile", "subprocess", "socket.")
_NEVER = ("pickle.find_class", "ctypes.dlopen", "pty.spawn", "webbrowser.open", "builtins.input")
#: What Python does when it imports a module, and what nobody else may do.
_LOADING = ("exec", "compile", "marshal.loads")
_CHANGES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "shutil.")
#: What ckptool itself loads the first time that it needs it.
_OWN = ("ckptool", "numpy", "ml_dtypes", "torch", "encodings", "safetensors", "gguf", "zstandard")
TARGETS = (
    ("out.pth", "torch-zip"),
    ("out.pth", "torch-legacy"),
    ("out.safetensors", "safetensors"),
    ("out", "dcp"),
    ("out", "sharded-safetensors"),
)


class TooSlow(BaseException):
    """The time of a mutant is up. No handler of ckptool takes it for an error of the file."""


@dataclass
class Finding:
    """Something that must not happen."""

    asked: str
    what: str
    detail: str = ""

    @property
    def kind(self):
        """What findings of one cause have in common."""
        place = [line.strip() for line in self.detail.splitlines() if "/ckptool/" in line][-1:]
        return self.asked.split(" ")[0], self.what.split(":")[0], *place


@dataclass
class Judge:
    """Asks of one file after the other, in one process.

    Args:
        folder: where outputs and temporary files go; emptied for each file.
        torch: load files as torch objects, too.
    """

    folder: Path
    torch: bool = True
    findings: list = field(default_factory=list)
    outcomes: dict = field(default_factory=dict)
    slowest: float = 0.0
    armed: bool = False
    inside: tuple = ()

    def __post_init__(self):
        self.folder = Path(self.folder).resolve()
        self.out, self.temporary = self.folder / "out", self.folder / "tmp"
        for place in (self.out, self.temporary):
            place.mkdir(parents=True, exist_ok=True)
        self.inside = (f"{self.out}/", f"{self.temporary}/", str(self.out), str(self.temporary))
        os.environ["TMPDIR"] = str(self.temporary)
        import tempfile

        tempfile.tempdir = str(self.temporary)
        os.chdir(self.out)  # what is written beside a relative name lands there
        for module in pkgutil.walk_packages(ckptool.__path__, "ckptool."):
            if not module.name.startswith(("ckptool.train", "ckptool.__main__")) and (
                self.torch or not _needs_torch(module)
            ):
                importlib.import_module(module.name)
        for name in _STANDARD:
            importlib.import_module(name)
        with contextlib.suppress(ImportError):
            importlib.import_module("gguf.quants")  # it computes what quantized blocks stand for
        with contextlib.suppress(ImportError):
            importlib.import_module("zstandard")
        os.fsync = lambda descriptor: None  # thousands of files that nobody needs
        warnings.simplefilter("error")
        for said in (
            "TypedStorage is deprecated",
            "Sparse .* is in beta",
            "The PyTorch API of nested",
            "torch.quantize",
        ):
            warnings.filterwarnings("ignore", said)  # of torch, when a tensor is loaded that has such a layout
        sys.addaudithook(self._audit)
        signal.signal(signal.SIGPROF, _time_is_up)
        self.peak = _peak()

    # -- what is watched

    def _audit(self, event, args):
        if not self.armed:
            return
        if event == "open":
            path, mode, flags = args
            writes = (isinstance(mode, str) and set(mode) & set("wax+")) or (flags or 0) & (os.O_WRONLY | os.O_RDWR)
            if writes and path != os.devnull and not self._may_change(path):
                self._note("open", f"opened {path!r} for writing")
        elif event == "import":
            if not args[0].startswith(_OWN):
                self._note("import", f"imported {args[0]!r}")
        elif event == "subprocess.Popen" and "ckptool.formats.frameworks.hdf5_child" in args[1]:
            return  # what a library in C parses is parsed in a child process
        elif event == "socket.__new__" and args[1] == socket.AF_UNIX:
            return  # one of a pair: that child gets the file as a descriptor
        elif event == "socket.sendmsg" and args[0].family == socket.AF_UNIX and args[1] is None:
            return
        elif event in _NEVER or event.startswith(_FORBIDDEN) or (event in _LOADING and not _is_importing()):
            self._note(event, f"{event} was reached: {str(args)[:200]}")
        elif event.startswith(_CHANGES) and not all(
            self._may_change(one) for one in args if isinstance(one, str | bytes | Path)
        ):
            self._note(event, f"{event} outside the folder: {str(args)[:200]}")

    def _may_change(self, path):
        if isinstance(path, int):
            return True
        text = os.path.normpath(os.fsdecode(path))
        return text.startswith(self.inside) if os.path.isabs(text) else not text.startswith("..")

    def _note(self, event, what):
        self.armed = False
        self.findings.append(Finding(event, what, "".join(traceback.format_stack(limit=12))))
        self.armed = True

    # -- what is asked

    def ask(self, path, rng, everything=False):
        """Ask all of the file or folder at PATH; returns the findings, of which RNG (and EVERYTHING) say how far."""
        self.findings = []
        before = time.process_time()
        signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
        self.armed = True
        try:
            self._ask(Path(path), rng, everything)
        except TooSlow:
            self.armed = False
            self.findings.append(Finding("time", f"took more than {MOST_SECONDS:.0f} s of CPU", traceback.format_exc()))
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_PROF, 0)
        self.slowest = max(self.slowest, time.process_time() - before)
        peak = _peak()
        if peak - self.peak > MOST_MEGABYTES:
            self.findings.append(Finding("memory", f"{peak - self.peak:,.0f} MB more than before"))
            self.peak = peak
        if (self.out / "canary").exists():
            self.findings.append(Finding("canary", "a call of the file was run"))
        left = [place.name for place in self.temporary.iterdir()]
        if left:
            self.findings.append(Finding("leftovers", f"left {left} among temporary files"))
        self.clear()
        return self.findings

    def clear(self):
        """Remove what was written."""
        for place in (*self.out.iterdir(), *self.temporary.iterdir()):
            if place.is_dir() and not place.is_symlink():
                shutil.rmtree(place)
            else:
                place.unlink()

    def _ask(self, path, rng, everything):
        whole = path.is_dir() and rng.random() < 0.5
        ckpt = self._try("open", lambda: ckptool.open(path, with_optimizer=whole))
        seen = self._try("inspect", lambda: describe(ckpt)) if ckpt else None
        found = self._try("verify", lambda: ckptool.verify(path))
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        scans = [scanned for file in files if (scanned := self._try("scan", lambda file=file: ckptool.scan(file)))]
        if everything or rng.random() < 0.15:
            self._show(path, seen, found, scans)
        if not ckpt:
            if path.is_file() and (everything or rng.random() < 0.1):
                self._salvage(path)
            return
        for target in TARGETS if everything else rng.sample(TARGETS, rng.random() < 0.35):
            self._convert(ckpt, *target)
        if self.torch and (everything or rng.random() < 0.35):
            self._try("load", lambda: ckptool.load(ckpt, map_location="cpu"))

    def _show(self, path, seen, found, scans):
        """All that is printed about it."""
        for everything in (False, True):
            if seen:
                self._try(
                    "inspect text",
                    lambda everything=everything: inspect_text(seen, everything=everything),
                    printed=True,
                )
                self._try("inspect json", seen.as_json)
            if found:
                self._try(
                    "verify text", lambda everything=everything: verify_text(found, everything=everything), printed=True
                )
            for scanned in scans:
                self._try(
                    "scan text",
                    lambda everything=everything, scanned=scanned: scan_text(scanned, everything=everything),
                    printed=True,
                )
        told = self._try("doctor", lambda: ckptool.doctor(path))
        if told:
            self._try("doctor text", lambda: doctor_text(told), printed=True)

    def _salvage(self, path):
        saved = self._try("salvage", lambda: ckptool.salvage(path))
        if saved:
            self._convert(saved.checkpoint, "out.pth", "torch-zip", "salvage and convert")

    def _convert(self, ckpt, name, target, asked="convert"):
        """Write the checkpoint in another format and read it back."""
        asked = f"{asked} to {target}"
        out = self.out / name
        receipt = self._try(
            asked,
            lambda: ckptool.save(ckpt, out, format=target, overwrite=True, allow_loss=True, keep_objects=True),
        )
        written = sorted(place.name for place in self.out.iterdir())
        if written != ([name] if receipt else []):
            self.findings.append(Finding(asked, f"left {written} behind"))
        if receipt:
            self._try(f"{asked} and back", lambda: _compare(ckpt, ckptool.open(out), receipt), refusals=False)
        self.clear()

    def _try(self, asked, question, *, printed=False, refusals=True):
        """What QUESTION gives, or None if it is refused. Anything else than these two is a finding."""
        try:
            answer = question()
        except Exception as error:
            self.armed = False  # a traceback of Python compiles what it shows
            self._refused(asked, error, refusals)
            self.armed = True
            return None
        self.outcomes["done", asked] = self.outcomes.get(("done", asked), 0) + 1
        if printed and (bad := _controls(answer)):
            self.findings.append(Finding(asked, f"prints {bad}", answer[:2000]))
        return answer

    def _refused(self, asked, error, expected):
        """An error is a finding if it is none of ours, if it cannot be understood, or if it was not EXPECTED."""
        if not isinstance(error, ckptool.CheckpointError):
            self.findings.append(Finding(asked, f"{type(error).__name__}: {error}", traceback.format_exc()))
            return
        self.outcomes["refused", asked] = self.outcomes.get(("refused", asked), 0) + 1
        if not expected:
            self.findings.append(Finding(asked, f"what was written is refused: {error}", traceback.format_exc()))
        elif fault := _unclear(str(error)):
            self.findings.append(Finding(f"{asked} message", f"{fault}: {str(error)[:400]!r}", traceback.format_exc()))


def _is_importing():
    frame = sys._getframe()
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _compare(ckpt, back, receipt):
    """Raise if what was written is not what was there."""
    one, other = digests_of(ckpt), digests_of(back)
    if receipt.format in ("torch-zip", "torch-legacy") and not receipt.content:
        assert one == other, f"weights differ: {_difference(one, other)}"
        return
    if len(ckpt.state_dicts()) == 1 and len(back.state_dicts()) == 1:
        differ = {key for key in other if one.get(key) != other[key]}
        assert not differ, f"weights differ: {sorted(differ)[:3]}"
        assert receipt.content or len(one) == len(other), f"weights are missing: {_difference(one, other)}"


def _difference(one, other):
    return sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))[:3]


def _unclear(text):
    """What is wrong with the text of an error."""
    first, *_ = text.splitlines() or [""]
    if len(first.strip()) < 10 or ": " not in first:
        return "says neither where nor what"
    if "(MemoryError)" in text or "(OverflowError)" in text:
        return "took a number of the file at its word"
    if len(text) > _LONGEST or text.count("\n") >= _LINES:
        return f"is long ({len(text):,} characters, {text.count(chr(10)) + 1} lines)"
    return _controls(text)


def _controls(text):
    odd = next((char for char in text if not char.isprintable() and char != "\n"), None)
    return f"the character {odd!r}" if odd else None


def _time_is_up(number, frame):
    raise TooSlow


def _peak():
    """The most memory that this process has had, in megabytes: `ru_maxrss` also counts that of whoever started it."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM"))


def _needs_torch(module):
    try:
        importlib.import_module(module.name)
    except ImportError:
        return True
    return False


#: What functions of ckptool import when they are called, and what that needs.
_STANDARD = (
    *(
        "collections",
        "difflib",
        "fcntl",
        "fnmatch",
        "hashlib",
        "json",
        "lzma",
        "bz2",
        "random",
        "secrets",
        "shlex",
        "tarfile",
    ),
    *(
        "concurrent.futures.thread",
        "numpy",
        "numpy.lib.format",
        "ml_dtypes",
        "tempfile",
        "encodings.raw_unicode_escape",
    ),
)


@contextlib.contextmanager
def memory_limit(megabytes=3 * MOST_MEGABYTES):
    """Addresses beyond what the process has now: what asks for much more gets a MemoryError instead of the machine."""
    with open("/proc/self/statm") as status:
        used = int(status.read().split()[0]) * resource.getpagesize()
    old = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (megabytes << 20), old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)
