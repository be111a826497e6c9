"""Tables of positions along each axis of a video, in a model with one table for all."""

from __future__ import annotations

import numpy as np
import pytest
from sides import worked_out


@pytest.mark.parametrize("token", [True, False])
@pytest.mark.parametrize(("frames", "places"), [(2, 9), (5, 3)])
def test_one_table_gets_the_sum_of_frame_and_place_bit_for_bit(token: bool, frames: int, places: int) -> None:
    values = np.random.default_rng(0)
    shapes = {"pos_embed_spatial": (1, places, 6), "pos_embed_temporal": (1, frames, 6)}
    shapes |= {"pos_embed_class": (1, 1, 6)} if token else {}
    source = {key: values.normal(size=shape).astype(np.float32) for key, shape in shapes.items()}
    source["head.weight"] = values.normal(size=(4, 6)).astype(np.float32)
    made = worked_out(source, {"positions": (1, token + frames * places, 6), "fc.weight": (4, 6)})["positions"]
    sums = source["pos_embed_temporal"][0][:, None] + source["pos_embed_spatial"]
    expected = [*([source["pos_embed_class"][0]] if token else []), sums.reshape(-1, 6)]
    assert np.array_equal(made.values, np.concatenate(expected)[None])
    assert [q.reason.name for q in made.entry.questions] == ["POSITIONS_OF_AXES"]
    assert len(made.entry.rivals) == 1


@pytest.mark.parametrize(
    "tables",
    [
        {"spatial_temporal_pos_embed": (1, 4, 6)},
        {"class_spatial_pos_embed": (1, 4, 6), "temporal_pos_embed": (1, 3, 6)},
    ],
)
def test_one_table_of_two_kinds_is_neither(tables: dict[str, tuple[int, ...]]) -> None:
    shapes = tables | {"fc.weight": (4, 6)}
    source = {key: np.ones(shape, np.float32) for key, shape in shapes.items()}
    made = worked_out(source, {"pos_embed": (1, 16, 6), "fc.weight": (4, 6)})["pos_embed"]
    assert "POSITIONS_OF_AXES" not in [q.reason.name for q in made.entry.questions]
