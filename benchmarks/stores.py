"""Converting from an object store to a disk, side by side with `get` of s3fs: `python -m benchmarks.stores`.

Both fetch the same folder of shards from the same server on this machine, in turn. It speaks as much of S3 as that
takes and sends files from the page cache, so what is measured is what the programs themselves do. It is no figure of a
real store, where the network and the store decide.
"""

import argparse
import contextlib
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from statistics import median
from urllib.parse import parse_qs, unquote, urlsplit

from .__main__ import _size

LIMIT = 1.1
_BUCKET = "bench"
_GET = f"import s3fs, sys; s3fs.S3FileSystem().get('{_BUCKET}/model', sys.argv[1], recursive=True)"
_LOGIN = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
}


class _Objects(BaseHTTPRequestHandler):
    """Lists a folder, and sends whole files and ranges of them."""

    protocol_version = "HTTP/1.1"
    folder = Path()

    def log_message(self, *args: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        key = unquote(parts.path).removeprefix(f"/{_BUCKET}").lstrip("/")
        if "list-type" in parse_qs(parts.query):
            return self._list(parse_qs(parts.query).get("prefix", [""])[0])
        file = self.folder / key
        if not file.is_file():
            return self._xml(404, "<Error><Code>NoSuchKey</Code></Error>")
        size = file.stat().st_size
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        begin, end = (int(wanted[1]), min(int(wanted[2] or size - 1), size - 1) + 1) if wanted else (0, size)
        self.send_response(206 if wanted else 200)
        self.send_header("ETag", f'"{_tag(file)}"')
        self.send_header("Last-Modified", self.date_time_string(int(file.stat().st_mtime)))
        self.send_header("Content-Length", str(end - begin))
        if wanted:
            self.send_header("Content-Range", f"bytes {begin}-{end - 1}/{size}")
        self.end_headers()
        if self.command == "GET":
            self.wfile.flush()
            with file.open("rb") as source, contextlib.suppress(ConnectionError):
                while begin < end:
                    begin += os.sendfile(self.connection.fileno(), source.fileno(), begin, end - begin)
        return None

    def _list(self, prefix: str) -> None:
        inside = sorted(str(file.relative_to(self.folder)) for file in self.folder.rglob("*") if file.is_file())
        rows = "".join(
            f"<Contents><Key>{key}</Key><Size>{(self.folder / key).stat().st_size}</Size>"
            f'<ETag>"{_tag(self.folder / key)}"</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>'
            for key in inside
            if key.startswith(prefix)
        )
        self._xml(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>")

    def _xml(self, status: int, text: str) -> None:
        body = f"<?xml version='1.0' encoding='UTF-8'?>{text}".encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def _tag(file: Path) -> str:
    return hashlib.md5(f"{file.name} {file.stat().st_size}".encode()).hexdigest()


def serve(folder: str) -> None:
    """Serve FOLDER until the process ends, and say at which port."""
    handler = type("Handler", (_Objects,), {"folder": Path(folder)})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()


def make(folder: Path, size: int) -> None:
    """A model of SIZE bytes in four shards, of tensors of 8 MB and of a hundred small ones."""
    import numpy as np

    import ckptool
    from ckptool.checkpoint import Checkpoint
    from ckptool.disk.files import Buffer
    from ckptool.dtypes import BY_NAME
    from ckptool.tensor import LazyTensor, Storage
    from ckptool.tree import Dict

    block = np.random.default_rng(0).bytes(8 << 20)
    kind = BY_NAME["uint8"]
    sizes = [len(block)] * (size // len(block)) + [1000] * 100
    entries = [
        (f"layers.{n}.weight", LazyTensor(Storage(Buffer(block[:length]), "cpu", kind), kind, (length,), (1,)))
        for n, length in enumerate(sizes)
    ]
    ckptool.save(Checkpoint(Dict(entries)), folder, format="shards", max_shard_size=-(-size // 4) + (1 << 20))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.stores", description=__doc__)
    parser.add_argument("--size", type=_size, default="1G", help="bytes of the model (default: 1G)")
    parser.add_argument("--runs", type=int, default=5, help="counted rounds (default: 5)")
    parser.add_argument("--dir", type=Path, help="where to write; on the disk that matters (default: benchmarks/out)")
    options = parser.parse_args()
    parent = options.dir or Path(__file__).with_name("out")
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=parent, prefix="stores-"))
    server = None
    try:
        (folder / "store").mkdir()
        make(folder / "store" / "model", options.size)
        command = [sys.executable, "-c", "import sys; from benchmarks.stores import serve; serve(sys.argv[1])"]
        server = subprocess.Popen([*command, str(folder / "store")], stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        address = f"http://127.0.0.1:{int(server.stdout.readline())}"
        environment = {**os.environ, **_LOGIN, "AWS_ENDPOINT_URL": address, "PYTHONPATH": os.getcwd()}
        source = f"s3://{_BUCKET}/model"
        ckptool = [sys.executable, "-m", "ckptool", "convert", "-q", source]
        ways = {
            "s3fs get": ([sys.executable, "-c", _GET], folder / "got"),
            "ckptool, to shards": (ckptool, folder / "shards"),
            "ckptool, to one file": (ckptool, folder / "one.safetensors"),
        }
        print(
            f"{os.cpu_count()} cores, {platform.system()}, Python {platform.python_version()}, s3fs {version('s3fs')}; "
            f"{options.size >> 20:,} MB in four shards, {options.runs} rounds\n"
        )
        walls: dict[str, list[float]] = {way: [] for way in ways}
        peaks: dict[str, float] = dict.fromkeys(ways, 0)
        for number in range(options.runs + 1):
            for way, (words, target) in ways.items():
                wall, peak = _timed([*words, str(target)], environment)
                if number:
                    walls[way].append(wall)
                    peaks[way] = max(peaks[way], peak)
                shutil.rmtree(target) if target.is_dir() else target.unlink()
                os.sync()
        baseline = walls["s3fs get"]
        for way, mine in walls.items():
            ratios = sorted(one / base for one, base in zip(mine, baseline, strict=True))
            said = f"{median(mine):8.2f} s {peaks[way]:8,.0f} MB {median(ratios):8.2f} x"
            said += f"   {ratios[0]:.2f} – {ratios[-1]:.2f}"
            within = "" if way == "s3fs get" else f"   {'within' if median(ratios) <= LIMIT else 'OVER'} {LIMIT:.2f} x"
            print(f"  {way:<22}{said}{within}")
    finally:
        if server is not None:
            server.terminate()
        shutil.rmtree(folder, ignore_errors=True)


def _timed(command: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """Seconds on the clock and the peak of memory in MB, with all that is written brought to the disk."""
    began = time.perf_counter()
    child = subprocess.Popen(command, env=environment)
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    os.sync()
    if child.returncode:
        raise SystemExit(f"{command[2]} failed")
    return time.perf_counter() - began, used.ru_maxrss / 1024


if __name__ == "__main__":
    main()
