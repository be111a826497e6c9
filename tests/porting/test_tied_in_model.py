"""A model that ties two keys has no place for a source that holds two different tensors for them."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn = torch.nn

import ckptool
from ckptool.porting.reasons import Reason


class Language(nn.Module):  # type: ignore[misc]
    """A table of words, a layer, and an output layer called HEAD, which may be TIED to the table."""

    def __init__(self, head: str = "lm_head", *, tied: bool = False) -> None:
        super().__init__()
        self.head = head
        self.embed, self.fc = nn.Embedding(50, 16), nn.Linear(16, 16)
        self.add_module(head, nn.Linear(16, 50, bias=False))
        if tied:
            getattr(self, head).weight = self.embed.weight

    def forward(self, x: Any) -> Any:
        return getattr(self, self.head)(self.fc(self.embed(x)))


@pytest.mark.parametrize("head", ["lm_head", "output"])
@pytest.mark.parametrize("code", [False, True])
def test_a_head_of_its_own_is_not_left_out_without_a_question(head: str, code: bool) -> None:
    source = Language(head)
    mapping = ckptool.transfer(source.state_dict(), Language(tied=True), source_model=source if code else None)
    (asked,) = mapping.having("guessed")
    assert asked.target == "lm_head.weight"
    (question,) = asked.questions
    assert (question.reason, question.named) == (Reason.TIED_IN_MODEL, ("embed.weight", f"{head}.weight"))


@pytest.mark.parametrize("copied", [False, True])
def test_a_head_that_is_tied_in_the_file_or_equal_to_the_table_is_no_question(copied: bool) -> None:
    weights = Language(tied=True).state_dict()
    if copied:
        weights["lm_head.weight"] = weights["lm_head.weight"].clone()
    assert not ckptool.transfer(weights, Language(tied=True)).having("guessed")


def test_a_source_without_a_head_is_no_question() -> None:
    weights = Language().state_dict()
    del weights["lm_head.weight"]
    assert not ckptool.transfer(weights, Language(tied=True)).having("guessed")


@pytest.mark.parametrize("part", ["ema", "decoder"])
def test_a_table_of_another_part_is_no_head(part: str) -> None:
    weights = {key: value for key, value in Language().state_dict().items() if "head" not in key}
    weights[f"{part}.embed.weight"] = weights["embed.weight"] + 1
    assert not ckptool.transfer(weights, Language(tied=True)).having("guessed")


def test_a_model_that_ties_nothing_has_a_place_for_both() -> None:
    assert not ckptool.transfer(Language("output").state_dict(), Language()).having("guessed")
