"""What the two sides hold in another form: buffers, masks, lists, concatenations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest
from effort import lines
from hypothesis import given
from hypothesis import strategies as st
from sides import found, lazy_tensor, pairing, signature, wanted

from ckptool.model_code.signature import Entry, Signature
from ckptool.porting import expression as ex
from ckptool.porting.forms.joining.join import Join
from ckptool.porting.port import port

Shapes = Mapping[str, tuple[int, ...]]


def with_buffers(target: Signature, *, kinds: Mapping[str, str]) -> Signature:
    """The same, in which some keys are buffers of a type."""
    entries = {
        key: Entry(key, e.shape, kinds[key], parameter=False, used=e.used) if key in kinds else e
        for key, e in target.entries.items()
    }
    return Signature(target.name, entries, traced=target.traced)


CODEBOOKS: Shapes = {
    "encoder.weight": (16, 8),
    **{f"vq.{n}._codebook.{leaf}": shape for n in (0, 1) for leaf, shape in {"embed": (32, 16), "hits": (32,)}.items()},
}


def test_buffers_that_were_learned_are_ported_under_other_names() -> None:
    shapes = {key.replace("vq.", "quantizer.").replace("_codebook", "book"): s for key, s in CODEBOOKS.items()}
    target = with_buffers(wanted(shapes), kinds={key: "float32" for key in shapes if "book" in key})
    mapping = port(signature(CODEBOOKS), target)
    assert pairing(mapping) == dict(zip(shapes, CODEBOOKS, strict=True))


def test_a_buffer_is_not_called_computed_while_something_that_fits_goes_nowhere() -> None:
    target = with_buffers(wanted({"encoder.weight": (16, 8), "scan": (32, 16)}), kinds={"scan": "float32"})
    source = signature({"encoder.weight": (16, 8), "a.left": (16, 32), "a.right": (16, 32)})
    entry = next(e for e in port(source, target).entries if e.target == "scan")
    assert entry.status == "unmapped"
    assert "a.left" in entry.doubts[0]


def test_a_buffer_of_indices_is_computed_whatever_floats_are_left_over() -> None:
    target = with_buffers(wanted({"encoder.weight": (16, 8), "positions": (16,)}), kinds={"positions": "int64"})
    mapping = port(signature({"encoder.weight": (16, 8), "left.over": (16,)}), target)
    entry = next(e for e in mapping.entries if e.target == "positions")
    assert entry.default
    assert mapping.is_sure


def test_matrices_with_the_inputs_first_on_both_sides_are_copied() -> None:
    """A model whose forward pass could not be followed: the biases say how its matrices stand."""
    shapes = {"up.weight": (8, 32), "up.bias": (32,), "down.weight": (32, 8), "down.bias": (8,)}
    shapes |= {f"{n}.mix.{leaf}": s for n in (0, 1) for leaf, s in {"weight": (8, 8), "bias": (8,)}.items()}
    source = {f"h.{key}": shape for key, shape in shapes.items()}
    target = replace(wanted(shapes, used=[]), traced=False)
    assert pairing(port(signature(source), target)) == dict(zip(shapes, source, strict=True))


# -- lists and families of tensors that are one tensor on the other side


def heads(n: int = 3, d: int = 12) -> dict[str, tuple[int, ...]]:
    inner = {f"{name}.weight": (d // n, d) for name in ("key", "query", "value")}
    found = {f"blocks.{b}.heads.{h}.{name}": s for b in (0, 1) for h in range(n) for name, s in inner.items()}
    return {"embed.weight": (50, d), **found, **{f"blocks.{b}.proj.weight": (d, d) for b in (0, 1)}}


def test_heads_with_a_module_each_fill_fused_projections_in_the_order_of_their_numbers() -> None:
    shapes: Shapes = {"embed.weight": (50, 12)}
    shapes |= {f"layers.{b}.{n}.weight": (k * 12, 12) for b in (0, 1) for n, k in {"qkv": 3, "proj": 1}.items()}
    found = pairing(port(signature(heads()), wanted(shapes)))
    parts = ", ".join(f"blocks.1.heads.{h}.{name}.weight" for name in ("query", "key", "value") for h in (0, 1, 2))
    assert found["layers.1.qkv.weight"] == f"cat(0, {parts})"
    assert found["layers.1.proj.weight"] == "blocks.1.proj.weight"


def test_lists_that_both_sides_have_are_left_apart() -> None:
    """Three equal blocks would make a projection of three times the rows, of which the other side has none more."""
    shapes = {f"blocks.{n}.{name}.weight": (8, 8) for n in range(3) for name in "abc"}
    shapes |= {f"wide.{n}.weight": (24, 8) for n in range(3)}
    mapping = port(signature(shapes), wanted(shapes))
    assert pairing(mapping) == {key: key for key in shapes}


def pairs_of_layers(*names: str) -> Shapes:
    return {f"high.{n}.{name}.weight": (8, 8) for n in (0, 1) for name in names} | {"out.weight": (3, 8)}


def test_two_layers_of_each_block_are_one_where_the_other_side_counts_as_many_blocks() -> None:
    target = {f"layers.{n}.weight": (16, 8) for n in (0, 1)} | {"top.weight": (3, 8)}
    mapping = port(signature(pairs_of_layers("T", "H")), wanted(target))
    assert pairing(mapping)["layers.1.weight"] == "cat(0, high.1.T.weight, high.1.H.weight)"
    assert {e.target for e in mapping.having("guessed")} == {"layers.0.weight", "layers.1.weight"}  # which comes first?


def test_one_layer_of_all_blocks_is_joined_with_a_question_where_the_layers_of_a_block_fit_as_well() -> None:
    source = signature(pairs_of_layers("T", "H"))
    named = port(source, wanted({"T.weight": (16, 8), "H.weight": (16, 8), "out.weight": (3, 8)}))
    assert pairing(named)["T.weight"] == "cat(0, high.0.T.weight, high.1.T.weight)"
    assert named.having("guessed") == []
    other = port(source, wanted({"one.weight": (16, 8), "two.weight": (16, 8), "out.weight": (3, 8)}))
    assert {e.target for e in other.having("guessed")} == {"one.weight", "two.weight"}


def test_paths_are_joined_along_their_outputs_or_their_inputs_as_sizes_ask() -> None:
    source = {f"paths.{n}.{name}.weight": s for n in range(4) for name, s in {"a": (3, 10), "b": (10, 3)}.items()}
    mapping = port(signature(source), wanted({"reduce.weight": (12, 10), "expand.weight": (10, 12)}))
    found = {e.target: str(e.expr) for e in mapping.entries}
    assert found["reduce.weight"] == "cat(0, " + ", ".join(f"paths.{n}.a.weight" for n in range(4)) + ")"
    assert found["expand.weight"] == "cat(1, " + ", ".join(f"paths.{n}.b.weight" for n in range(4)) + ")"
    back = port(signature({"reduce.weight": (12, 10), "expand.weight": (10, 12)}), wanted(source))
    assert pairing(back)["paths.2.a.weight"] == "slice(reduce.weight, 0, 6, 9)"
    assert pairing(back)["paths.2.b.weight"] == "slice(expand.weight, 1, 6, 9)"


def test_layers_with_weight_norm_are_joined_with_their_gains_and_biases() -> None:
    source = {
        f"cond.{n}.{leaf}": size for n in range(3) for leaf, size in
        (("bias", (8,)), ("weight_g", (8, 1, 1)), ("weight_v", (8, 5, 1)))
    }  # fmt: skip
    target = {"one.bias": (24,), "one.weight_g": (24, 1, 1), "one.weight_v": (24, 5, 1)}
    mapping = port(signature(source), wanted(target))
    for leaf in ("bias", "weight_g", "weight_v"):
        assert pairing(mapping)[f"one.{leaf}"] == f"cat(0, cond.0.{leaf}, cond.1.{leaf}, cond.2.{leaf})"


def test_twin_modules_are_halves_of_the_layers_of_one_module() -> None:
    layers = {"up": (8, 4, 1, 1), "depthwise": (8, 1, 3, 3)}
    target = {f"ffn.{part}.{name}.weight": size for part in ("gate", "value") for name, size in layers.items()}
    source = {"ffn.project_in.weight": (16, 4, 1, 1), "ffn.dwconv.weight": (16, 1, 3, 3)}
    mapping = port(signature(source), wanted(target, used=target))
    assert {entry.status for entry in mapping.entries} == {"guessed"}  # of which half is the gate
    for name, whole in (("up", "ffn.project_in"), ("depthwise", "ffn.dwconv")):
        assert pairing(mapping)[f"ffn.gate.{name}.weight"] == f"slice({whole}.weight, 0, 0, 8)"
        assert pairing(mapping)[f"ffn.value.{name}.weight"] == f"slice({whole}.weight, 0, 8, 16)"


def test_parameters_of_a_relative_attention_are_matrices_and_vectors_by_heads() -> None:
    source = {f"rel_attn.{name}": (12, 2, 6) for name in "qkvor"}
    source |= {"rel_attn.r_r_bias": (2, 6), "rel_attn.r_w_bias": (2, 6)}
    target = {"attention.content_bias": (2, 6), "attention.position_bias": (2, 6)}
    target |= {f"attention.{name}.weight": (12, 12) for name in ("query", "key", "value", "position", "out_proj")}
    mapping = port(signature(source), wanted(target))
    assert {entry.status for entry in mapping.entries} == {"mapped"}
    made = pairing(mapping)
    assert made["attention.content_bias"] == "rel_attn.r_w_bias"
    assert made["attention.out_proj.weight"] == "reshape(rel_attn.o, 12, 12)"
    for name, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("position", "r")):
        assert made[f"attention.{name}.weight"] == f"reshape(permute(rel_attn.{letter}, 1, 2, 0), 12, 12)"


def test_the_order_of_named_tables_in_one_is_a_guess() -> None:
    source = {"tables.city.weight": (5, 4), "tables.hour.weight": (24, 4), "rank.weight": (1, 8)}
    mapping = port(signature(source), wanted({"embedding.weight": (29, 4), "rank.weight": (1, 8)}))
    entry = mapping.entries[0]
    assert entry.status == "guessed"
    assert str(entry.expr) == "cat(0, tables.city.weight, tables.hour.weight)"
    assert [str(r) for r in entry.rivals] == ["cat(0, tables.hour.weight, tables.city.weight)"]


def test_of_a_whole_that_is_taken_apart_the_other_order_is_the_rival() -> None:
    shapes = {"cell.u.weight": (16, 4), "cell.v.weight": (16, 4), "embed.weight": (30, 4)}
    mapping = port(signature({"embed.weight": (30, 4), "cell.hidden.weight": (32, 4)}), wanted(shapes))
    entry = mapping.entries[0]
    assert str(entry.expr) == "slice(cell.hidden.weight, 0, 0, 16)"
    assert [str(r) for r in entry.rivals] == ["slice(cell.hidden.weight, 0, 16, 32)"]
    assert entry.doubts


def test_stacked_weights_are_told_apart_by_the_numbers_in_their_names() -> None:
    source = {"conv.weights1": (6, 6, 3), "conv.weights2": (6, 6, 3), "head.weight": (2, 6)}
    mapping = port(signature(source), wanted({"conv.spectral": (2, 6, 6, 3), "head.weight": (2, 6)}))
    assert pairing(mapping)["conv.spectral"] == "stack(conv.weights1, conv.weights2)"
    assert mapping.is_sure


def joins() -> st.SearchStrategy[tuple[Join, tuple[tuple[int, ...], ...]]]:
    """A way to join, and the sizes of the parts that it takes."""

    @st.composite
    def made(draw: st.DrawFn) -> tuple[Join, tuple[tuple[int, ...], ...]]:
        n, other = draw(st.integers(2, 4)), draw(st.integers(1, 4))
        dim = draw(st.sampled_from([0, 1, None]))
        if dim is None:
            return Join((1,) * n, None), ((other, 3),) * n
        turns = draw(st.integers(1, 3)) if dim == 0 else 1
        sizes = tuple(turns * draw(st.integers(1, 3)) for _ in range(n))
        return Join(sizes, dim, turns), tuple((s, other) if dim == 0 else (other, s) for s in sizes)

    return made()


def test_halves_of_one_layer_stay_together_where_a_list_of_two_could_be_one_as_well() -> None:
    """A gated convolution holds two of one size; a list of two such layers holds two of each, which fit as well."""
    own = {"first.0": (5, 6), "first.1": (6, 12), "first.2": (12, 12), "then.0": (12, 12), "then.1": (12, 12)}
    own |= {"last.0": (12, 6), "last.1": (6, 3)}
    shapes = {
        f"{layer}.{half}.weight": (out, into, 3, 3) for layer, (into, out) in own.items() for half in ("value", "gate")
    }
    source = {f"conv{n}.conv.weight": (2 * out, into, 3, 3) for n, (into, out) in enumerate(own.values(), 1)}
    mapping = port(signature(source), wanted(shapes))
    assert pairing(mapping) == {
        f"{layer}.{half}.weight": f"slice(conv{n}.conv.weight, 0, {place * out}, {(place + 1) * out})"
        for n, (layer, (_, out)) in enumerate(own.items(), 1)
        for place, half in enumerate(("value", "gate"))
    }
    assert {entry.status for entry in mapping.entries} == {"guessed"}


@given(joins())
def test_what_was_joined_comes_apart_again(given: tuple[Join, tuple[tuple[int, ...], ...]]) -> None:
    join, shapes = given
    parts = {f"p{i}": np.random.default_rng(i).random(s).astype(np.float32) for i, s in enumerate(shapes)}
    whole = join.whole(*map(ex.of, parts), rest=shapes[0][1:])
    tensors = {key: lazy_tensor(value) for key, value in parts.items()}
    together = ex.lazy(whole, tensors)
    assert together.shape == join.shape(shapes[0])
    for i, key in enumerate(parts):
        part = join.part(ex.of("whole"), index=i, rest=shapes[0][1:])
        np.testing.assert_array_equal(ex.lazy(part, {"whole": lazy_tensor(together.numpy())}).numpy(), parts[key])


# -- masks


def test_pruned_weights_are_ported_as_torch_computes_them(torch) -> None:  # type: ignore[no-untyped-def]
    import ckptool

    torch.manual_seed(0)
    nets = [torch.nn.Sequential(torch.nn.LSTM(4, 3), torch.nn.Linear(3, 2)) for _ in range(2)]
    from torch.nn.utils import prune

    for name in ("weight_ih_l0", "weight_hh_l0", "bias_hh_l0"):
        prune.random_unstructured(nets[0][0], name, 0.5)
    prune.random_unstructured(nets[0][1], "weight", 0.5)
    prune.random_unstructured(nets[0][1], "bias", 1)
    before = dict(nets[0].state_dict())
    steps = torch.zeros(2, 4)  # an input, which costs seconds to find: lengths are tried, and each step is traced
    ckptool.load_into(nets[1], before, inputs=steps)
    for key, value in nets[1].state_dict().items():
        expected = before[key] if key in before else before[f"{key}_orig"] * before[f"{key}_mask"]
        torch.testing.assert_close(value, expected, rtol=0, atol=0)
    ckptool.load_into(nets[0], nets[1].state_dict(), accept_guesses=True, inputs=steps)
    for key, value in nets[0].state_dict().items():
        if key.endswith("_mask"):
            whole = nets[1].state_dict()[key.removesuffix("_mask")]
            torch.testing.assert_close(value, (whole != 0).to(value.dtype))


def test_what_a_parametrization_computes_from_a_tensor_is_not_known_and_said_so() -> None:
    source = {"a.parametrizations.weight.original": (4, 4), "a.bias": (4,), "b.weight": (2, 4)}
    mapping = port(signature(source), wanted({"a.weight": (4, 4), "a.bias": (4,), "b.weight": (2, 4)}))
    assert [(e.target, e.status) for e in mapping.entries if e.status != "mapped"] == [("a.weight", "guessed")]
    assert "parametrization" in mapping.entries[0].doubts[0]


# -- roles


_NORMS = [
    ("gamma", "beta"),
    ("shift", "gain"),
    ("g", "b"),
    ("beta", "alpha"),
    ("a_2", "b_2"),
    ("offset", "scale"),
    ("loc", "scale"),
]


@pytest.mark.parametrize("theirs", _NORMS)
@pytest.mark.parametrize("own", [("weight", "bias"), *_NORMS])
def test_factors_and_shifts_of_norms_are_told_whatever_they_are_called_and_in_any_order(
    own: tuple[str, str], theirs: tuple[str, str]
) -> None:
    is_shift = {"bias", "beta", "shift", "b", "b_2", "offset", "loc"}.__contains__
    source = {f"layers.{n}.{key}": s for n in (0, 1) for key, s in _with_norm(theirs).items()}
    target = {f"blocks.{n}.{key}": s for n in (0, 1) for key, s in _with_norm(own).items()}
    made = pairing(port(signature(source), wanted(target)))
    for n in (0, 1):
        for leaf in own:
            same = next(name for name in theirs if is_shift(name) == is_shift(leaf))
            assert made[f"blocks.{n}.norm.{leaf}"] == f"layers.{n}.norm.{same}"


def _with_norm(leaves: tuple[str, str]) -> dict[str, tuple[int, ...]]:
    return {"fc.weight": (8, 6), "fc.bias": (8,), **{f"norm.{leaf}": (8,) for leaf in leaves}, "out.weight": (6, 8)}


def test_means_spreads_and_noise_of_noisy_layers_are_told_apart() -> None:
    kinds = {"mu": "mean", "sigma": "spread"}
    source = {f"value.{of}_{k}": s for of, s in {"weight": (6, 9), "bias": (6,)}.items() for k in ("epsilon", *kinds)}
    target = {
        f"head.{kind}_{of[0]}": source[f"value.{of}_{k}"] for k, kind in kinds.items() for of in ("weight", "bias")
    }
    mapping = port(signature(source), wanted(target))
    assert pairing(mapping) == {
        f"head.{kind}_{of[0]}": f"value.{of}_{k}" for k, kind in kinds.items() for of in ("weight", "bias")
    }
    assert mapping.is_sure


def test_the_means_of_noisy_layers_are_the_weights_of_plain_ones() -> None:
    kinds = ("mu", "sigma", "epsilon")
    source = {
        f"{layer}.{of}_{kind}": shape if of == "weight" else shape[:1]
        for layer, shape in {"hidden_v": (6, 9), "hidden_a": (6, 9), "out_v": (2, 6), "out_a": (4, 6)}.items()
        for of in ("weight", "bias")
        for kind in kinds
    }
    target = {
        f"{layer}.{of}": source[f"{layer}.{of}_mu"] for layer in ("hidden_v", "hidden_a") for of in ("weight", "bias")
    }
    target |= {f"{layer}.{of}": source[f"{layer}.{of}_mu"] for layer in ("out_v", "out_a") for of in ("weight", "bias")}
    mapping = port(signature(source), wanted(target))
    assert pairing(mapping) == {key: f"{key}_mu" for key in target}
    assert mapping.is_sure


def test_the_whole_weight_of_a_recurrent_layer_that_drops_weights_is_called_raw() -> None:
    source = {"rnn.module.weight_ih_l0": (16, 5), "rnn.module.weight_hh_l0_raw": (16, 4)}
    target = {"lstm.weight_ih_l0": (16, 5), "lstm.weight_hh_l0": (16, 4)}
    mapping = port(signature(source), wanted(target))
    assert pairing(mapping) == {
        "lstm.weight_ih_l0": "rnn.module.weight_ih_l0",
        "lstm.weight_hh_l0": "rnn.module.weight_hh_l0_raw",
    }
    assert mapping.is_sure


def test_noise_is_no_weight() -> None:
    source = {f"value.weight_{kind}": (6, 9) for kind in ("mu", "rho", "epsilon")}
    mapping = port(signature(source), wanted({"head.mean_w": (6, 9), "head.std_w": (6, 9)}))
    assert pairing(mapping) == {"head.mean_w": "value.weight_mu"}


def test_one_bias_of_projections_that_stand_apart_is_divided(torch) -> None:  # type: ignore[no-untyped-def]
    """MultiheadAttention with keys and values of other widths has three matrices and one bias."""
    import ckptool

    attention = torch.nn.MultiheadAttention(8, 2, kdim=6, vdim=4)
    torch.nn.init.normal_(attention.in_proj_bias)

    class Apart(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.out = torch.nn.Linear(8, 8)
            self.value, self.key, self.query = (torch.nn.Linear(n, 8) for n in (4, 6, 8))

        def forward(self, q, k, v):  # type: ignore[no-untyped-def]
            heads = [f(x).unflatten(-1, (2, 4)).transpose(1, 2) for f, x in ((self.query, q), (self.key, k))]
            y = torch.nn.functional.scaled_dot_product_attention(
                *heads, self.value(v).unflatten(-1, (2, 4)).transpose(1, 2)
            )
            return self.out(y.transpose(1, 2).flatten(2))

    model = Apart()
    ckptool.load_into(model, attention.state_dict())
    q, k, v = torch.randn(5, 1, 8), torch.randn(7, 1, 6), torch.randn(7, 1, 4)
    expected = attention(q, k, v)[0]
    given = model(*(x.transpose(0, 1) for x in (q, k, v))).transpose(0, 1)
    torch.testing.assert_close(given, expected)
    back = torch.nn.MultiheadAttention(8, 2, kdim=6, vdim=4)
    ckptool.load_into(back, model.state_dict())
    torch.testing.assert_close(back(q, k, v)[0], expected)


# -- recurrent cells


def test_a_matrix_over_input_and_hidden_state_is_cut_and_both_ways_are_named() -> None:
    source = {"cell.i2h.weight": (6, 11), "cell.i2h.bias": (6,), "out.weight": (3, 6)}
    target = {f"rnn.{leaf}_l0": s for leaf, s in {"weight_ih": (6, 5), "weight_hh": (6, 6)}.items()}
    target |= {"rnn.bias_ih_l0": (6,), "rnn.bias_hh_l0": (6,), "out.weight": (3, 6)}
    mapping = port(signature(source), wanted(target))
    found = {e.target: e for e in mapping.entries}
    assert str(found["rnn.weight_ih_l0"].expr) == "slice(cell.i2h.weight, 1, 0, 5)"
    assert [str(r) for r in found["rnn.weight_hh_l0"].rivals] == ["slice(cell.i2h.weight, 1, 0, 6)"]
    assert found["rnn.weight_ih_l0"].status == "guessed"
    assert pairing(mapping)["rnn.bias_ih_l0"] == "cell.i2h.bias"
    assert pairing(mapping)["rnn.bias_hh_l0"] == "zeros(6)"


def test_the_order_of_gates_in_one_matrix_is_a_doubt_also_for_its_bias() -> None:
    source = {"kernel.weight": (24, 11), "kernel.bias": (24,)}
    target = {
        "rnn.weight_ih_l0": (24, 5),
        "rnn.weight_hh_l0": (24, 6),
        "rnn.bias_ih_l0": (24,),
        "rnn.bias_hh_l0": (24,),
    }
    found = {e.target: e for e in port(signature(source), wanted(target)).entries}
    parts = ", ".join(f"slice(kernel.bias, 0, {start}, {stop})" for start, stop in ((0, 12), (18, 24), (12, 18)))
    assert [str(r) for r in found["rnn.bias_ih_l0"].rivals] == [f"cat(0, {parts})"]


@pytest.mark.parametrize(("layer", "gates"), [("LSTM", 4), ("RNN", 1), ("GRU", 3)])
def test_two_biases_become_one_where_that_is_the_same(torch, layer: str, gates: int) -> None:  # type: ignore[no-untyped-def]
    """In a GRU it is not: one of its biases is multiplied by a gate."""
    shapes = {key: tuple(v.shape) for key, v in getattr(torch.nn, layer)(5, 6).state_dict().items()}
    target = {"cell.weight_ih": (6 * gates, 5), "cell.weight_hh": (6 * gates, 6), "cell.bias_ih": (6 * gates,)}
    found = pairing(port(signature({f"rnn.{k}": s for k, s in shapes.items()}), wanted(target)))
    expected = None if layer == "GRU" else "add(rnn.bias_ih_l0, rnn.bias_hh_l0)"
    assert found.get("cell.bias_ih") == expected


@given(st.integers(1, 3), st.integers(1, 3), st.sampled_from([(4, 2), (4, 4), (3, 2), (1, 2)]))
def test_what_was_cut_into_sides_comes_together_again(inputs: int, hidden: int, cell: tuple[int, int]) -> None:
    """Source and target in turn: a whole that is cut for cells, and cells that are joined to such a whole."""
    gates, rank = cell
    rest = (3,) * (rank - 2)
    rows = gates * hidden
    apart = {"cell.weight_ih": (rows, inputs, *rest), "cell.weight_hh": (rows, hidden, *rest)}
    whole = {"all.weight": (rows, inputs + hidden, *rest)}
    there = port(signature(whole), wanted(apart))
    back = port(signature(apart), wanted(whole))
    values = np.random.default_rng(0).random(whole["all.weight"]).astype(np.float32)
    cut = {e.target: ex.lazy(e.expr, {"all.weight": lazy_tensor(values)}) for e in there.entries if e.expr is not None}
    again = ex.lazy(back.entries[0].expr, {key: lazy_tensor(t.numpy()) for key, t in cut.items()})
    np.testing.assert_array_equal(again.numpy(), values)


def test_layers_over_two_inputs_are_one_over_both_side_by_side() -> None:
    source = {"attn.weight": (8, 11), "attn.bias": (8,), "v.weight": (1, 8)}
    target = {"near.weight": (8, 5), "far.weight": (8, 6), "far.bias": (8,), "v.weight": (1, 8)}
    mapping = port(signature(source), wanted(target))
    found = {e.target: e for e in mapping.entries}
    assert str(found["near.weight"].expr) == "slice(attn.weight, 1, 0, 5)"
    assert [str(r) for r in found["far.weight"].rivals] == ["slice(attn.weight, 1, 0, 6)"]
    assert str(found["far.bias"].expr) == "attn.bias"
    back = pairing(port(signature(target), wanted(source)))
    assert back["attn.weight"] == "cat(1, near.weight, far.weight)"
    assert back["attn.bias"] == "far.bias"


def test_numbered_layers_of_other_sizes_are_one_in_the_order_of_their_numbers() -> None:
    source = {f"heads.{n}.{leaf}": s for n, k in enumerate((2, 5, 3)) for leaf, s in {"weight": (k, 6)}.items()}
    mapping = port(signature(source), wanted({"head.weight": (10, 6)}))
    assert pairing(mapping) == {"head.weight": "cat(0, heads.0.weight, heads.1.weight, heads.2.weight)"}
    assert mapping.is_sure


def test_what_has_its_name_on_both_sides_is_joined_with_nothing() -> None:
    source = {"pos": (1, 8, 6), "pos_of_class": (1, 1, 6), "token": (1, 1, 6), "head.weight": (3, 6)}
    mapping = port(signature(source), wanted({"pos": (1, 9, 6), "token": (1, 1, 6), "head.weight": (3, 6)}))
    assert pairing(mapping)["pos"] == "cat(1, pos_of_class, pos)"
    assert mapping.entries[0].status == "guessed"
    assert pairing(mapping)["token"] == "token"


def test_norms_of_each_path_are_no_norm_of_all_without_a_doubt() -> None:
    inner = {"a.weight": (3, 10), "ln.weight": (3,), "ln.bias": (3,)}
    source = {f"paths.{n}.{name}": s for n in range(4) for name, s in inner.items()}
    shapes = {"a.weight": (12, 10), "ln.weight": (12,), "ln.bias": (12,)}
    found = {e.target: e.status for e in port(signature(source), wanted(shapes)).entries}
    assert found == {"a.weight": "mapped", "ln.weight": "guessed", "ln.bias": "guessed"}


@pytest.mark.parametrize("inner", ["module.", ""])
def test_a_weight_and_its_dropped_copy_go_where_the_model_has_both(inner: str) -> None:
    target = {"rnn.weight_hh_l0_raw": (12, 3), f"rnn.{inner}weight_ih_l0": (12, 5), f"rnn.{inner}weight_hh_l0": (12, 3)}
    source = {f"net.{key.replace('rnn', 'lstm')}": shape for key, shape in target.items()}
    mapping = port(signature(source), wanted(target))
    assert pairing(mapping) == {key: f"net.{key.replace('rnn', 'lstm')}" for key in target}
    assert mapping.is_sure
    plain = port(signature({f"lstm.{leaf}_l0": target[f"rnn.{inner}{leaf}_l0"] for leaf in _BOTH}), wanted(target))
    assert pairing(plain) == {key: f"lstm.{key.removesuffix('_raw').rpartition('.')[2]}" for key in target}


_BOTH = ("weight_ih", "weight_hh")


@pytest.mark.parametrize("inner", ["module.", ""])
@pytest.mark.parametrize("copies_tied", [True, False])
def test_a_layer_that_drops_weights_and_is_registered_twice_is_filled_under_both_names(
    inner: str, copies_tied: bool
) -> None:
    layer = {"weight_hh_l0_raw": (12, 3), f"{inner}weight_ih_l0": (12, 5), f"{inner}weight_hh_l0": (12, 3)}
    target = wanted({f"{name}.{key}": shape for name in ("a", "b") for key, shape in layer.items()})
    for key in layer if copies_tied else ("weight_hh_l0_raw",):
        target.entries[f"b.{key}"] = replace(target.entries[f"b.{key}"], tied=f"a.{key}")
    source = {f"old.{name}.{key}": shape for name in ("a", "b") for key, shape in layer.items()}
    made = pairing(port(signature(source), target))
    assert made["b.weight_hh_l0_raw"] == made["a.weight_hh_l0_raw"] == "old.a.weight_hh_l0_raw"
    assert made[f"b.{inner}weight_hh_l0"] == f"old.a.{inner}weight_hh_l0"


@pytest.mark.parametrize("first", ["weight_hh_l0", "weight_hh_l0_raw"])
def test_a_raw_weight_and_its_copy_that_are_one_tensor_have_one_source(first: str) -> None:
    keys = sorted(("rnn.weight_hh_l0", "rnn.weight_hh_l0_raw"), key=f"rnn.{first}".__ne__)
    both = wanted({"rnn.weight_ih_l0": (12, 5), **dict.fromkeys(keys, (12, 3))})
    both.entries[keys[1]] = replace(both.entries[keys[1]], tied=keys[0])
    plain = wanted({"rnn.weight_ih_l0": (12, 5), "rnn.weight_hh_l0": (12, 3)})
    assert pairing(port(both, plain))["rnn.weight_hh_l0"] == keys[0]
    assert pairing(port(plain, both)).keys() == both.entries.keys()


def test_what_is_called_raw_and_is_no_dropped_weight_has_a_source_of_its_own() -> None:
    target = {"film.scale_raw": (6,), "film.scale": (6,), "film.fc.weight": (6, 4)}
    mapping = port(signature({f"old.{key}": shape for key, shape in target.items()}), wanted(target))
    assert pairing(mapping) == {key: f"old.{key}" for key in target}
    lost = port(signature({"old.fc.weight": (6, 4), "old.scale": (6,)}), wanted(target))
    assert "film.scale_raw" not in {e.target for e in lost.having("mapped")}


def test_blocks_counted_in_flat_names_are_blocks() -> None:
    source, target = dict[str, tuple[int, ...]](), dict[str, tuple[int, ...]]()
    for stage in (1, 2):
        for unit in (1, 2, 3):
            for layer in (1, 2):
                source |= {f"arg:stage{stage}_unit{unit}_bn{layer}_{leaf}": (8,) for leaf in ("beta", "gamma")}
                source |= {f"aux:stage{stage}_unit{unit}_bn{layer}_moving_{leaf}": (8,) for leaf in ("mean", "var")}
                source[f"arg:stage{stage}_unit{unit}_conv{layer}_weight"] = (8, 8, 3, 3)
                head = f"layer{stage}.{unit - 1}.path"
                target[f"{head}.{2 * layer - 2}.weight"] = (8, 8, 3, 3)
                target |= {f"{head}.{2 * layer - 1}.{leaf}": (8,) for leaf in ("weight", "bias")}
                target |= {f"{head}.{2 * layer - 1}.running_{leaf}": (8,) for leaf in ("mean", "var")}
    mapping = port(signature({key: source[key] for key in sorted(source)}), wanted(target, used=target))
    assert not mapping.having("unmapped")
    for stage in (1, 2):
        for unit in (1, 2, 3):
            for layer in (1, 2):
                head, own = f"layer{stage}.{unit - 1}.path", f"stage{stage}_unit{unit}"
                assert pairing(mapping)[f"{head}.{2 * layer - 2}.weight"] == f'"arg:{own}_conv{layer}_weight"'
                assert pairing(mapping)[f"{head}.{2 * layer - 1}.running_var"] == f'"aux:{own}_bn{layer}_moving_var"'


def test_names_that_count_nothing_stay_whole() -> None:
    from ckptool.porting.forms.roles import divided

    assert divided({("conv1_1",), ("conv1_2",), ("fc1",)}) == {}
    assert divided({("stage1_unit2_conv1",), ("fc1",)})["stage1_unit2_conv1",] == ("stage", "1", "unit", "2", "conv1")
    assert divided({("stage1_unit2_conv1",), ("a", "b")}) == {}
    assert divided({("conv_dw_1_bn",)})["conv_dw_1_bn",] == ("conv_dw", "1", "bn")
    assert divided({("Mconv1_stage2_L1",)})["Mconv1_stage2_L1",] == ("stage", "2", "L", "1", "Mconv1")
    assert divided({("conv5_1_CPM_L1",)})["conv5_1_CPM_L1",] == ("L", "1", "conv5_1_CPM")


# -- layers that the other side holds in another form


def test_parts_that_differ_in_their_last_word_are_joined_in_the_order_that_the_name_of_the_whole_spells() -> None:
    shapes = {"attend.mix": "krvg", "feed.mix": "kr"}
    source = {
        f"blocks.{n}.{stem}_{part}": (1, 1, 6) for n in range(2) for stem, parts in shapes.items() for part in parts
    }
    source |= {
        f"blocks.{n}.{norm}.{leaf}": (6,) for n in range(2) for norm in ("n1", "n2") for leaf in ("weight", "bias")
    }
    target = {key.replace("blocks", "layers"): shape for key, shape in source.items() if ".n" in key}
    target |= {f"layers.{n}.{name}": (rows, 6) for n in range(2) for name, rows in (("one.rkvg", 4), ("two.mix_rk", 2))}
    mapping = port(signature(source), wanted(target))
    for n in range(2):
        for key, stem, order in (("one.rkvg", "attend", "rkvg"), ("two.mix_rk", "feed", "rk")):
            entry = found(mapping, f"layers.{n}.{key}")
            assert entry.status == "mapped", entry
            assert [k.rpartition("_")[2] for k in entry.sources] == list(order)
            assert all(key.startswith(f"blocks.{n}.{stem}.mix") for key in entry.sources)


def test_biases_of_parts_that_are_stacked_are_a_stack_too() -> None:
    source = {
        f"blocks.{n}.up.{leaf}": shape for n in range(2) for leaf, shape in (("w", (2, 6, 9)), ("b", (2, 1, 1, 9)))
    }
    source |= {f"blocks.{n}.down.weight": (6, 9) for n in range(2)}
    target = {
        f"layers.{n}.{name}.{leaf}": shape
        for n in range(2)
        for name in ("gate_proj", "up_proj")
        for leaf, shape in (("weight", (9, 6)), ("bias", (9,)))
    } | {f"layers.{n}.down_proj.weight": (6, 9) for n in range(2)}
    mapping = port(signature(source), wanted(target))
    for n in range(2):
        for place, name in enumerate(("gate_proj", "up_proj")):
            entry = found(mapping, f"layers.{n}.{name}.bias")
            assert entry.status == "guessed"  # in which order they stand is in the code only
            assert f"select(blocks.{n}.up.b, 0, {place})" in str(entry.expr)


def test_parts_over_two_inputs_are_cut_in_the_order_in_which_the_model_takes_those() -> None:
    target = {"right.weight": (6, 4), "left.weight": (6, 5), "left.bias": (6,), "out.weight": (3, 6)}
    used = ["left.weight", "left.bias", "right.weight", "out.weight"]
    mapping = port(
        signature({"both.weight": (6, 9), "both.bias": (6,), "last.weight": (3, 6)}), wanted(target, used=used)
    )
    assert pairing(mapping)["left.weight"] == "slice(both.weight, 1, 0, 5)"
    assert pairing(mapping)["right.weight"] == "slice(both.weight, 1, 5, 9)"
    assert {found(mapping, key).status for key in ("left.weight", "right.weight")} == {"guessed"}


def test_rows_that_were_added_to_a_table_beside_it_are_joined_to_it_in_doubt() -> None:
    source = {"words.embedding": (20, 8), "words.new_embedding": (4, 8), "up.weight": (16, 8), "out.weight": (24, 16)}
    target = {"tokens.weight": (24, 8), "hidden.weight": (16, 8), "head.weight": (24, 16)}
    entry = found(port(signature(source), wanted(target)), "tokens.weight")
    assert (str(entry.expr), entry.status) == ("cat(0, words.embedding, words.new_embedding)", "guessed")


def test_some_of_several_that_share_a_word_are_joined_and_the_others_stay() -> None:
    source = {"cls_token": (1, 1, 8), "cls_pos": (1, 1, 8), "patch_pos": (1, 16, 8), "patch.weight": (8, 3, 2, 2)}
    target = {"where": (1, 17, 8), "cls": (1, 1, 8), "embed.weight": (8, 3, 2, 2)}
    mapping = port(signature(source), wanted(target))
    assert pairing(mapping)["where"] == "cat(1, cls_pos, patch_pos)"
    assert pairing(mapping)["cls"] == "cls_token"


def test_two_of_three_gates_are_joined_as_two_letters_spell_them() -> None:
    source = {
        f"conv_{gate}.{leaf}": (4, *rest) for gate in "zrq" for leaf, rest in (("weight", (10, 3, 3)), ("bias", ()))
    }
    target = {
        "conv_rz.weight": (8, 10, 3, 3),
        "conv_rz.bias": (8,),
        "conv_n.weight": (4, 10, 3, 3),
        "conv_n.bias": (4,),
    }
    for entry in port(signature(source), wanted(target)).entries:
        leaf = entry.target.rpartition(".")[2]
        joined = f"cat(0, conv_r.{leaf}, conv_z.{leaf})"
        assert (str(entry.expr), entry.status) == (joined if "rz" in entry.target else f"conv_q.{leaf}", "mapped")


@pytest.mark.parametrize(
    ("stack", "expected"),
    [
        ((3, 4, 4), ["reshape(transpose(mix.w), 12, 4, 1)", "reshape(mix.w, 12, 4, 1)"]),
        ((3, 2, 4), ["reshape(transpose(mix.w), 12, 2, 1)"]),
        ((3, 4, 2), ["reshape(mix.w, 12, 2, 1)"]),
    ],
)
def test_a_stack_of_blocks_is_a_convolution_by_groups_in_doubt(stack: tuple[int, ...], expected: list[str]) -> None:
    source = {"first.weight": (6, 5), "mix.w": stack, "mix.b": (3, 4), "last.weight": (7, 12)}
    inputs = int(expected[0].split(", ")[-2])
    target = {"first.weight": (6, 5), "mix.weight": (12, inputs, 1), "mix.bias": (12,), "last.weight": (7, 12)}
    entry = found(port(signature(source), wanted(target)), "mix.weight")
    assert [str(expr) for expr in (entry.expr, *entry.rivals)] == expected
    assert entry.status == "guessed"
    assert pairing(port(signature(source), wanted(target)))["mix.bias"] == "reshape(mix.b, 12)"


def test_what_is_added_by_heads_is_a_vector_over_all_of_them() -> None:
    body = {"embed.weight": (40, 24), "layers.0.attn.q.weight": (24, 24), "norm.weight": (24,)}
    apart = {"r_w_bias": (4, 6), "other_bias": (3, 8), **body}
    flat = {"content_bias": (24,), "third": (3, 8), **body}
    mapping = port(signature(apart), wanted(flat))
    assert pairing(mapping)["content_bias"] == "reshape(r_w_bias, 24)"
    back = port(signature(flat), wanted(apart))
    assert pairing(back)["r_w_bias"] == "reshape(content_bias, 4, 6)"


def test_what_has_the_sizes_of_heads_on_both_sides_stays_as_it_is() -> None:
    source = {"scores": (4, 6), "embed.weight": (40, 24), "norm.weight": (24,)}
    target = {"scores": (4, 6), "embed.weight": (40, 24), "norm.weight": (24,), "shift": (24,)}
    mapping = port(signature(source), wanted(target))
    assert pairing(mapping)["scores"] == "scores"
    assert found(mapping, "shift").expr is None


def test_what_fills_a_layer_in_part_is_a_guess_while_the_rest_may_be_beside_it() -> None:
    source = {f"flows.{n}.{key}": s for n in range(3) for key, s in {"act.slope": (1, 8), "act.rate": (1, 8)}.items()}
    target = {f"steps.{n}.act_{leaf}": (8,) for n in range(3) for leaf in ("scale", "bias")}
    mapping = port(signature(source), wanted(target, used=target))
    assert "mapped" not in {entry.status for entry in mapping.entries}


def test_a_table_is_no_vector_of_as_many_elements() -> None:
    body = {"embed.weight": (100, 64), "block.fc.weight": (64, 64), "head.weight": (5, 64)}
    mapping = port(signature({"memory_tokens": (4, 16), **body}), wanted({"gamma": (64,), **body}))
    assert found(mapping, "gamma").expr is None


def test_a_tensor_beside_a_numbered_module_keeps_its_name() -> None:
    from ckptool.porting.forms.roles import numbered

    paths = [("net", "norm"), ("net", "norm_1", "kernel"), ("net", "conv", "kernel"), ("net", "conv_1", "kernel")]
    assert numbered(paths) == [*paths[:2], ("net", "conv_0", "kernel"), paths[3]]


@pytest.mark.parametrize("between", ["/", "."])
def test_a_cell_that_keras_counts_in_its_layer_gets_the_number_of_the_first_too(between: str) -> None:
    gates = {"kernel": (6, 18), "recurrent_kernel": (6, 18), "bias": (2, 18)}
    layers = ("gru", "gru_cell"), ("gru_1", "gru_cell_1")
    source = {between.join((*path, leaf)): size for path in layers for leaf, size in gates.items()}
    own = {"weight_ih": (18, 6), "weight_hh": (18, 6), "bias_ih": (18,), "bias_hh": (18,)}
    target = {f"rnn.{leaf}_l{n}": size for n in range(2) for leaf, size in own.items()}
    mapping = port(signature(source, ordered=False), wanted(target, used=target))
    assert {entry.status for entry in mapping.entries} == {"mapped"}
    for n, path in enumerate(layers):
        assert found(mapping, f"rnn.weight_hh_l{n}").sources == [between.join((*path, "recurrent_kernel"))]


def test_a_module_without_a_number_in_a_list_of_others_is_not_its_first_member() -> None:
    from ckptool.porting.forms.roles import numbered

    paths = [("net", "norm", "kernel"), ("net", "1", "conv", "kernel"), ("net", "2", "conv", "kernel")]
    assert numbered(paths) == paths


@pytest.mark.parametrize("first", ["cell", "cell_2"])
def test_a_cell_does_not_get_the_number_that_another_one_in_its_layer_has(first: str) -> None:
    from ckptool.porting.forms.roles import numbered

    paths = [("gru", "0", first, "kernel"), ("gru", "0", "cell_0", "kernel"), ("gru", "1", "cell_1", "kernel")]
    assert numbered(paths) == paths


def test_numbers_of_first_layers_are_found_in_many_modules_and_in_deep_ones() -> None:
    from ckptool.porting.forms.roles import numbered

    def steps(count: int) -> int:
        return lines(lambda: numbered([("net", f"mod{n}x", "kernel") for n in range(count)]))

    assert steps(400) < 2.5 * steps(200)
    deep = [(*"abcde" * 300, "kernel")] * 2
    assert numbered(deep) == deep


@pytest.mark.parametrize("word", ["scale", "shift"])
@pytest.mark.parametrize("name", ["mix", "whole"])
def test_layers_that_are_called_scale_or_shift_keep_their_biases_when_they_are_joined(word: str, name: str) -> None:
    leaves = {"weight": (6, 4), "bias": (6,)}
    several = {f"m.{part}_{word}.{leaf}": size for part in "qkv" for leaf, size in leaves.items()}
    one = {f"m.{name}.{leaf}": (18, *size[1:]) for leaf, size in leaves.items()}
    out = {"m.out.weight": (9, 5)}
    made = pairing(port(signature(several | out), wanted(one | out)))
    for leaf in leaves:
        assert made[f"m.{name}.{leaf}"] == f"cat(0, {', '.join(f'm.{part}_{word}.{leaf}' for part in 'qkv')})"
    back = pairing(port(signature(one | out), wanted(several | out)))
    assert back[f"m.k_{word}.bias"] == f"slice(m.{name}.bias, 0, 6, 12)"
