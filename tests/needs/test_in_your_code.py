"""The pieces of docs/in-your-code.md for frameworks, run as they are where the framework can be imported.

`make test-frameworks` makes an environment with them. The plain loop is run by tests/test_docs.py.
"""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "in-your-code.md"
PIECES = {
    title: code
    for title, body in re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    for code in re.findall(r"^```py\n(.*?)^```", body, re.M | re.S)
}
PACKAGES = {"Lightning": ["lightning"], "The Trainer of transformers": ["transformers", "accelerate"],
            "timm": ["timm", "torchvision"]}  # fmt: skip
#: Each of them imports torchvision where it is, whose compiled part on PyPI is for another torch: what it asks for is
#: declared instead.
BEFORE = """import importlib.util, torch

library = torch.library.Library("torchvision", "FRAGMENT")
for _ in range(20 if importlib.util.find_spec("torchvision") else 0):
    try:
        import torchvision
        break
    except RuntimeError as error:
        library.define(str(error).partition("torchvision::")[2].split()[0] + "(Tensor x) -> Tensor")
"""


def test_each_framework_of_the_page_has_a_piece():
    assert PIECES.keys() == PACKAGES.keys()


@pytest.mark.parametrize("title", PACKAGES)
def test_a_piece_runs_as_it_is(tmp_path, title):
    missing = [name for name in PACKAGES[title] if importlib.util.find_spec(name) is None]
    if missing:
        reason = f"{', '.join(missing)} is not installed"
        assert not os.environ.get("CKPTOOL_REQUIRE_FRAMEWORKS"), reason
        pytest.skip(reason)
    (tmp_path / "piece.py").write_text(BEFORE + PIECES[title])
    done = subprocess.run([sys.executable, "piece.py"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
