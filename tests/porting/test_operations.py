"""Laws that every operation keeps: torch says what it gives, its shape is known, its text and its inverse come back."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from sides import lazy_tensor

from ckptool.porting import emitting
from ckptool.porting import expression as ex
from ckptool.porting.expression import OPERATIONS, Expr

Shape = tuple[int, ...]
Draw = Callable[[Any], Any]


@dataclass(frozen=True)
class Law:
    """How calls of an operation are drawn, and what they give.

    Attributes:
        call: draws the sizes of its tensors and its parameters, where the first tensor has the sizes that are given.
        oracle: what torch makes of the tensors and the parameters.
        inverse: "exact", "rounded", "of all parts", or "" for one that loses values.
    """

    call: Callable[[Draw, Shape], tuple[list[Shape], tuple[Any, ...]]]
    oracle: Callable[..., Any]
    inverse: str = ""


def whole(n: int) -> list[int]:
    return [d for d in range(1, n + 1) if n % d == 0]


def sizes_for(draw: Draw, n: int) -> Shape:
    first = draw(st.sampled_from(whole(n)))
    return draw(st.sampled_from([(n,), (first, n // first), (first, 1, n // first)]))


def dimension(draw: Draw, shape: Shape) -> int:
    assume(shape)
    return draw(st.integers(0, len(shape) - 1))


def cut(draw: Draw, shape: Shape) -> Any:
    dim = dimension(draw, shape)
    start, stop = sorted(draw(st.lists(st.integers(0, shape[dim]), min_size=2, max_size=2, unique=True)))
    return [shape], (dim, start, stop)


def element(draw: Draw, shape: Shape) -> Any:
    dim = dimension(draw, shape)
    return [shape], (dim, draw(st.integers(0, shape[dim] - 1)))


def alternating(draw: Draw, shape: Shape) -> Any:
    assume(shape)
    heads = draw(st.sampled_from(whole(shape[0])))
    n = draw(st.sampled_from(whole(shape[0] // heads)))
    start, stop = sorted(draw(st.lists(st.integers(0, n), min_size=2, max_size=2, unique=True)))
    return [shape], (heads, n, start) if stop == start + 1 else (heads, n, start, stop)


def joined(draw: Draw, shape: Shape) -> Any:
    dim = dimension(draw, shape)
    more = draw(st.lists(st.integers(1, 3), max_size=2))
    return [shape, *((*shape[:dim], n, *shape[dim + 1 :]) for n in more)], (dim,)


def by_heads(draw: Draw, shape: Shape) -> Any:
    assume(shape)
    heads = draw(st.sampled_from(whole(shape[0])))
    more = draw(st.lists(st.integers(1, 2), max_size=2))
    return [shape, *((heads * n, *shape[1:]) for n in more)], (heads,)


def rotary(draw: Draw, shape: Shape) -> Any:
    assume(shape and shape[0] % 2 == 0)
    return [shape], (draw(st.sampled_from(whole(shape[0] // 2))), draw(st.sampled_from(["half", "interleaved"])))


def flatten(draw: Draw, shape: Shape) -> Any:
    assume(shape)
    c = draw(st.sampled_from(whole(shape[-1])))
    h = draw(st.sampled_from(whole(shape[-1] // c)))
    return [shape], (c, h, shape[-1] // c // h, draw(st.sampled_from(["nchw", "nhwc"])))


def low_rank(draw: Draw, shape: Shape) -> Any:
    assume(len(shape) >= 2)
    rank = draw(st.integers(1, 3))
    return [shape, (rank, math.prod(shape[1:])), (shape[0], rank)], (draw(st.sampled_from([0.5, 2, -1.5])),)


def with_alpha(draw: Draw, shape: Shape) -> Any:
    shapes, _ = low_rank(draw, shape)
    return [*shapes, draw(st.sampled_from([(), (1,)]))], ()


def grid(draw: Draw, shape: Shape) -> Any:
    assume(len(shape) >= 2)
    prefix = draw(st.integers(0, shape[-2] - 1))
    h = draw(st.sampled_from(whole(shape[-2] - prefix)))
    return [shape], (prefix, h, (shape[-2] - prefix) // h, draw(st.integers(1, 4)), draw(st.integers(1, 4)))


def rows(count: int) -> Callable[[Draw, Shape], Any]:
    def call(draw: Draw, shape: Shape) -> Any:
        assume(shape)
        return [shape, *[shape[:1]] * count], (1e-05,)

    return call


def vectors(draw: Draw, shape: Shape) -> Any:
    assume(len(shape) >= 2)
    return [shape, shape[:1], (math.prod(shape[1:]),)], ()


def norms(draw: Draw, shape: Shape) -> Any:
    assume(shape)
    return draw(st.sampled_from([[(shape[0], *[1] * (len(shape) - 1)), shape], [(1,), shape]])), ()


def one(draw: Draw, shape: Shape) -> Any:
    return [shape], ()


def number(draw: Draw, shape: Shape) -> Any:
    return [shape], (draw(st.sampled_from([1.0, -2.5, 3, 0.125])),)


# what torch makes of it


def turned_pairs(x: Any, heads: int, to: str) -> Any:
    inner = (x.shape[0] // heads // 2, 2) if to == "half" else (2, x.shape[0] // heads // 2)
    return x.unflatten(0, (heads, *inner)).transpose(1, 2).flatten(0, 2)


def other_flattening(x: Any, c: int, h: int, w: int, to: str) -> Any:
    if to == "nhwc":
        return x.unflatten(-1, (c, h, w)).movedim(-3, -1).flatten(-3)
    return x.unflatten(-1, (h, w, c)).movedim(-1, -3).flatten(-3)


def parts_of_heads(x: Any, heads: int, n: int, start: int, stop: int | None = None) -> Any:
    each = x.unflatten(0, (heads, n, x.shape[0] // heads // n))
    return each[:, start : start + 1 if stop is None else stop].flatten(0, 2)


def interleaved(torch: Any, *given: Any) -> Any:
    *parts, heads = given
    return torch.cat([p.unflatten(0, (heads, p.shape[0] // heads)) for p in parts], 1).flatten(0, 1)


def merged(torch: Any, w: Any, a: Any, b: Any, scale: Any) -> Any:
    return w + scale * (b @ a).reshape(w.shape)


def normed(torch: Any, g: Any, v: Any) -> Any:
    rows = v.reshape(g.numel(), -1)
    return (rows / rows.norm(dim=1, keepdim=True) * g.reshape(-1, 1)).reshape(v.shape)


def resampled(torch: Any, x: Any, prefix: int, h: int, w: int, new_h: int, new_w: int) -> Any:
    lead = x.shape[:-2]
    image = x[..., prefix:, :].reshape(-1, h, w, x.shape[-1]).movedim(-1, 1)
    turned = new_w == 1  # torch gives all places of one new column the same value, and those of one row their own
    size = (new_w, new_h) if turned else (new_h, new_w)
    image = torch.nn.functional.interpolate(image.mT if turned else image, size, mode="bicubic", antialias=True)
    image = image.mT if turned else image
    return torch.cat([x[..., :prefix, :], image.movedim(1, -1).reshape(*lead, new_h * new_w, x.shape[-1])], -2)


def folded(torch: Any, w: Any, gamma: Any, var: Any, eps: float) -> Any:
    return w * (gamma * (var + eps).rsqrt()).reshape(-1, *[1] * (w.ndim - 1))


LAWS = {
    "transpose": Law(lambda draw, s: ([assume(len(s) >= 2) and s], ()), lambda t, x: x.mT, "exact"),
    "permute": Law(
        lambda draw, s: ([s], tuple(draw(st.permutations(range(len(s)))))), lambda t, x, *d: x.permute(d), "exact"
    ),
    "reshape": Law(lambda draw, s: ([s], sizes_for(draw, math.prod(s))), lambda t, x, *n: x.reshape(n), "exact"),
    "slice": Law(cut, lambda t, x, d, a, b: x.narrow(d, a, b - a), "of all parts"),
    "select": Law(element, lambda t, x, d, i: x.select(d, i), "of all parts"),
    "cat": Law(joined, lambda t, *given: t.cat(given[:-1], given[-1]), "exact"),
    "stack": Law(lambda draw, s: ([s] * draw(st.integers(1, 3)), ()), lambda t, *x: t.stack(x), "exact"),
    "rotary": Law(rotary, lambda t, x, *p: turned_pairs(x, *p), "exact"),
    "of_heads": Law(alternating, lambda t, x, *p: parts_of_heads(x, *p), "of all parts"),
    "by_heads": Law(by_heads, interleaved, "exact"),
    "flatten": Law(flatten, lambda t, x, *p: other_flattening(x, *p), "exact"),
    "weight_norm": Law(norms, normed),
    "norm": Law(
        lambda draw, s: ([assume(s) and s], ()),
        lambda t, v: (v * v).reshape(v.shape[0], -1).sum(1).sqrt().reshape(-1, *[1] * (v.ndim - 1)),
    ),
    "spectral_norm": Law(vectors, lambda t, w, u, v: w / t.dot(u, w.flatten(1) @ v)),
    "lora": Law(low_rank, merged),
    "lora_alpha": Law(with_alpha, lambda t, w, a, b, alpha: merged(t, w, a, b, alpha.reshape(()) / a.shape[0])),
    "fold_weight": Law(rows(2), folded),
    "fold_bias": Law(
        lambda draw, s: rows(4)(draw, s[:1]),
        lambda t, b, gamma, beta, mean, var, eps: (b - mean) * gamma / t.sqrt(var + eps) + beta,
    ),
    "add": Law(
        lambda draw, s: ([s, *draw(st.lists(st.sampled_from([s, s[1:], tuple(1 for _ in s)]), max_size=2))], ()),
        lambda t, *x: t.stack(t.broadcast_tensors(*x)).sum(0),
    ),
    "mul": Law(
        lambda draw, s: ([s, draw(st.sampled_from([s, s[1:], tuple(1 for _ in s)]))], ()), lambda t, x, y: x * y
    ),
    "nonzero": Law(one, lambda t, x: (x != 0).to(x.dtype)),
    "shift": Law(number, lambda t, x, n: x + n, "rounded"),
    "scale": Law(number, lambda t, x, n: x * n, "rounded"),
    "flip": Law(
        lambda draw, s: (
            [assume(s) and s],
            tuple(draw(st.lists(st.integers(0, len(s) - 1), min_size=1, max_size=len(s), unique=True))),
        ),
        lambda t, x, *d: x.flip(d),
        "exact",
    ),
    "sum": Law(lambda draw, s: ([s], (dimension(draw, s),)), lambda t, x, d: x.sum(d, keepdim=True)),
    "repeat": Law(
        lambda draw, s: ([s], (dimension(draw, s), draw(st.integers(1, 3)))),
        lambda t, x, d, n: x.repeat(*(n if i == d else 1 for i in range(x.ndim))) / n,
    ),
    "grow": Law(
        lambda draw, s: ([s], (d := dimension(draw, s), s[d] + draw(st.integers(0, 3)))),
        lambda t, x, d, n: t.cat([x, x.mean(d, keepdim=True).repeat_interleave(n - x.shape[d], d)], d),
    ),
    "pad": Law(
        lambda draw, s: ([s], (dimension(draw, s), draw(st.integers(0, 3)))),
        lambda t, x, d, n: t.nn.functional.pad(x, [0, 0] * (x.ndim - 1 - d) + [n, n]),
        "exact",
    ),
    "eye": Law(lambda draw, s: ([], (len(s) + 1,)), lambda t, n: t.eye(n), "exact"),
    "zeros": Law(lambda draw, s: ([], s), lambda t, *n: t.zeros(n), "exact"),
    "resize": Law(grid, resampled),
}


def test_every_operation_has_a_law() -> None:
    assert LAWS.keys() == OPERATIONS.keys()


def values(shape: Shape, seed: int) -> np.ndarray[Any, Any]:
    """Positive, so that they can be variances; no two alike."""
    return np.asarray(np.random.default_rng(seed).uniform(0.5, 2, shape), np.float32)


def called(draw: Draw, op: str, shape: Shape) -> tuple[Expr, dict[str, np.ndarray[Any, Any]]]:
    shapes, params = LAWS[op].call(draw, shape)
    tensors = {f"x{i}": values(s, i) for i, s in enumerate(shapes)}
    return Expr(op, tuple(map(ex.of, tensors)), params), tensors


SHAPES = st.lists(st.sampled_from([1, 2, 3, 4, 6, 12]), max_size=3).map(tuple)
quick = settings(max_examples=15, suppress_health_check=[HealthCheck.filter_too_much])


def given_by(x: Expr, tensors: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    beside = {"": np.zeros(1, np.float32)}  # a source has tensors, even if an expression reads none
    return ex.lazy(x, {key: lazy_tensor(value) for key, value in (beside | tensors).items()}).numpy()


@pytest.mark.parametrize("op", OPERATIONS)
@quick
@given(data=st.data(), shape=SHAPES)
def test_numpy_gives_what_torch_gives_in_the_shape_that_was_said(torch: Any, op: str, data: Any, shape: Shape) -> None:
    x, tensors = called(data.draw, op, shape)
    made = given_by(x, tensors)
    expected = LAWS[op].oracle(torch, *map(torch.from_numpy, tensors.values()), *x.params)
    assert made.shape == tuple(expected.shape) == ex.shape_of(x, {key: value.shape for key, value in tensors.items()})
    np.testing.assert_allclose(made, expected.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("op", [op for op in OPERATIONS if op not in ("zeros", "eye", "resize", "lora_alpha")])
@quick
@given(data=st.data(), shape=SHAPES, kind=st.sampled_from(["complex64", "complex128"]))
def test_complex_numbers_keep_both_parts(torch: Any, op: str, data: Any, shape: Shape, kind: str) -> None:
    x, tensors = called(data.draw, op, shape)
    tensors = {key: np.asarray(value + 0.5j * np.flip(value), kind) for key, value in tensors.items()}
    made = ex.lazy(x, {key: lazy_tensor(value) for key, value in tensors.items()})
    told = evaluated(torch, x, {key: torch.from_numpy(value) for key, value in tensors.items()})
    assert made.dtype.name == str(told.dtype).removeprefix("torch.") == kind
    rounding = 1e-5 if kind == "complex64" else 1e-12
    np.testing.assert_allclose(made.numpy(), told.numpy(), rtol=rounding, atol=rounding)


@pytest.mark.parametrize("op", ["add", "mul", "flip", "sum", "nonzero"])
@quick
@given(data=st.data(), shape=SHAPES)
def test_whole_numbers_are_not_rounded(torch: Any, op: str, data: Any, shape: Shape) -> None:
    x, tensors = called(data.draw, op, shape)
    tensors = {key: np.asarray(np.asarray(value * 2**58, "int64") // 3) for key, value in tensors.items()}
    expected = LAWS[op].oracle(torch, *map(torch.from_numpy, tensors.values()), *x.params)
    np.testing.assert_array_equal(given_by(x, tensors), expected.numpy())


@pytest.mark.parametrize(("one", "other", "expected"), [
    ("float64", "complex64", "complex64"), ("complex64", "float64", "complex64"),
    ("float32", "complex128", "complex128"), ("bool", "bool", "bool"),
    ("uint64", "uint64", "uint64"), ("int64", "float16", "float16"),
])  # fmt: skip
def test_the_type_of_a_sum_holds_what_both_hold(torch: Any, one: str, other: str, expected: str) -> None:
    tensors = {"x": np.ones(3, one), "y": (np.ones(3) * (1j if "complex" in other else 1)).astype(other)}
    made = ex.lazy(ex.parse("add(x, y, y)"), {key: lazy_tensor(value) for key, value in tensors.items()})
    told = evaluated(torch, ex.parse("add(x, y, y)"), {key: torch.from_numpy(value) for key, value in tensors.items()})
    assert made.dtype.name == str(told.dtype).removeprefix("torch.") == expected
    np.testing.assert_array_equal(made.numpy(), told.numpy())


@pytest.mark.parametrize("depth", [1, 2, 4, 8])
def test_each_calculation_in_another_one_is_done_once(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scale, calls = type(OPERATIONS["scale"]), []
    compute = scale.compute
    monkeypatch.setattr(scale, "compute", lambda *given, **more: calls.append(1) or compute(*given, **more))
    ex.lazy(ex.parse("scale(" * depth + "x" + ", 2.0)" * depth), {"x": lazy_tensor(np.ones(4, np.float32))}).numpy()
    assert len(calls) == depth


def evaluated(torch: Any, x: Expr, tensors: dict[str, Any]) -> Any:
    """What the text in torch gives, with the functions that it calls."""
    told = {"torch": torch, "F": torch.nn.functional, "Tensor": torch.Tensor, "functools": functools}
    for code in (emitting.IN_FLOAT32, *ex.torch_helpers(x).values()):
        exec(f"from __future__ import annotations\n{code}", told)
    first = next(iter(tensors))
    return eval(ex.torch_text(x, lambda key: f"given[{key!r}]", f"given[{first!r}]"), told, {"given": tensors})


@pytest.mark.parametrize("op", OPERATIONS)
@quick
@given(data=st.data(), shape=SHAPES, kind=st.sampled_from(["float32", "float64", "float16"]))
def test_the_text_in_torch_gives_what_is_computed_in_its_type(
    torch: Any, op: str, data: Any, shape: Shape, kind: str
) -> None:
    x, tensors = called(data.draw, op, shape)
    tensors = {key: value.astype(kind) for key, value in ({"x0": np.ones(1)} | tensors).items()}
    made = ex.lazy(x, {key: lazy_tensor(value) for key, value in tensors.items()})
    told = evaluated(torch, x, {key: torch.from_numpy(value) for key, value in tensors.items()})
    assert (tuple(told.shape), str(told.dtype)) == (made.shape, f"torch.{kind}")
    rounding = {"float16": 2e-3, "float32": 1e-5, "float64": 1e-12}[kind]
    np.testing.assert_allclose(told.double().numpy(), made.numpy().astype("float64"), rtol=rounding, atol=rounding)


@pytest.mark.parametrize("op", OPERATIONS)
@quick
@given(data=st.data(), shape=SHAPES)
def test_a_call_is_written_as_its_usage_says_and_read_back(op: str, data: Any, shape: Shape) -> None:
    x, _ = called(data.draw, op, shape)
    assert ex.parse(str(x)) == x
    assert OPERATIONS[op].fits(x.params)
    assert str(x).partition("(")[0] == OPERATIONS[op].usage.partition("(")[0] == op


@pytest.mark.parametrize("op", OPERATIONS)
@quick
@given(data=st.data(), shape=SHAPES)
def test_the_inverse_gives_back_every_tensor_or_there_is_none(op: str, data: Any, shape: Shape) -> None:
    x, tensors = called(data.draw, op, shape)
    shapes = {key: value.shape for key, value in tensors.items()}
    back = ex.inverted("y", x, shapes)
    kind = LAWS[op].inverse
    assert (back is None) == (kind == "")
    if back is None or kind == "of all parts":
        return
    whole = {"y": given_by(x, tensors)}
    for key, pieces in back.items():
        again = ex.reassembled(pieces, shapes[key])
        assert again is not None
        np.testing.assert_allclose(given_by(again, whole), tensors[key], rtol=0 if kind == "exact" else 1e-5)
    assert back.keys() == tensors.keys()


@pytest.mark.parametrize(
    ("text", "kinds", "expected"),
    [
        ("lora_alpha(w, a, b, alpha)", {"alpha": "int64"}, "float32"),
        ("lora_alpha(w, a, b, alpha)", {"w": "float16", "a": "float16", "b": "float16"}, "float16"),
        ("mul(w, v)", {"v": "int64"}, "float32"),
    ],
)
def test_whole_numbers_do_not_cut_off_fractions(torch: Any, text: str, kinds: dict[str, str], expected: str) -> None:
    shapes = {"w": (4, 3), "a": (2, 3), "b": (4, 2), "alpha": (1,), "v": (4, 3)}
    tensors = {
        key: np.full(shape, n + 1.25).astype(kinds.get(key, "float32")) for n, (key, shape) in enumerate(shapes.items())
    }
    x = ex.parse(text)
    made = ex.lazy(x, {key: lazy_tensor(value) for key, value in tensors.items()})
    told = evaluated(torch, x, {key: torch.from_numpy(value) for key, value in tensors.items()})
    assert made.dtype.name == str(told.dtype).removeprefix("torch.") == expected
    np.testing.assert_allclose(made.numpy(), told.numpy(), rtol=2e-3)
    assert (made.numpy() % 1).any()


@pytest.mark.parametrize(
    "op", [op for op, law in LAWS.items() if law.inverse in ("exact", "of all parts") and op not in ("zeros", "eye")]
)
@quick
@given(data=st.data(), shape=SHAPES)
def test_what_only_moves_values_lets_factors_through(op: str, data: Any, shape: Shape) -> None:
    plain, tensors = called(data.draw, op, shape)
    scaled = plain.replaced(lambda key: ex.scale(ex.of(key), 2.0))
    assert ex.unscaled(scaled) == plain
    np.testing.assert_array_equal(given_by(scaled, tensors), 2 * given_by(plain, tensors))


@pytest.mark.parametrize("op", ["nonzero", "shift", "scale", "flip", "rotary", "flatten"])
@quick
@given(data=st.data(), shape=SHAPES)
def test_sizes_of_a_tensor_are_read_off_a_result_that_keeps_them(op: str, data: Any, shape: Shape) -> None:
    x, tensors = called(data.draw, op, shape)
    found: dict[str, Shape] = {}
    ex.shapes_read(x, given_by(x, tensors).shape, found)
    assert found == {key: value.shape for key, value in tensors.items()}


@pytest.mark.parametrize("op", [op for op, law in LAWS.items() if law.inverse == "of all parts"])
@quick
@given(data=st.data(), shape=SHAPES)
def test_all_parts_give_back_the_tensor_and_fewer_do_not(op: str, data: Any, shape: Shape) -> None:
    assume(shape)
    parts = data.draw(st.permutations(all_parts(op, data.draw, shape)))
    tensors = {"x": values(shape, 0)}
    made = {f"y{i}": given_by(part, tensors) for i, part in enumerate(parts)}
    pieces = [pair for i, part in enumerate(parts) for pair in (ex.inverted(f"y{i}", part, {"x": shape}) or {})["x"]]
    whole = ex.reassembled(pieces, shape)
    assert whole is not None
    np.testing.assert_array_equal(given_by(whole, made), tensors["x"])
    if len(pieces) > 1:
        assert ex.reassembled(pieces[1:], shape) is None


def all_parts(op: str, draw: Draw, shape: Shape) -> list[Expr]:
    """The parts that one tensor is cut into, in order."""
    x = ex.of("x")
    if op == "select":
        return [ex.select(x, 0, i) for i in range(shape[0])]
    if op == "slice":
        dim = dimension(draw, shape)
        edges = sorted({0, shape[dim], *draw(st.lists(st.integers(0, shape[dim]), max_size=2))})
        return [ex.part(x, dim, a, b) for a, b in itertools.pairwise(edges)]
    heads = draw(st.sampled_from(whole(shape[0])))
    rows = shape[0] // heads
    edges = sorted({0, rows, *draw(st.lists(st.integers(0, rows), max_size=2))})
    return ex.cut_by_heads(x, heads, [b - a for a, b in itertools.pairwise(edges)])


@st.composite
def nested(draw: st.DrawFn) -> tuple[Expr, dict[str, np.ndarray[Any, Any]]]:
    """Operations in each other, where some cut what comes out of others and join the parts, all or not, again."""
    tensors = {"x": values(draw(SHAPES), 0)}
    x = ex.of("x")
    for _ in range(draw(st.integers(1, 4))):
        shape = ex.shape_of(x, {key: value.shape for key, value in tensors.items()})
        join = draw(st.sampled_from(["slice", "select", "of_heads", *["call"] * 4]))
        if join != "call" and shape:
            parts = all_parts(join, draw, shape)
            some = draw(st.just(parts) | st.lists(st.sampled_from(parts), min_size=1, max_size=3))
            x = put_together(join, some).replaced(lambda key, inner=x: inner)  # type: ignore[misc]
        else:
            op = draw(st.sampled_from([*OPERATIONS]))
            shapes, params = LAWS[op].call(draw, shape)
            fresh = {f"x{len(tensors)}{i}": values(s, 10 * len(tensors) + i) for i, s in enumerate(shapes)}
            args = [
                x if s == shape and i == 0 else ex.of(key) for i, (key, s) in enumerate(zip(fresh, shapes, strict=True))
            ]
            x, tensors = Expr(op, tuple(args), params), tensors | fresh
        assume(math.prod(ex.shape_of(x, {key: value.shape for key, value in tensors.items()})) < 5000)
    return x, tensors


def put_together(op: str, parts: list[Expr]) -> Expr:
    if op == "slice":
        return ex.cat(int(parts[0].params[0]), *parts)
    return Expr("stack", tuple(parts)) if op == "select" else ex.by_heads(int(parts[0].params[0]), *parts)


@settings(
    max_examples=3 * settings.default.max_examples,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(nested())
def test_the_simpler_form_has_the_same_values_and_no_more_steps(
    given: tuple[Expr, dict[str, np.ndarray[Any, Any]]],
) -> None:
    x, tensors = given
    shapes = {key: value.shape for key, value in tensors.items()}
    simple = ex.simplified(x, shapes)
    assert ex.shape_of(simple, shapes) == ex.shape_of(x, shapes)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(given_by(simple, tensors), given_by(x, tensors))
    assert ex.simplified(simple, shapes) == simple


@pytest.mark.parametrize("op", [op for op, law in LAWS.items() if law.inverse == "of all parts"])
@quick
@given(data=st.data(), shape=SHAPES)
def test_what_is_cut_and_joined_again_is_a_copy(op: str, data: Any, shape: Shape) -> None:
    assume(shape)
    x = put_together(op, all_parts(op, data.draw, shape))
    assert ex.simplified(x, {"x": shape}) == ex.of("x")


@given(nested())
def test_the_text_in_torch_of_operations_in_each_other_says_the_same(
    torch: Any, given: tuple[Expr, dict[str, np.ndarray[Any, Any]]]
) -> None:
    x, tensors = given
    with np.errstate(all="ignore"):
        made = given_by(x, tensors)
    told = evaluated(torch, x, {key: torch.from_numpy(value) for key, value in tensors.items()})
    assert tuple(told.shape) == made.shape
    np.testing.assert_allclose(told.numpy(), made, rtol=2e-3, atol=1e-3, equal_nan=True)


@pytest.mark.parametrize(
    ("dim", "one", "other"),
    [
        (1, (0, 3), (0, 4)),
        (1, (5000, 0), (5000, 0)),
        (1, (2, 0), (2, 3)),
        (1, (5000, 2), (5000, 0)),
        (0, (0, 3), (0, 3)),
    ],
)
def test_tensors_without_elements_are_joined(dim: int, one: Shape, other: Shape) -> None:
    tensors = {"x": values(one, 0), "y": values(other, 1)}
    made = given_by(ex.parse(f"cat({dim}, x, y)"), tensors)
    np.testing.assert_array_equal(made, np.concatenate(list(tensors.values()), dim))
