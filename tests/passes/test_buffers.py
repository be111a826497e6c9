"""Buffers that models compute: left out and added, with the values that torch and transformers give them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import ckptool
from ckptool.errors import NoMatch
from ckptool.passes.buffers import drop_buffers, fill_buffers, is_buffer


def state_of(ckpt: Any) -> dict[str, Any]:
    return {key: torch.from_numpy(tensor.numpy().copy()) for key, tensor in ckpt.state_dict().tensors.items()}


def filled(state: dict[str, Any]) -> dict[str, Any]:
    return state_of(fill_buffers(ckptool.from_torch(state)))


def test_counters_of_batch_norms_come_back_where_torch_has_them() -> None:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4), torch.nn.BatchNorm2d(4))
    wanted = model.state_dict()
    without = drop_buffers(ckptool.from_torch(wanted))
    assert [key for key in wanted if key not in state_of(without)] == ["1.num_batches_tracked", "2.num_batches_tracked"]
    assert without.history[-1] == "drop buffers: 2 num_batches_tracked"
    again = fill_buffers(without)
    assert list(state_of(again)) == list(wanted)
    model.load_state_dict(state_of(again))
    assert all(torch.equal(value, wanted[key]) for key, value in state_of(again).items())
    assert again.history[-1] == "fill buffers: 2 num_batches_tracked"


def test_buffers_of_a_whole_pickled_model_stay_and_are_not_said_to_be_dropped(tmp_path: Path) -> None:
    torch.save(torch.nn.Sequential(torch.nn.Conv2d(3, 4, 1), torch.nn.BatchNorm2d(4)), tmp_path / "whole.pth")
    whole = ckptool.open(tmp_path / "whole.pth")
    for change in (drop_buffers, fill_buffers):
        with pytest.raises(ckptool.RuleError, match="attributes of a whole pickled model"):
            change(whole)
    assert list(state_of(drop_buffers(ckptool.extract(whole)))) == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
    ]


@pytest.mark.parametrize("table_name", ["position_embeddings", "position_embedding"])
def test_positions_count_as_far_as_their_table(table_name: str) -> None:
    made = filled({f"bert.embeddings.{table_name}.weight": torch.ones(5, 2)})
    assert torch.equal(made["bert.embeddings.position_ids"], torch.arange(5).expand((1, -1)))


@pytest.mark.parametrize("w", [1, 2, 7])
def test_places_in_a_window_are_those_of_swin(w: int) -> None:
    coordinates = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")).flatten(1)
    apart = (coordinates[:, :, None] - coordinates[:, None, :]).permute(1, 2, 0) + w - 1
    wanted = apart[..., 0] * (2 * w - 1) + apart[..., 1]
    made = filled({"attn.relative_position_bias_table": torch.ones((2 * w - 1) ** 2, 3)})
    assert torch.equal(made["attn.relative_position_index"], wanted)


@pytest.mark.parametrize("rows", [10, 16, 3])
def test_a_window_that_is_no_square_is_not_guessed(rows: int) -> None:
    with pytest.raises(NoMatch):
        filled({"attn.relative_position_bias_table": torch.ones(rows, 3)})


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_masks_of_gpt2_are_lower_triangles_and_are_known_again(prefix: str) -> None:
    state = {f"{prefix}wpe.weight": torch.ones(6, 4), f"{prefix}h.0.attn.c_attn.weight": torch.ones(4, 12)}
    made = filled(state)
    assert torch.equal(made[f"{prefix}h.0.attn.bias"].bool(), torch.ones(1, 1, 6, 6).tril().bool())
    assert float(made[f"{prefix}h.0.attn.masked_bias"]) == -1e4
    assert state_of(drop_buffers(ckptool.from_torch(made))).keys() == state.keys()


@pytest.mark.parametrize(
    ("config", "size", "base"),
    [
        ({"hidden_size": 32, "num_attention_heads": 4}, 8, 10000.0),
        ({"hidden_size": 32, "num_attention_heads": 4, "head_dim": 16, "rope_theta": 500000.0}, 16, 500000.0),
        ({"hidden_size": 32, "num_attention_heads": 4, "rope_scaling": {"factor": 8}}, 0, 0),
        ({"head_dim": 8, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "default"}}, 8, 500000.0),
        ({"head_dim": 8, "rope_parameters": {"rope_theta": 500000.0, "rope_type": "llama3", "factor": 8}}, 0, 0),
        ({"head_dim": 8, "rope_parameters": {"full_attention": {"rope_theta": 1e6, "rope_type": "default"}}}, 0, 0),
        (None, 0, 0),
    ],
)
def test_frequencies_are_filled_where_a_configuration_tells_them(
    tmp_path: Path, config: dict[str, Any] | None, size: int, base: float
) -> None:
    key = "model.layers.0.self_attn.q_proj.weight"
    torch.save({key: torch.ones(32, 32)}, tmp_path / "model.bin")
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
    ckpt = ckptool.open(tmp_path / "model.bin")
    if not size:
        with pytest.raises(NoMatch, match="no layer with a buffer"):
            fill_buffers(ckpt)
        return
    made = state_of(fill_buffers(ckpt))["model.layers.0.self_attn.rotary_emb.inv_freq"]
    torch.testing.assert_close(made, 1 / base ** (torch.arange(0, size, 2) / size))


def test_what_is_there_is_kept_and_what_is_trained_is_no_buffer() -> None:
    state = {"n.running_var": torch.ones(2), "n.num_batches_tracked": torch.tensor(7), "fc.bias": torch.ones(3)}
    with pytest.raises(NoMatch):
        filled(state)
    assert not is_buffer("attn.bias", (1, 12, 8, 8))  # biases of relative positions
    assert not is_buffer("fc.bias", (3,))
    assert not is_buffer("x.bias", (1, 1, 1, 1))
    assert is_buffer("h.0.attn.bias", (1, 1, 8, 8))
    with pytest.raises(NoMatch, match="none of its tensors is a buffer"):
        drop_buffers(ckptool.from_torch({"fc.bias": torch.ones(3)}))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.float32, torch.bfloat16])
def test_a_causal_mask_is_dropped_and_a_learned_bias_of_its_sizes_is_not(dtype: torch.dtype) -> None:
    mask = torch.ones(4, 4).tril().reshape(1, 1, 4, 4).to(dtype)
    state = {"h.0.attn.bias": mask, "h.0.attn.w": torch.ones(2), "table.bias": torch.randn(1, 1, 4, 4).tril()}
    assert set(state_of(drop_buffers(ckptool.from_torch(state)))) == {"h.0.attn.w", "table.bias"}
    with pytest.raises(NoMatch, match="none of its tensors is a buffer"):
        drop_buffers(ckptool.from_torch({"x.bias": torch.zeros(1, 1, 4, 4)}))


def test_filling_twice_is_filling_once() -> None:
    once = fill_buffers(ckptool.from_torch({"n.running_mean": torch.ones(2), "n.running_var": torch.ones(2)}))
    assert state_of(fill_buffers(once, missing="ok")).keys() == state_of(once).keys()


def test_a_model_with_a_table_of_positions_gets_no_frequencies(tmp_path: Path) -> None:
    state = {"layers.0.self_attn.q_proj.weight": torch.ones(8, 8), "embed_positions.weight": torch.ones(5, 8)}
    torch.save(state, tmp_path / "model.bin")
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 8, "num_attention_heads": 2}))
    with pytest.raises(NoMatch, match="no layer with a buffer"):
        fill_buffers(ckptool.open(tmp_path / "model.bin"))
