"""Where the servers for object stores are, and how they are run: each in an environment of its own."""

import contextlib
import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build" / "stores"


def moto_server():
    """The program of moto's server, or None. CKPTOOL_MOTO names another one."""
    named = os.environ.get("CKPTOOL_MOTO")
    found = Path(named) if named else BUILD / "moto" / "bin" / "moto_server"
    return found if found.is_file() else None


def google_emulator():
    """The program of gcp-storage-emulator, or None. CKPTOOL_GOOGLE names another one."""
    named = os.environ.get("CKPTOOL_GOOGLE")
    found = Path(named) if named else BUILD / "google" / "bin" / "gcp-storage-emulator"
    return found if found.is_file() else None


def azurite():
    """The program of azurite's blob server, or None. CKPTOOL_AZURITE names another one."""
    named = os.environ.get("CKPTOOL_AZURITE")
    found = Path(named) if named else BUILD / "azurite" / "node_modules" / ".bin" / "azurite-blob"
    return found if found.is_file() and shutil.which("node") else None


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def running(words, port, log):
    """A server as a child process, from when it answers until the end of the block."""
    with open(log, "wb") as out:
        child = subprocess.Popen([str(word) for word in words], stdout=out, stderr=out)
    try:
        for _ in range(300):
            if child.poll() is not None:
                raise RuntimeError(f"{words[0]} ended: {Path(log).read_text()[-500:]}")
            with contextlib.suppress(urllib.error.URLError, ConnectionError, TimeoutError):
                with contextlib.suppress(urllib.error.HTTPError):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=1).close()
                break
            time.sleep(0.1)
        else:
            raise RuntimeError(f"{words[0]} does not answer")
        yield
    finally:
        child.terminate()
        child.wait(20)
