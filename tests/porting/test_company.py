"""Names that mean something because they stand together in one module."""

from __future__ import annotations

import pytest

from ckptool.porting.forms.canonical import canonical
from ckptool.porting.rule_examples import signature
from ckptool.porting.words import Company, cut, table


@pytest.mark.parametrize("known", table().in_company, ids=lambda known: "+".join(known.words))
@pytest.mark.parametrize("missing", [0, 1], ids=["all", "one missing"])
def test_names_that_stand_together_mean_what_the_vocabulary_says(known: Company, missing: int) -> None:
    names = [*known.words][missing:]
    below = ".conv.weight" if known.modules else ".weight"
    source = signature({"tensors": {f"part.{name.upper()}{below}": [8, 8] for name in names}}, is_target=False)
    target = signature({"tensors": {f"other.{place}.weight": [8, 8] for place in range(len(names))}}, is_target=True)
    pieces = canonical(source, target)[0].pieces.values()
    said = [cut(known.words[name]) for name in names]
    meant = [piece.words[-len(words) :] == words for words, piece in zip(said, pieces, strict=True)]
    assert meant == [not missing] * len(names)
