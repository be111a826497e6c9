"""Whoever knows buffers by their names knows them from the one table."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

import ckptool
from ckptool.keys.known_buffers import BUFFERS, COMPUTED, FREQUENCIES, STATISTICS, Holds, holds, is_counter
from ckptool.model_code.trace import signature_of
from ckptool.porting import transfer
from ckptool.porting.words import table


@pytest.mark.parametrize("name", BUFFERS)
def test_a_buffer_is_known_by_the_last_component_of_its_key(name: str) -> None:
    assert holds(f"a.0.{name}") is holds(name) is BUFFERS[name]
    assert holds(f"{name}.weight") is None
    assert holds(f"a.my_{name}") is None


@pytest.mark.parametrize("name", BUFFERS)
def test_what_models_compute_is_dropped_and_what_training_measured_is_kept(name: str) -> None:
    left = ckptool.drop_buffers(ckptool.from_torch({"fc.weight": torch.ones(2), name: torch.ones(2)}), missing="ok")
    assert set(left.state_dict().tensors) == {"fc.weight"} | (STATISTICS & {name})


@pytest.mark.parametrize("name", [*BUFFERS, "gain"])
def test_an_optimizer_by_numbers_misses_parameters_and_no_buffers(name: str) -> None:
    optimizer = torch.optim.SGD(torch.nn.Linear(2, 1).parameters(), 0.1).state_dict()
    weights = {"fc.weight": torch.ones(1, 2), "fc.bias": torch.ones(1), f"fc.{name}": torch.ones(2)}
    done = ckptool.drop(ckptool.from_torch({"model": weights, "optimizer": optimizer}), [f"fc.{name}"])
    assert any("no longer fits" in line for line in done.history) == (name not in BUFFERS)


@pytest.mark.parametrize("name", BUFFERS)
def test_a_model_with_frequencies_of_rotary_embeddings_has_rotary_embeddings(name: str) -> None:
    model = torch.nn.Linear(2, 2)
    model.register_buffer(name, torch.ones(2))
    model.forward = None  # it cannot be followed
    assert signature_of(model).rotary == ("unknown" if name in FREQUENCIES else None)


@pytest.mark.parametrize("name", sorted(COMPUTED))
def test_a_buffer_that_the_file_has_not_needs_no_source_and_a_counter_is_0(name: str) -> None:
    model = torch.nn.Linear(2, 2)
    model.register_buffer(name, torch.ones((), dtype=torch.int64))
    mapping = transfer({"weight": torch.ones(2, 2), "bias": torch.ones(2)}, model)
    assert mapping[name].default
    made = mapping.apply({"weight": torch.ones(2, 2), "bias": torch.ones(2)}).state_dict().tensors
    assert (name in made) == is_counter(name)


def test_matching_leaves_out_what_models_compute() -> None:
    assert table().derived >= COMPUTED
    assert not table().derived & STATISTICS


def test_a_counter_is_the_only_buffer_that_0_stands_for() -> None:
    assert {name for name in BUFFERS if is_counter(name)} == {"num_batches_tracked"}
    assert set(Holds) == set(BUFFERS.values())
