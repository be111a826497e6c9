"""ZeRO checkpoints: those that DeepSpeed wrote, some of any shapes in its layout, and stand-ins for its classes."""

import contextlib
import enum
import shutil
import sys
import types
from collections import OrderedDict
from math import prod

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(scope="session")
def runs(trainer_runs):
    return trainer_runs / "deepspeed"


@pytest.fixture
def copied(runs, tmp_path):
    """A copy of a run, to be damaged: its folder, and that of its save."""

    def copy(name):
        shutil.copytree(runs / name, tmp_path / name)
        return tmp_path / name, tmp_path / name / "global_step3"

    return copy


def by_torch(path):
    return torch.load(path, weights_only=True)


class ZeroStageEnum(int, enum.Enum):
    """As deepspeed/runtime/zero/config.py has it."""

    disabled, optimizer_states, gradients, weights = range(4)


class LossScaler:
    """Holds whatever is in the file."""


class DynamicLossScaler(LossScaler):
    """The same."""


class fragment_address:
    """The same."""


_HOMES = {
    "deepspeed.runtime.zero.config": [ZeroStageEnum],
    "deepspeed.runtime.fp16.loss_scaler": [LossScaler, DynamicLossScaler],
    "deepspeed.utils.tensor_fragment": [fragment_address],
}


@contextlib.contextmanager
def classes():
    """While this lasts, pickles find stand-ins for DeepSpeed's classes, under DeepSpeed's names."""
    before = dict(sys.modules)
    for name, held in _HOMES.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            sys.modules[".".join(parts[:end])] = types.ModuleType(".".join(parts[:end]))
        for cls in held:
            cls.__module__ = name
            setattr(sys.modules[name], cls.__name__, cls)
    try:
        yield
    finally:
        for name in set(sys.modules) - set(before):
            if name.startswith("deepspeed"):
                del sys.modules[name]


def write_zero(folder, stage, world, groups, padding=0, *, trimmed=False, dtype=torch.bfloat16):
    """Write GROUPS of parameters (lists of shapes) as one save of WORLD ranks. Returns name -> float32 value.

    PADDING elements follow each parameter (stages 1 and 2); TRIMMED: the last rank leaves off what fills up its part.
    """
    folder.mkdir(exist_ok=True)
    named = [{f"g{g}.p{i}": tuple(shape) for i, shape in enumerate(group)} for g, group in enumerate(groups)]
    every = {name: shape for group in named for name, shape in group.items()}
    values = {name: torch.randn(shape) for name, shape in every.items()}
    model = {
        "module": OrderedDict(
            (name, torch.empty(0) if stage == 3 else value.to(dtype)) for name, value in values.items()
        ),
        "buffer_names": [],
        "optimizer": None,
        "param_shapes": [OrderedDict((k, torch.Size(v)) for k, v in group.items()) for group in named],
        "frozen_param_shapes": None,
        "shared_params": {},
        "frozen_param_fragments": None,
        "global_steps": 1,
        "dp_world_size": world,
        "ds_version": "0.19.8",
    }
    flats = (
        [_of_parameters(group, values, world) for group in named]
        if stage == 3
        else [_of_group(group, values, world, padding) for group in named]
    )
    for rank in range(world):
        mine = [flat[rank] for flat in flats]
        states = {
            g: {"exp_avg": part * 2, "exp_avg_sq": part.square(), "step": torch.tensor(1.0)}
            for g, part in enumerate(mine)
        }
        inner = {"state": states, "param_groups": [{"lr": 0.1, "params": [g]} for g in range(len(named))]}
        optimizer = {"zero_stage": stage, "partition_count": world if stage == 3 else [world] * len(named)}
        if stage == 3:
            optimizer |= {"fp32_flat_groups": mine, "optimizer_state_dict": inner}
        else:
            if trimmed and rank == world - 1:
                over = [
                    sum(part.numel() for part in flat) - _used(group, padding)
                    for group, flat in zip(named, flats, strict=True)
                ]
                mine = [part[: max(part.numel() - n, 0)].clone() for part, n in zip(mine, over, strict=True)]
            optimizer |= {
                "single_partition_of_fp32_groups": mine,
                "base_optimizer_state": inner,
                "param_alignment_paddings": [[padding] * len(group) for group in named],
            }
        torch.save({"optimizer_state_dict": optimizer}, folder / f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
        if stage == 3:
            torch.save(model, folder / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
    if stage < 3:
        torch.save(model, folder / "mp_rank_00_model_states.pt")
    return values


def _used(group, padding):
    return sum(prod(shape) + padding for shape in group.values())


def _of_group(group, values, world, padding):
    """Stages 1 and 2: the parameters one after the other, filled up to two elements a rank, cut into parts."""
    whole = torch.cat([torch.cat([values[name].reshape(-1), torch.zeros(padding)]) for name in group])
    whole = torch.cat([whole, torch.zeros(-whole.numel() % (2 * world))])
    return [part.clone() for part in whole.view(world, -1)]


def _of_parameters(group, values, world):
    """Stage 3: a part of each parameter on each rank."""
    filled = [
        torch.cat([values[n].reshape(-1), torch.zeros(-values[n].numel() % world)]).view(world, -1) for n in group
    ]
    return [torch.cat([one[rank] for one in filled]) for rank in range(world)]


def change(path, how, **more):
    """Change what one rank wrote. Its classes are stand-ins, since DeepSpeed is not there."""
    with classes():
        whole = torch.load(path, weights_only=False)
        how(whole["optimizer_state_dict"])
        torch.save(whole | {f"ds_{key}": value for key, value in more.items()}, path)


def optimizer_in(path):
    """What the optimizer of one rank is, in its file."""
    with classes():
        return torch.load(path, weights_only=False)["optimizer_state_dict"]
