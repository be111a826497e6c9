"""Linear layers over patches: the order in which code lists the numbers of a patch is in the weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional

import ckptool
from ckptool.porting.reasons import Reason

SIZE = ["float32[2,3,8,16]"]


def by_channel(x: Any) -> Any:
    return x.unfold(2, 4, 4).unfold(3, 2, 2).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


def unfolded(x: Any) -> Any:
    return functional.unfold(x, (4, 2), stride=(4, 2)).mT


def cut_by_channel(x: Any) -> Any:
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 4, 4, w // 2, 2).permute(0, 2, 4, 1, 3, 5).reshape(n, -1, c * 8)


def by_pixel(x: Any) -> Any:
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 4, 4, w // 2, 2).permute(0, 2, 4, 3, 5, 1).reshape(n, -1, c * 8)


def by_column(x: Any) -> Any:
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 4, 4, w // 2, 2).permute(0, 2, 4, 5, 3, 1).reshape(n, -1, c * 8)


class Patches(nn.Module):  # type: ignore[misc]
    """Cuts pictures into patches by CUT; a norm and a matrix for each patch, with other names for each NAME."""

    def __init__(self, name: str, cut: Callable[[Any], Any]) -> None:
        super().__init__()
        self.name, self.cut = name, cut
        self.add_module(f"norm_{name}", nn.LayerNorm(24))
        self.add_module(f"embed_{name}", nn.Linear(24, 16))
        self.add_module(f"head_{name}", nn.Linear(16, 5))
        for key, value in self.named_parameters():
            nn.init.uniform_(value, 0.5 if key == f"norm_{name}.weight" else -1, 1)

    def forward(self, x: Any) -> Any:
        norm, embed, head = (getattr(self, f"{part}_{self.name}") for part in ("norm", "embed", "head"))
        return head(embed(norm(self.cut(x))).relu().mean(1))


def equal_outputs(mapping: Any, theirs: Any, own: Any) -> bool:
    made = mapping.apply(theirs.state_dict()).state_dicts()[0]
    own.load_state_dict({key: torch.from_numpy(tensor.numpy().copy()) for key, tensor in made.tensors.items()})
    x = torch.randn(2, 3, 8, 16)
    with torch.no_grad():
        return torch.allclose(theirs(x), own(x), atol=1e-5)


@pytest.mark.parametrize("theirs", [unfolded, cut_by_channel, by_pixel, by_column])
@pytest.mark.parametrize("own", [unfolded, cut_by_channel, by_pixel, by_column])
def test_two_codes_show_in_which_order_each_lists_the_numbers_of_a_patch(theirs: Any, own: Any) -> None:
    source, target = Patches("a", theirs), Patches("b", own)
    mapping = ckptool.transfer(source.state_dict(), target, inputs=SIZE, source_model=source, prove=False)
    assert not mapping.having("guessed")
    assert equal_outputs(mapping, source, target)


@pytest.mark.parametrize("own", [unfolded, by_pixel])
def test_without_the_code_of_the_source_the_order_is_a_question(own: Any) -> None:
    mapping = ckptool.transfer(Patches("a", own).state_dict(), Patches("b", own), inputs=SIZE)
    asked = {e.target for e in mapping.entries if any(q.reason == Reason.PATCH_ORDER for q in e.questions)}
    assert asked == {"embed_b.weight", "norm_b.weight", "norm_b.bias"}


def test_a_proof_takes_the_order_that_gives_equal_outputs() -> None:
    source, target = Patches("a", by_channel), Patches("b", by_pixel)
    mapping = ckptool.transfer(source.state_dict(), target, inputs=SIZE, source_model=source, prove=True)
    assert not mapping.having("guessed")
    assert equal_outputs(mapping, source, target)


def test_the_same_code_lists_them_in_the_same_order() -> None:
    mapping = ckptool.transfer(Patches("a", by_pixel).state_dict(), Patches("a", by_pixel), inputs=SIZE)
    assert not mapping.having("guessed")


@pytest.mark.parametrize("own", [unfolded, by_pixel])
def test_names_of_code_that_lists_them_pixel_by_pixel_tell_their_order(own: Any) -> None:
    source, target = nn.Sequential(), Patches("b", own)
    source.add_module("to_patch_embedding", Patches("a", by_pixel))
    mapping = ckptool.transfer(source.state_dict(), target, inputs=SIZE)
    assert bool(mapping.having("guessed")) == (own is unfolded)
    assert equal_outputs(mapping, source, target)


def test_patches_of_one_channel_have_one_order() -> None:
    spec = ["float32[2,1,8,48]"]
    mapping = ckptool.transfer(Patches("a", wide).state_dict(), Patches("b", wide), inputs=spec)
    assert not mapping.having("guessed")


def wide(x: Any) -> Any:
    n, c, h, w = x.shape
    return x.reshape(n, c, h // 4, 4, w // 6, 6).permute(0, 2, 4, 3, 5, 1).reshape(n, -1, c * 24)


def stacked(x: Any) -> Any:
    h, w = x.shape[2:]
    pieces = [x[:, :, i : i + 4, j : j + 2].flatten(1) for i in range(0, h, 4) for j in range(0, w, 2)]
    return torch.stack(pieces, 1)


def test_a_proof_finds_an_order_that_the_source_does_not_show() -> None:
    source, target = Patches("a", stacked), Patches("b", by_pixel)
    mapping = ckptool.transfer(source.state_dict(), target, inputs=SIZE, source_model=source, prove=True)
    assert not mapping.having("guessed")
    assert equal_outputs(mapping, source, target)
