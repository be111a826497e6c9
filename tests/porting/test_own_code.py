"""A file and the code that it was saved from."""

from __future__ import annotations

import pytest

from ckptool.porting.forms.own_code import named_alike

CODE = {"conv.weight": (4, 3), "conv.bias": (4,), "fc.weight": (2, 4)}


def below(*places: str) -> dict[str, tuple[int, ...]]:
    return {f"{place}{key}": shape for place in places for key, shape in CODE.items()}


def test_equal_names_need_no_place() -> None:
    assert named_alike(CODE, {**CODE, **below("ema.")}) == [{key: key for key in CODE}]


def test_a_place_that_the_code_does_not_have_is_passed_over() -> None:
    assert named_alike(CODE, {**below("module.encoder."), "queue": (9,)}) == [
        {key: f"module.encoder.{key}" for key in CODE}
    ]


@pytest.mark.parametrize("place", ["", "module.", "alphafold/evoformer//"])
@pytest.mark.parametrize("around", ["net.", "lit.params."])
def test_modules_around_all_of_the_code_need_not_be_in_the_file(around: str, place: str) -> None:
    (way,) = named_alike(below(around), below(place))
    assert way == {f"{around}{key}": f"{place}{key}" for key in CODE}


def test_the_whole_name_of_the_code_goes_before_its_end() -> None:
    (way,) = named_alike(below("net."), {**below("net."), **below("")})
    assert way == {f"net.{key}": f"net.{key}" for key in CODE}


def test_a_name_with_wrappers_inside_goes_before_the_same_name_without_them() -> None:
    code = {"netG.fc.module.weight": (2, 3), "netD.fc.module.weight": (2, 3)}
    file = {key.replace(".", "/", 1): shape for key, shape in code.items()}
    file |= {key.replace("module.", ""): shape for key, shape in file.items()}
    assert named_alike(code, file) == [{key: key.replace(".", "/", 1) for key in code}]


def test_several_copies_are_several_ways() -> None:
    ways = named_alike(CODE, below("encoder_q.", "encoder_k."))
    assert sorted(way["fc.weight"] for way in ways) == ["encoder_k.fc.weight", "encoder_q.fc.weight"]


def test_paths_of_keras_are_names() -> None:
    file = {"conv/conv/weight:0": (4, 3), "conv/conv/bias:0": (4,), "fc/fc/weight:0": (2, 4)}
    assert named_alike(CODE, file) == [
        {key: f"{key[: -len(key.partition('.')[2]) - 1]}/{key.replace('.', '/')}:0" for key in CODE}
    ]


def test_parts_that_a_file_keeps_apart_are_found_together() -> None:
    code = {f"{net}.{key}": shape for net in ("coarse", "fine") for key, shape in CODE.items()}
    file = {f"{net}_state_dict/{key}": shape for net in ("coarse", "fine") for key, shape in CODE.items()}
    (way,) = named_alike(code, file)
    assert way["fine.conv.bias"] == "fine_state_dict/conv.bias"


def test_a_head_of_another_size_is_left_out_of_many_keys() -> None:
    code = {f"layers.{n}.weight": (3, 3) for n in range(12)} | {"fc.weight": (10, 3)}
    file = {f"module.layers.{n}.weight": (3, 3) for n in range(12)} | {"module.fc.weight": (5, 3)}
    assert named_alike(code, file) == []
    (way,) = named_alike(code, file, share=0.9)
    assert "fc.weight" not in way
    assert len(way) == 12


def test_other_sizes_are_no_way() -> None:
    assert named_alike(CODE, dict.fromkeys(CODE, (7,))) == []


def test_statistics_that_are_kept_apart_are_found_as_well() -> None:
    code = {"norm.scale": (4,), "norm.mean": (4,)}
    file = {"params.norm.scale": (4,), "batch_stats.norm.mean": (4,)}
    (way,) = named_alike(code, file, frozenset({"norm.mean"}))
    assert way["norm.mean"] == "batch_stats.norm.mean"
