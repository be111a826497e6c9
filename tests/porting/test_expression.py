"""Expressions over source tensors: numpy says what they give, and what is inverted comes back."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from sides import lazy_tensor

from ckptool.errors import RuleError
from ckptool.porting import expression as ex
from ckptool.porting.expression import Expr


def values(*shape: int, start: int = 0) -> np.ndarray:
    return (np.arange(np.prod(shape), dtype=np.float32) + start).reshape(shape)


A, B = values(12, 6), values(12, 6, start=500)
IMAGE = values(4, 3, 5, 5)
DOWN, UP = values(2, 6), values(12, 2)
SOURCE = {"a": A, "b.weight": B, "image": IMAGE, "v": values(12), "odd name/x": values(12)}
SOURCE |= {"down": DOWN, "up": UP, "alpha": np.float32(4)}

#: A text, and what numpy makes of the same.
GIVEN = {
    "a": A,
    "transpose(a)": A.T,
    "permute(image, 2, 3, 1, 0)": IMAGE.transpose(2, 3, 1, 0),
    "reshape(a, 2, 6, 6)": A.reshape(2, 6, 6),
    "slice(a, 0, 3, 9)": A[3:9],
    "slice(a, 1, 2, 4)": A[:, 2:4],
    "select(image, 0, 2)": IMAGE[2],
    "cat(0, a, b.weight)": np.concatenate([A, B]),
    "cat(1, a, b.weight)": np.concatenate([A, B], 1),
    "stack(a, b.weight)": np.stack([A, B]),
    "transpose(slice(cat(0, a, b.weight), 0, 6, 18))": np.concatenate([A, B])[6:18].T,
    "of_heads(a, 2, 3, 1)": A.reshape(2, 3, 2, 6)[:, 1].reshape(4, 6),
    "by_heads(3, a, b.weight)": np.stack([A.reshape(3, 4, 6), B.reshape(3, 4, 6)], 1).reshape(24, 6),
    "of_heads(a, 2, 3, 0, 2)": A.reshape(2, 3, 2, 6)[:, :2].reshape(8, 6),
    "by_heads(2, a, down)": np.concatenate([A.reshape(2, 6, 6), DOWN.reshape(2, 1, 6)], 1).reshape(14, 6),
    "rotary(a, 2, half)": A.reshape(2, 3, 2, 6).transpose(0, 2, 1, 3).reshape(12, 6),
    "rotary(a, 2, interleaved)": A.reshape(2, 2, 3, 6).transpose(0, 2, 1, 3).reshape(12, 6),
    "flatten(v, 3, 2, 2, nhwc)": values(12).reshape(3, 2, 2).transpose(1, 2, 0).reshape(12),
    "flatten(v, 3, 2, 2, nchw)": values(12).reshape(2, 2, 3).transpose(2, 0, 1).reshape(12),
    "add(a, b.weight)": A + B,
    "mul(a, b.weight)": A * B,
    "nonzero(v)": (values(12) != 0).astype(np.float32),
    "shift(v, 1.0)": values(12) + 1,
    "scale(v, 0.5)": values(12) / 2,
    "sum(image, 1)": IMAGE.sum(1, keepdims=True),
    "repeat(image, 1, 2)": np.concatenate([IMAGE, IMAGE], 1) / 2,
    "lora(a, down, up, 0.5)": A + UP @ DOWN / 2,
    "lora_alpha(a, down, up, alpha)": A + 2 * UP @ DOWN,
    "grow(v, 0, 14)": np.concatenate([values(12), [5.5, 5.5]]).astype(np.float32),
    "grow(image, 1, 3)": IMAGE,
    "zeros(2, 3)": np.zeros((2, 3), np.float32),
    '"odd name/x"': values(12),
    'shift("odd name/x", -2.0)': values(12) - 2,
}


@pytest.mark.parametrize("text", GIVEN)
def test_an_expression_gives_what_numpy_gives(text: str) -> None:
    made = ex.lazy(ex.parse(text), {key: lazy_tensor(value) for key, value in SOURCE.items()})
    np.testing.assert_array_equal(made.numpy(), GIVEN[text])


@pytest.mark.parametrize("text", GIVEN)
def test_its_shape_is_known_before_anything_is_read(text: str) -> None:
    shapes = {key: value.shape for key, value in SOURCE.items()}
    assert ex.shape_of(ex.parse(text), shapes) == GIVEN[text].shape


@pytest.mark.parametrize("text", GIVEN)
def test_what_is_written_can_be_read_back(text: str) -> None:
    assert str(ex.parse(text)) == text


@pytest.mark.parametrize("text", GIVEN)
def test_the_bytes_that_are_written_are_those_of_the_values(text: str) -> None:
    made = ex.contiguous(ex.lazy(ex.parse(text), {key: lazy_tensor(value) for key, value in SOURCE.items()}))
    assert b"".join(bytes(chunk) for chunk in made.source().chunks()) == GIVEN[text].astype(np.float32).tobytes()


BAD = {
    "": "ends too early",
    "transpose(": "no closing bracket",
    "transpose()": "nothing to work on",
    "rotate(a)": "no operation 'rotate'",
    "cat(0, a": "no closing bracket",
    "a b": "cannot read",
    "(a)": "cannot read",
    '"\\q"': "cannot read",
    '"\\u12"': "cannot read",
    '"a\nb"': "cannot read",
    "transpose(" * 65 + "a" + ")" * 65: "more than 64 operations in each other",
    "transpose(" * 90_000: "more than 64 operations in each other",
    "add(a, " * 5000 + "a" + ")" * 5000: "more than 64 operations in each other",
    "slice(a, 0)": "slice() in 'slice(a, 0)' is given something else than it takes",
    "slice(a, 0, 1, 2, 3)": "something else",
    "slice(a, 0, x, y)": "something else",
    "slice(a, 0, 0.0, 2.0)": "something else",
    "slice(a, -1, 0, 2)": "something else",
    "slice(a, 0, 0, 9999999999999999999)": "something else",
    "weight_norm(a)": "something else",
    "transpose(a, a)": "something else",
    "mul(a)": "something else",
    "rotary(a, half, 2)": "something else",
    "shift(a, x)": "something else",
    "scale(a, nan)": "something else",
    "scale(a, 1e999)": "something else",
    "zeros(-1)": "something else",
}


@pytest.mark.parametrize("text", BAD, ids=lambda text: f"{len(text)}: {text[:40]}")
def test_what_cannot_be_read_is_said_in_one_sentence(text: str) -> None:
    with pytest.raises(RuleError, match=re.escape(BAD[text])) as caught:
        ex.parse(text)
    assert len(caught.value.what) < 400


def test_operations_stand_in_each_other_up_to_a_depth() -> None:
    text = "transpose(" * 64 + "a" + ")" * 64
    assert str(ex.parse(text)) == text


@pytest.mark.parametrize("number", ["0.1", "-2.5", "1e-05", "1e+22", "5e-324", "1.7976931348623157e+308", "-0.0", "3"])
def test_a_number_is_written_and_read_back(number: str) -> None:
    read = ex.parse(f"scale(a, {number})")
    assert (str(read), float(read.params[0])) == (f"scale(a, {number})", float(number))


WORDS = st.sampled_from(["a", "v", "image", "up", "alpha", '"odd name/x"', "0", "1", "2", "7", "-1", "0.5", "half", ""])
CALLS = st.recursive(
    WORDS,
    lambda inner: st.builds(
        lambda name, args: f"{name}({', '.join(args)})", st.sampled_from([*ex.OPERATIONS]), st.lists(inner, max_size=4)
    ),
    max_leaves=8,
)


@given(CALLS | st.text('a()," \\1cat'))
@example("resize(a, 0, 4, 3, 0, 2)")
@example("repeat(a, 0, 0)")
@example("by_heads(0, a, a)")
@example("of_heads(a, 0, 0, 0)")
@example("norm(alpha)")
@example("cat(0, alpha, alpha)")
@example("add(v, a)")
@example("weight_norm(image, a)")
@example("spectral_norm(a, v, v)")
@example("fold_weight(alpha, v, v, 1)")
@example("slice(repeat(v, 0, 1000000000), 0, 0, 12)")
@example("slice(grow(v, 0, 1000000000), 0, 0, 12)")
@example("sum(zeros(1000000, 1000000), 1)")
@example("resize(a, 0, 3, 4, 100000, 100000)")
def test_a_text_gives_the_bytes_of_its_shape_or_is_refused(text: str) -> None:
    tensors = {key: lazy_tensor(value) for key, value in SOURCE.items()}
    shapes = {key: tensor.shape for key, tensor in tensors.items()}
    try:
        read = ex.parse(text)
        shape = ex.shape_of(read, shapes)
        made = ex.contiguous(ex.lazy(read, tensors))
    except RuleError:
        return
    assert ex.parse(str(read)) == read
    assert made.shape == shape
    with np.errstate(all="ignore"):
        assert sum(len(chunk) for chunk in made.source().chunks()) == 4 * math.prod(shape)
    ex.inverted("t", read, shapes)


UNFIT = {
    "transpose(v)": "two dimensions",
    "reshape(a, 7, 7)": "cannot be seen as",
    "slice(a, 0, 3, 13)": "no elements",
    "cat(0, a, image)": "cannot join",
    "rotary(a, 5, half)": "heads",
    "rotary(a, 2, sideways)": "neither half nor interleaved",
    "nothing": "there is no nothing",
    "cat(4, a, a)": "no dimension 4",
    "add(v, a)": "cannot be added to",
    "spectral_norm(a, v, v)": "not the vectors of",
    "fold_weight(image, v, v, 0.1)": "does not have the rows",
    "fold_weight(v, v, v, -0.1)": "the eps -0.1 is negative",
    "fold_bias(image, v, v, v, v, 0.1)": "is not a bias",
    "repeat(a, 0, 0)": "cannot be repeated 0 times",
    "resize(a, 0, 4, 3, 0, 2)": "is not a grid",
    "rotary(a, 0, half)": "no 0 heads",
}


@pytest.mark.parametrize("text", UNFIT)
def test_what_does_not_fit_the_source_is_refused_before_anything_is_read(text: str) -> None:
    with pytest.raises(RuleError, match=UNFIT[text]):
        ex.shape_of(ex.parse(text), {key: value.shape for key, value in SOURCE.items()})


# ---------------------------------------------------------------------------------------------------- inversion

SIDES = st.sampled_from([2, 4, 6])


@st.composite
def rearrangements(draw: st.DrawFn) -> Expr:
    """Something that keeps all values of one tensor `x` [12, 8]."""
    made, shape = ex.of("x"), (12, 8)
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["transpose", "reshape", "rotary", "shift", "flatten", "permute"]))
        if kind == "transpose" and len(shape) >= 2:
            made, shape = ex.transpose(made), (*shape[:-2], shape[-1], shape[-2])
        elif kind == "permute":
            dims = tuple(draw(st.permutations(range(len(shape)))))
            made, shape = ex.permute(made, *dims), tuple(shape[d] for d in dims)
        elif kind == "reshape":
            shape = draw(st.sampled_from([(12, 8), (96,), (4, 24), (2, 6, 8), (3, 4, 2, 4)]))
            made = ex.reshape(made, shape)
        elif kind == "rotary" and shape[0] % 4 == 0:
            made = ex.rotary(made, 2, draw(st.sampled_from(["half", "interleaved"])))
        elif kind == "flatten" and shape[-1] == 8:
            made = ex.flatten(made, 2, 2, 2, draw(st.sampled_from(["nchw", "nhwc"])))
        elif kind == "shift":
            made = ex.shift(made, 1.0)
    return made


@given(rearrangements())
def test_what_only_rearranges_comes_back_by_its_inverse(made: Expr) -> None:
    x = values(12, 8)
    forth = ex.lazy(made, {"x": lazy_tensor(x)}).numpy()
    back = ex.inverted("y", made, {"x": x.shape})
    assert back is not None
    ((expr, piece),) = back["x"]
    assert piece == ex.of("x")
    np.testing.assert_array_equal(ex.lazy(expr, {"y": lazy_tensor(forth)}).numpy(), x)


@given(rearrangements())
def test_the_simpler_form_of_an_expression_gives_the_same(made: Expr) -> None:
    x = values(12, 8)
    simple = ex.simplified(made, {"x": x.shape})
    np.testing.assert_array_equal(
        ex.lazy(simple, {"x": lazy_tensor(x)}).numpy(), ex.lazy(made, {"x": lazy_tensor(x)}).numpy()
    )


@pytest.mark.parametrize(
    "parts",
    [
        [f"slice(x, 0, {4 * i}, {4 * i + 4})" for i in range(3)],
        [f"of_heads(x, 2, 3, {i})" for i in range(3)],
        ["of_heads(x, 2, 6, 0, 4)", "of_heads(x, 2, 6, 4)", "of_heads(x, 2, 6, 5)"],
        [f"select(x, 0, {i})" for i in range(12)],
    ],
)
def test_parts_taken_out_of_one_tensor_are_put_together_again(parts: list[str]) -> None:
    x = values(12, 8)
    shapes = {"x": x.shape}
    made = [ex.parse(text) for text in parts]
    pieces = [p for i, part in enumerate(made) for p in (ex.inverted(f"y{i}", part, shapes) or {})["x"]]
    whole = ex.reassembled(pieces, x.shape)
    assert whole is not None
    tensors = {f"y{i}": lazy_tensor(ex.lazy(part, {"x": lazy_tensor(x)}).numpy()) for i, part in enumerate(made)}
    np.testing.assert_array_equal(ex.lazy(whole, tensors).numpy(), x)
    assert ex.reassembled(pieces[:-1], x.shape) is None


LOST = ["sum(x, 0)", "grow(x, 0, 14)", "weight_norm(x, x)", "repeat(x, 0, 2)", "slice(transpose(x), 0, 0, 2)"]


@pytest.mark.parametrize("text", LOST)
def test_what_loses_values_has_no_inverse(text: str) -> None:
    assert ex.inverted("y", ex.parse(text), {"x": (12, 8)}) is None


def test_the_scale_of_every_adapter_of_one_weight_is_changed() -> None:
    both = ex.parse("cat(0, lora(lora(w, a, b, 0.5), c, d, 0.5), transpose(lora(x, e, f, 0.5)))")
    assert str(ex.rescaled(both, 2.0)) == str(both).replace("0.5", "2.0")


def test_what_is_taken_apart_and_put_together_again_is_a_copy() -> None:
    text = "cat(0, slice(x, 0, 0, 4), slice(x, 0, 4, 8), slice(x, 0, 8, 12))"
    assert str(ex.simplified(ex.parse(text), {"x": (12, 8)})) == "x"
    assert str(ex.simplified(ex.parse("slice(cat(0, q, k), 0, 4, 8)"), {"q": (4, 2), "k": (4, 2)})) == "k"


@given(heads=st.integers(1, 4), rows=st.lists(st.integers(1, 3), min_size=2, max_size=4))
def test_parts_that_alternate_by_head_are_put_together_and_taken_apart_again(heads: int, rows: list[int]) -> None:
    parts = {f"p{i}": values(heads * n, 2, start=100 * i) for i, n in enumerate(rows)}
    tensors = {key: lazy_tensor(value) for key, value in parts.items()}
    whole = ex.by_heads(heads, *map(ex.of, parts))
    held = ex.lazy(whole, tensors).numpy().reshape(heads, sum(rows), 2)
    shapes = {key: value.shape for key, value in parts.items()}
    for key, back in (ex.inverted("x", whole, shapes) or {}).items():
        ((expr, _),) = back
        flat = {"x": lazy_tensor(held.reshape(-1, 2))}
        np.testing.assert_array_equal(ex.lazy(expr, flat).numpy(), parts[key])
    apart = ex.cut_by_heads(ex.of("x"), heads, rows)
    assert str(ex.simplified(ex.by_heads(heads, *apart), {"x": (heads * sum(rows), 2)})) == "x"
    assert [ex.simplified(one, shapes) for one in ex.cut_by_heads(whole, heads, rows)] == list(map(ex.of, parts))


def test_parts_that_alternate_by_other_heads_are_not_those_that_were_joined() -> None:
    shapes = {"a": (8, 2), "b": (4, 2)}
    for text in ("of_heads(by_heads(2, a, b), 4, 3, 2)", "of_heads(by_heads(2, a, b), 2, 3, 0)"):
        assert str(ex.simplified(ex.parse(text), shapes)) == text
    assert str(ex.simplified(ex.parse("of_heads(by_heads(2, a, b), 2, 3, 0, 2)"), shapes)) == "a"


def test_a_sum_keeps_float64_and_rounds_bfloat16_once(torch) -> None:  # type: ignore[no-untyped-def]
    from ckptool.torch_bridge import from_torch, to_torch

    x = torch.randn(64, 32, generator=torch.Generator().manual_seed(0))
    for dtype in (torch.float64, torch.bfloat16, torch.float16):
        own = x.to(dtype)
        tensors = dict(from_torch({"x": own, "y": own * 3}).state_dict().tensors)
        made = to_torch(ex.lazy(ex.parse("add(x, y)"), tensors))
        assert made.dtype == dtype
        wide = own.double() if dtype == torch.float64 else own.float()
        assert torch.equal(made, (wide + (own * 3).to(wide.dtype)).to(dtype))


def test_norms_are_those_of_torch(torch) -> None:  # type: ignore[no-untyped-def]
    from torch.nn.utils import parametrizations

    from ckptool.torch_bridge import from_torch, to_torch

    torch.manual_seed(0)
    layer = parametrizations.weight_norm(torch.nn.Conv2d(3, 4, 3))
    tensors = dict(from_torch(dict(layer.state_dict())).state_dict().tensors)
    made = ex.parse("weight_norm(parametrizations.weight.original0, parametrizations.weight.original1)")
    torch.testing.assert_close(to_torch(ex.lazy(made, tensors)), layer.weight.detach())

    layer = torch.nn.utils.spectral_norm(torch.nn.Linear(6, 4)).eval()
    tensors = dict(from_torch({k: v.detach() for k, v in layer.state_dict().items()}).state_dict().tensors)
    _ = layer(torch.zeros(1, 6))
    made = ex.parse("spectral_norm(weight_orig, weight_u, weight_v)")
    torch.testing.assert_close(to_torch(ex.lazy(made, tensors)), layer.weight.detach())


@pytest.mark.parametrize(("old", "new"), [(7, 14), (14, 7), (16, 24), (4, 4)])
def test_a_position_table_is_resized_as_torch_does(torch, old: int, new: int) -> None:  # type: ignore[no-untyped-def]
    from ckptool.torch_bridge import from_torch, to_torch

    table = torch.randn(1, 1 + old * old, 8, generator=torch.Generator().manual_seed(1))
    grid = table[:, 1:].reshape(1, old, old, 8).permute(0, 3, 1, 2)
    grid = torch.nn.functional.interpolate(grid, (new, new), mode="bicubic", antialias=True, align_corners=False)
    expected = torch.cat([table[:, :1], grid.permute(0, 2, 3, 1).reshape(1, new * new, 8)], 1)
    tensors = dict(from_torch({"pos": table}).state_dict().tensors)
    made = ex.parse(f"resize(pos, 1, {old}, {old}, {new}, {new})")
    torch.testing.assert_close(to_torch(ex.lazy(made, tensors)), expected, rtol=1e-4, atol=1e-5)


def test_batch_norms_are_folded_as_torch_does(torch) -> None:  # type: ignore[no-untyped-def]
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    from ckptool.torch_bridge import from_torch, to_torch

    torch.manual_seed(0)
    conv, norm = torch.nn.Conv2d(3, 4, 3, bias=False).eval(), torch.nn.BatchNorm2d(4).eval()
    for value in (norm.weight, norm.bias, norm.running_mean):
        torch.nn.init.normal_(value)
    torch.nn.init.uniform_(norm.running_var, 0.5, 2)
    fused = fuse_conv_bn_eval(conv, norm)
    state = {"w": conv.weight.detach(), "g": norm.weight.detach(), "b": norm.bias.detach()}
    state |= {"m": norm.running_mean, "v": norm.running_var}
    tensors = dict(from_torch(state).state_dict().tensors)
    weight = to_torch(ex.lazy(ex.parse("fold_weight(w, g, v, 1e-05)"), tensors))
    bias = to_torch(ex.lazy(ex.parse("fold_bias(zeros(4), g, b, m, v, 1e-05)"), tensors))
    torch.testing.assert_close(weight, fused.weight.detach())
    torch.testing.assert_close(bias, fused.bias.detach())


def test_zeros_have_the_type_of_the_source_and_none_without_one() -> None:
    source = {"a": lazy_tensor(A)}
    assert ex.lazy(ex.zeros(2, 3), source).dtype.name == "float32"
    with pytest.raises(RuleError, match=r"no tensors, so zeros\(2, 3\) has no element type"):
        ex.lazy(ex.zeros(2, 3), {})


def test_norms_of_two_dimensions_are_none_of_a_weight_norm() -> None:
    with pytest.raises(RuleError, match=r"the norms \[2, 3\] are not those of \[6, 3\]"):
        ex.shape_of(ex.parse("weight_norm(g, v)"), {"g": (2, 3), "v": (6, 3)})


def test_a_permutation_of_a_reshape_that_changes_nothing_is_a_copy() -> None:
    x = ex.parse("permute(reshape(a, 1, 4, 3), 1, 0, 2)")
    assert str(ex.simplified(ex.parse("reshape(permute(reshape(a, 4, 1, 3), 1, 0, 2), 4, 3)"), {"a": (4, 3)})) == "a"
    assert str(ex.simplified(x, {"a": (4, 1, 3)})) == "a"
