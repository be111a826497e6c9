import subprocess
import sys
from pathlib import Path

import pytest
from programs import unwatched


@pytest.fixture(scope="session")
def ranks(tmp_path_factory):
    """Folders of what runs of 1, 2 and 4 ranks saved (see ranks.py), which also load what ckptool wrote for them."""
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available() or sys.platform == "win32":
        pytest.skip("torch has no distributed package here")
    sys.path.insert(0, str(Path(__file__).parent))
    import ranks

    import ckptool

    root = tmp_path_factory.mktemp("ranks")
    folders = {world: root / str(world) for world in (1, 2, 4)}
    value = {"model": ranks.model().state_dict(), "epoch": 7}
    for folder in folders.values():
        folder.mkdir()
        torch.save(value, folder / "ours.pth")
        ckptool.save(ckptool.open(folder / "ours.pth"), folder / "ours", format="dcp", max_shard_size=1500)
    command = [sys.executable, ranks.__file__, str(root), *map(str, folders)]
    environment = {**unwatched(), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    return folders
