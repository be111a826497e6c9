"""Classes of a detector of which one is the background."""

from __future__ import annotations

import pytest
from sides import found, port, signature, wanted


def head(fc: str, top: str, boxes: int, classes: int = 6) -> dict[str, tuple[int, ...]]:
    return {
        f"{fc}.weight": (8, 12),
        f"{fc}.bias": (8,),
        f"{top}.cls_score.weight": (classes, 8),
        f"{top}.cls_score.bias": (classes,),
        f"{top}.bbox_pred.weight": (boxes, 8),
        f"{top}.bbox_pred.bias": (boxes,),
    }


def test_where_the_background_stands_among_the_classes_is_a_doubt_in_other_code() -> None:
    mapping = port(signature(head("heads.fc1", "heads.predictor", 20)), wanted(head("inner.fc6", "predict", 20)))
    entry = found(mapping, "predict.cls_score.bias")
    assert entry.status == "guessed"
    assert "heads.predictor.cls_score.bias" in str(entry.expr)
    assert [str(rival) for rival in entry.rivals] == [
        "cat(0, slice(heads.predictor.cls_score.bias, 0, 5, 6), slice(heads.predictor.cls_score.bias, 0, 0, 5))",
        "cat(0, slice(heads.predictor.cls_score.bias, 0, 1, 6), slice(heads.predictor.cls_score.bias, 0, 0, 1))",
    ]
    assert found(mapping, "predict.bbox_pred.bias").status == "mapped"


@pytest.mark.parametrize(("fc", "boxes"), [("fc1", 20), ("fc6", 24), ("fc6", 4)])
def test_the_same_code_and_classes_that_all_have_boxes_are_not_doubted(fc: str, boxes: int) -> None:
    mapping = port(signature(head("heads.fc1", "heads.predictor", boxes)), wanted(head(fc, "predictor", boxes)))
    assert found(mapping, "predictor.cls_score.weight").status == "mapped"


def test_a_folded_norm_of_the_backbone_makes_no_other_code() -> None:
    conv = {"stem.conv.weight": (12, 3, 3, 3), "stem.conv.bias": (12,)}
    norm = {f"stem.bn.{leaf}": (12,) for leaf in ("weight", "bias", "running_mean", "running_var")}
    rest = head("heads.fc", "heads.predictor", 20)
    mapping = port(signature(conv | norm | rest), wanted(conv | rest))
    assert "fold_weight" in str(found(mapping, "stem.conv.weight").expr)
    assert {found(mapping, key).status for key in rest} == {"mapped"}


@pytest.mark.parametrize(("theirs", "own", "first"), [(24, 20, "1, 6"), (20, 24, "5, 6")])
def test_boxes_of_one_side_for_the_background_make_its_place_a_doubt_under_equal_names(
    theirs: int, own: int, first: str
) -> None:
    mapping = port(signature(head("heads.fc", "heads.top", theirs)), wanted(head("heads.fc", "heads.top", own)))
    entry = found(mapping, "heads.top.cls_score.weight")
    assert entry.status == "guessed"
    assert str(entry.expr) == "heads.top.cls_score.weight"
    assert str(entry.rivals[0]).startswith(f"cat(0, slice(heads.top.cls_score.weight, 0, {first})")
    assert len(entry.rivals) == 2
    assert found(mapping, "heads.top.bbox_pred.weight").expr is None
