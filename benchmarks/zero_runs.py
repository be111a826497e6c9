"""Checkpoints of DeepSpeed's ZeRO of any size, in the layout that its version 0.19.8 writes (docs/formats.md)."""

from collections import OrderedDict
from pathlib import Path
from typing import Any


def write(folder: Path, weights: dict[str, Any], stage: int, ranks: int) -> None:
    """Write WEIGHTS (float32) as one save of a bfloat16 run with Adam, divided among RANKS at STAGE 2 or 3."""
    import torch

    folder.mkdir()
    model = {
        "module": OrderedDict(
            (key, torch.empty(0) if stage == 3 else value.bfloat16()) for key, value in weights.items()
        ),
        "buffer_names": [],
        "param_shapes": [OrderedDict((key, value.shape) for key, value in weights.items())],
        "frozen_param_shapes": None,
        "shared_params": {},
        "frozen_param_fragments": None,
        "global_steps": 1,
        "dp_world_size": ranks,
        "ds_version": "0.19.8",
    }
    if stage == 3:
        whole = [torch.cat([v.reshape(-1), torch.zeros(-v.numel() % ranks)]).view(ranks, -1) for v in weights.values()]
        parts = (torch.cat([one[rank] for one in whole]) for rank in range(ranks))
    else:
        flat = torch.cat([value.reshape(-1) for value in weights.values()])
        flat = torch.cat([flat, torch.zeros(-flat.numel() % (2 * ranks))])
        parts = iter(part.clone() for part in flat.view(ranks, -1))
    for rank, part in enumerate(parts):
        state = {"exp_avg": part / 2, "exp_avg_sq": part / 4, "step": torch.tensor(1.0)}
        inner = {"state": {0: state}, "param_groups": [{"lr": 1e-3, "params": [0]}]}
        optimizer = {"zero_stage": stage, "partition_count": ranks if stage == 3 else [ranks]}
        if stage == 3:
            optimizer |= {"fp32_flat_groups": [part], "optimizer_state_dict": inner}
            torch.save(model, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        else:
            optimizer |= {"single_partition_of_fp32_groups": [part], "base_optimizer_state": inner}
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        torch.save({"optimizer_state_dict": optimizer}, folder / name)
    if stage < 3:
        torch.save(model, folder / "mp_rank_00_model_states.pt")
