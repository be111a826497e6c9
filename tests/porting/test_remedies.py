"""Other sizes: each known way is taken, and called a guess."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from sides import found, pairing, signature, wanted, worked_out

from ckptool.porting.port import port

RANDOM = np.random.default_rng(0)
WIDTH = 6


def language_model(words: int, places: int = 16, *, head: bool = True) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"wte.weight": (words, WIDTH), "wpe.weight": (places, WIDTH)}
    shapes |= {f"h.{n}.fc.weight": (61, WIDTH) for n in range(2)} | {"norm.weight": (WIDTH,)}
    return shapes | ({"lm_head.weight": (words, WIDTH), "lm_head.bias": (words,)} if head else {})


def filled(shapes: dict[str, tuple[int, ...]]) -> dict[str, np.ndarray[Any, Any]]:
    return {key: RANDOM.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}


@given(have=st.integers(5, 20), want=st.integers(5, 20))
def test_a_table_of_words_and_the_layer_over_them_shrink_and_grow_together(have: int, want: int) -> None:
    assume(2 * have != want and have != 2 * want)  # which two tables in one would explain as well
    source = filled(language_model(have))
    made = worked_out(source, language_model(want))
    kept = min(have, want)
    for key in ("wte.weight", "lm_head.weight", "lm_head.bias"):
        assert made[key].status == ("mapped" if have == want else "guessed")
        np.testing.assert_array_equal(made[key].values[:kept], source[key][:kept])
        if want > have:
            mean = source[key].mean(0)
            np.testing.assert_allclose(made[key].values[have:], np.stack([mean] * (want - have)), rtol=1e-5, atol=1e-6)


def test_an_output_layer_that_the_file_ties_to_a_padded_table_takes_its_first_words() -> None:
    source = filled(language_model(20, head=False))
    made = worked_out(source, language_model(17) | {"lm_head.bias": (3,)})
    assert made["lm_head.weight"].status == "guessed"
    np.testing.assert_array_equal(made["lm_head.weight"].values, source["wte.weight"][:17])


def test_a_new_head_stays_a_new_head() -> None:
    shapes = language_model(20, head=False) | {"classifier.weight": (10, WIDTH), "classifier.bias": (10,)}
    mapping = port(signature(shapes), wanted(shapes | {"classifier.weight": (3, WIDTH), "classifier.bias": (3,)}))
    assert found(mapping, "classifier.weight").status == "unmapped"


@given(have=st.integers(6, 24), want=st.integers(6, 24))
def test_positions_of_a_sequence_are_cut_padded_or_resized_and_called_a_guess(have: int, want: int) -> None:
    source = filled(language_model(20, have))
    made = worked_out(source, language_model(20, want))["wpe.weight"]
    assert made.status == ("mapped" if have == want else "guessed")
    assert made.values.shape == (want, WIDTH)
    squares = {n * n for n in range(6)}
    if any(have - prefix in squares and want - prefix in squares for prefix in range(3)):
        return  # a grid
    if 0 < have - want <= 2:
        np.testing.assert_array_equal(made.values, source["wpe.weight"][have - want :])
    elif have > want:
        np.testing.assert_array_equal(made.values, source["wpe.weight"][:want])
    elif 0 < want - have <= 2:
        np.testing.assert_array_equal(made.values[want - have :], source["wpe.weight"])


@pytest.mark.parametrize("frames", [3, 5])
def test_a_kernel_repeated_for_frames_sees_a_still_film_as_the_picture(frames: int) -> None:
    torch = pytest.importorskip("torch")
    source = {
        "conv.weight": RANDOM.standard_normal((4, 3, 3, 3)).astype(np.float32),
        "fc.weight": filled({"a": (2, 4)})["a"],
    }
    made = worked_out(source, {"conv.weight": (4, 3, frames, 3, 3), "fc.weight": (2, 4)})["conv.weight"]
    assert made.status == "guessed"
    picture = torch.randn(1, 3, 8, 8)
    film = picture[:, :, None].expand(-1, -1, frames, -1, -1)
    seen = torch.nn.functional.conv3d(film, torch.from_numpy(made.values))[:, :, 0]
    torch.testing.assert_close(seen, torch.nn.functional.conv2d(picture, torch.from_numpy(source["conv.weight"])))
    back = worked_out(
        {"conv.weight": made.values, "fc.weight": source["fc.weight"]}, {k: v.shape for k, v in source.items()}
    )
    np.testing.assert_allclose(back["conv.weight"].values, source["conv.weight"], rtol=1e-5, atol=1e-6)


@given(length=st.integers(2, 5), width=st.integers(2, 5))
def test_a_kernel_over_a_map_of_one_channel_is_one_over_its_rows(length: int, width: int) -> None:
    shapes: dict[str, tuple[int, ...]] = {"conv.weight": (4, 1, length, width), "conv.bias": (4,), "fc.weight": (2, 4)}
    source = filled(shapes)
    other = shapes | {"conv.weight": (4, width, length)}
    made = worked_out(source, other)
    assert made["conv.weight"].status == ("mapped" if length != width else "guessed")
    np.testing.assert_array_equal(made["conv.weight"].values, source["conv.weight"][:, 0].transpose(0, 2, 1))
    back = worked_out({key: made[key].values for key in other}, shapes)
    np.testing.assert_array_equal(back["conv.weight"].values, source["conv.weight"])


def test_a_convolution_over_rows_gives_what_the_one_over_the_map_gave() -> None:
    torch = pytest.importorskip("torch")
    weight = torch.randn(4, 1, 3, 5)
    rows = torch.randn(2, 7, 5)
    over_map = torch.nn.functional.conv2d(rows[:, None], weight)[..., 0]
    made = worked_out(
        {"conv.weight": weight.numpy(), "fc.bias": np.zeros(2, np.float32)}, {"conv.weight": (4, 5, 3), "fc.bias": (2,)}
    )
    over_rows = torch.nn.functional.conv1d(rows.transpose(1, 2), torch.from_numpy(made["conv.weight"].values.copy()))
    torch.testing.assert_close(over_rows, over_map, rtol=1e-4, atol=1e-5)


def test_a_norm_beside_a_convolution_of_other_inputs_is_known_by_its_place() -> None:
    norm = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), (8,))
    source = {"features.0.weight": (8, 6, 3, 3)} | {f"features.1.{leaf}": size for leaf, size in norm.items()}
    source |= {"features.3.weight": (16, 8, 3, 3), "classifier.weight": (10, 16)}
    target = {"stem.weight": (8, 12, 3, 3)} | {f"bn.{leaf}": size for leaf, size in norm.items()}
    target |= {"body.weight": (16, 8, 3, 3), "head.weight": (10, 16)}
    mapping = port(signature(source), wanted(target, used=target))
    assert {key: value for key, value in pairing(mapping).items() if key.startswith("bn")} == {
        f"bn.{leaf}": f"features.1.{leaf}" for leaf in norm
    }
    assert {e.target for e in mapping.having("guessed")} == {"stem.weight", *(f"bn.{leaf}" for leaf in norm)}


@pytest.mark.parametrize("size", [2, 4])
def test_a_transposed_convolution_of_one_pixel_is_a_linear_layer_and_a_guess(size: int) -> None:
    torch = pytest.importorskip("torch")
    source = filled({"first.weight": (5, 3, size, size), "up.weight": (3, 7, 2, 2), "up.bias": (7,)})
    shapes: dict[str, tuple[int, ...]] = {
        "first.weight": (3 * size * size, 5),
        "up.weight": (3, 7, 2, 2),
        "up.bias": (7,),
    }
    made = worked_out(source, shapes)
    assert made["first.weight"].status == "guessed"
    noise = torch.randn(2, 5)
    expected = torch.nn.functional.conv_transpose2d(noise[..., None, None], torch.from_numpy(source["first.weight"]))
    given_by = torch.nn.functional.linear(noise, torch.from_numpy(made["first.weight"].values.copy()))
    torch.testing.assert_close(given_by.view_as(expected), expected)
    back = worked_out({key: made[key].values for key in shapes}, {key: value.shape for key, value in source.items()})
    np.testing.assert_array_equal(back["first.weight"].values, source["first.weight"])


def test_a_bilinear_layer_of_one_output_is_no_square_layer_with_a_bias_for_each_output() -> None:
    source = {"gcn.fc.weight": (6, 5), "gcn.bias": (6,), "disc.f_k.weight": (1, 6, 6), "disc.f_k.bias": (1,)}
    target = {
        "gcn.fc.weight": (6, 5),
        "gcn.bias": (6,),
        "hidden.weight": (6, 6),
        "hidden.bias": (6,),
        "end.weight": (2, 6),
    }
    assert pairing(port(signature(source), wanted(target))) == {key: key for key in source if key.startswith("gcn")}
