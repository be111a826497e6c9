import sys
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def ranks(forks, tmp_path_factory):
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
    said = root / "said"
    assert forks.run("ranks", [root, *folders], root, said) == 0, said.read_text()[-4000:]
    return folders
