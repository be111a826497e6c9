"""The share of a model that doctor says a file fits: each tensor counts once, whatever its names."""

import pytest

torch = pytest.importorskip("torch")

import ckptool
from ckptool.reports.diagnosis.fits import fits

CODE = """from torch import nn


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 8)
        self.twin = nn.Embedding(50, 8)
        self.head = nn.Linear(8, 50, bias=False)
        self.extra = nn.Linear(8, 8)
        self.head.weight = self.embed.weight
"""


@pytest.mark.parametrize("missing", [["extra.weight", "extra.bias"], ["embed.weight"], ["embed.weight", "head.weight"]])
def test_tied_weights_count_once_and_others_of_their_shape_for_themselves(tmp_path, missing):
    (tmp_path / "tied.py").write_text(CODE)
    whole = {
        "embed.weight": torch.rand(50, 8), "twin.weight": torch.rand(50, 8),
        "extra.weight": torch.rand(8, 8), "extra.bias": torch.rand(8),
    }  # fmt: skip
    whole["head.weight"] = whole["embed.weight"]
    held = {key: value for key, value in whole.items() if key not in missing}
    ckptool.save(held, tmp_path / "some.pth")
    fit = fits(tmp_path / "some.pth", f"{tmp_path / 'tied.py'}:Tied")
    assert fit.parameters == (sum({id(one): one.numel() for one in held.values()}.values()), 400 + 400 + 72)
    assert set(fit.missing) == set(missing)
