"""Recurrent cells: gates that stand apart, in one matrix, in other orders, there and back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
from sides import pairing, signature, wanted, worked_out

from ckptool.model_code.signature import Facts, Signature
from ckptool.porting import expression as ex
from ckptool.porting.forms.canonical import canonical
from ckptool.porting.port import port

IN, WIDTH = 5, 4
RANDOM = np.random.default_rng(0)
GATES = {"lstm": "ifgo", "gru": "rzn"}
WORDS = {
    "lstm": {"i": "input", "f": "forget", "g": "cell", "o": "output"},
    "gru": {"r": "reset", "z": "update", "n": "cand"},
}

Spelling = Callable[[str, str, str], str]


def recurrent(kind: str) -> dict[str, np.ndarray[Any, Any]]:
    """What nn.LSTM or nn.GRU holds."""
    rows = len(GATES[kind]) * WIDTH
    shapes = {"weight_ih_l0": (rows, IN), "weight_hh_l0": (rows, WIDTH), "bias_ih_l0": (rows,), "bias_hh_l0": (rows,)}
    return {key: RANDOM.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}


#: How codes call the layer of a gate and a side.
SPELLINGS: dict[str, Spelling] = {
    "side and gate in one word": lambda kind, side, gate: f"W_{'x' if side == 'ih' else 'h'}{gate}",
    "as the equations of torch": lambda kind, side, gate: f"{'i' if side == 'ih' else 'h'}{gate}",
    "gate, then side": lambda kind, side, gate: f"{WORDS[kind][gate]}_{'x' if side == 'ih' else 'h'}",
    "two letters": lambda kind, side, gate: f"{'W' if side == 'ih' else 'U'}_{gate}",
    "u and v": lambda kind, side, gate: f"{'U' if side == 'ih' else 'V'}_{gate}",
    "a module for each gate": lambda kind, side, gate: f"{WORDS[kind][gate]}_gate.{'x' if side == 'ih' else 'h'}",
    "linear layers": lambda kind, side, gate: f"linear_{'x' if side == 'ih' else 'h'}_{WORDS[kind][gate]}",
}


def apart(held: dict[str, np.ndarray[Any, Any]], kind: str, spelling: Spelling, order: str) -> dict[str, Any]:
    found = {}
    for gate in order:
        for side in ("ih", "hh"):
            at = GATES[kind].index(gate)
            for leaf in ("weight", "bias"):
                block = held[f"{leaf}_{side}_l0"][at * WIDTH : (at + 1) * WIDTH]
                found[f"cell.{spelling(kind, side, gate)}.{leaf}"] = block
    return found


OUT = {"out.weight": RANDOM.standard_normal((3, WIDTH)).astype(np.float32)}
CASES = [(kind, name) for kind in GATES for name in SPELLINGS]


def shapes_of(values: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    return {key: np.shape(value) for key, value in values.items()}


@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.parametrize("turned", [False, True])
def test_a_layer_for_each_gate_becomes_one_in_the_order_of_torch(kind: str, name: str, turned: bool) -> None:
    held = {f"rnn.{key}": value for key, value in recurrent(kind).items()}
    order = GATES[kind][::-1] if turned else GATES[kind]
    source = apart({key[4:]: value for key, value in held.items()}, kind, SPELLINGS[name], order)
    made = worked_out(source | OUT, shapes_of(held) | {"out.weight": (3, WIDTH)})
    for key, value in (held | OUT).items():
        assert made[key].status == "mapped"
        np.testing.assert_array_equal(made[key].values, value)


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_one_layer_in_the_order_of_torch_becomes_one_for_each_gate(kind: str, name: str) -> None:
    held = {f"rnn.{key}": value for key, value in recurrent(kind).items()}
    wanted = apart({key[4:]: value for key, value in held.items()}, kind, SPELLINGS[name], GATES[kind])
    made = worked_out(held | OUT, shapes_of(wanted | OUT))
    for key, value in wanted.items():
        assert made[key].status == "mapped"
        np.testing.assert_array_equal(made[key].values, value)


def test_two_directions_become_those_of_one_layer() -> None:
    both = {"": recurrent("gru"), "_reverse": recurrent("gru")}
    source: dict[str, Any] = {}
    for prefix, suffix in (("bwd", "_reverse"), ("fwd", "")):
        own = apart(both[suffix], "gru", SPELLINGS["gate, then side"], "zrn")
        source |= {key.replace("cell.", f"{prefix}_cell."): value for key, value in own.items()}
    held = {f"rnn.{key}{suffix}": value for suffix, values in both.items() for key, value in values.items()}
    made = worked_out(source, shapes_of(held))
    for key, value in held.items():
        np.testing.assert_array_equal(made[key].values, value)


def test_parameters_with_their_inputs_first_and_one_bias_for_each_gate() -> None:
    held = recurrent("lstm")
    source = {}
    for at, gate in enumerate("ifgo"):
        rows = slice(at * WIDTH, (at + 1) * WIDTH)
        source[f"W_x{gate}"], source[f"W_h{gate}"] = held["weight_ih_l0"][rows].T, held["weight_hh_l0"][rows].T
        source[f"b_{gate}"] = held["bias_ih_l0"][rows]
    made = worked_out({f"cell.{k}": v for k, v in source.items()}, {f"rnn.{k}": v.shape for k, v in held.items()})
    for key in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0"):
        np.testing.assert_array_equal(made[f"rnn.{key}"].values, held[key])
    np.testing.assert_array_equal(made["rnn.bias_hh_l0"].values, np.zeros(4 * WIDTH, np.float32))


def test_a_layer_that_takes_input_and_state_side_by_side_is_cut_and_its_order_doubted() -> None:
    held = recurrent("lstm")
    both = np.concatenate([held["weight_ih_l0"], held["weight_hh_l0"]], 1)
    source: dict[str, Any] = {}
    for at, gate in enumerate("ifgo"):
        rows = slice(at * WIDTH, (at + 1) * WIDTH)
        name = f"cell.{WORDS['lstm'][gate]}_gate"
        source |= {f"{name}.weight": both[rows], f"{name}.bias": held["bias_ih_l0"][rows]}
    made = worked_out(source, {f"rnn.{k}": v.shape for k, v in held.items()})
    for side in ("ih", "hh"):
        assert made[f"rnn.weight_{side}_l0"].status == "guessed"
        np.testing.assert_array_equal(made[f"rnn.weight_{side}_l0"].values, held[f"weight_{side}_l0"])
    np.testing.assert_array_equal(made["rnn.bias_ih_l0"].values, held["bias_ih_l0"])


LAST_OTHERWISE = {
    "over input and state, with another width": [(WIDTH, IN + WIDTH)] * 3 + [(WIDTH, WIDTH)],
    "over input and state, with fewer rows": [(WIDTH, IN + WIDTH)] * 3 + [(WIDTH - 1, IN + WIDTH)],
    "over input alone, with another width": [(WIDTH, IN)] * 3 + [(WIDTH, IN + 1)],
}


@pytest.mark.parametrize("name", LAST_OTHERWISE)
def test_gates_of_unequal_sizes_stay_as_they_are(name: str) -> None:
    gates = {f"cell.W_x{gate}": shape for gate, shape in zip("ifgo", LAST_OTHERWISE[name], strict=True)}
    states = {} if "state" in name else {f"cell.W_h{gate}": (WIDTH, WIDTH) for gate in "ifgo"}
    if not states:
        gates = {key.replace("_x", "_"): shape for key, shape in gates.items()}
    target = wanted({f"rnn.{key}": value.shape for key, value in recurrent("lstm").items()})
    source, _ = canonical(signature(gates | states), target)
    made = {str(piece.expr): piece.shape for piece in source.pieces.values()}
    assert {key: made.get(key) for key in gates} == gates


@pytest.mark.parametrize("rows", [1, WIDTH + 1])
@pytest.mark.parametrize("name", ["b_{}", "W_x{}.bias"])
def test_biases_that_are_not_as_long_as_a_gate_stay_as_they_are(name: str, rows: int) -> None:
    gates = {f"cell.W_{side}{gate}.weight": (WIDTH, IN if side == "x" else WIDTH) for side in "xh" for gate in "ifgo"}
    biases = {f"cell.{name.format(gate)}": (rows,) for gate in "ifgo"}
    target = wanted({f"rnn.{key}": value.shape for key, value in recurrent("lstm").items()})
    source, _ = canonical(signature(gates | biases), target)
    made = {str(piece.expr): piece.shape for piece in source.pieces.values()}
    assert {key: made.get(key) for key in biases} == biases


def test_all_gates_in_one_matrix_under_a_name_of_its_own_are_a_guess_about_their_order() -> None:
    held = recurrent("lstm")
    source = {"cell.x2h.weight": held["weight_ih_l0"], "cell.x2h.bias": held["bias_ih_l0"]}
    source |= {"cell.h2h.weight": held["weight_hh_l0"], "cell.h2h.bias": held["bias_hh_l0"]}
    made = worked_out(source, {f"rnn.{k}": v.shape for k, v in held.items()})
    for key, value in held.items():
        assert made[f"rnn.{key}"].status == "guessed"
        np.testing.assert_array_equal(made[f"rnn.{key}"].values, value)
        assert made[f"rnn.{key}"].entry.rivals


@pytest.mark.parametrize(("kind", "order"), [("lstm", "ifgo"), ("gru", "zrn")])
def test_a_recurrent_kernel_holds_its_gates_in_its_own_order(kind: str, order: str) -> None:
    held = recurrent(kind)

    def moved(value: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        return np.concatenate([np.split(value, len(order))[GATES[kind].index(gate)] for gate in order])

    source = {"rnn.kernel": moved(held["weight_ih_l0"]).T, "rnn.recurrent_kernel": moved(held["weight_hh_l0"]).T}
    source["rnn.bias"] = np.stack([moved(held["bias_ih_l0"]), moved(held["bias_hh_l0"])])
    made = worked_out(source | OUT, {f"rnn.{k}": v.shape for k, v in held.items()} | {"out.weight": (3, WIDTH)})
    for key, value in held.items():
        np.testing.assert_array_equal(made[f"rnn.{key}"].values, value)
        assert made[f"rnn.{key}"].status == "mapped"


@pytest.mark.parametrize("spelled", ["kernel", "apart"])
def test_a_gru_with_one_bias_may_use_its_reset_gate_where_torch_does_not(spelled: str) -> None:
    """With two biases there is nothing to ask: the one of the hidden state is multiplied by the gate."""
    held = recurrent("gru")
    if spelled == "kernel":
        source = {"rnn.kernel": held["weight_ih_l0"].T, "rnn.recurrent_kernel": held["weight_hh_l0"].T}
        source |= {"rnn.bias": held["bias_ih_l0"]}
    else:
        source = apart(held, "gru", SPELLINGS["gate, then side"], "zrn")
        source = {key: v for key, v in source.items() if v.ndim == 2 or key.rpartition(".")[0].endswith(("x", "i"))}
    made = worked_out(source | OUT, {f"rnn.{k}": v.shape for k, v in held.items()} | {"out.weight": (3, WIDTH)})
    assert {made[f"rnn.{key}"].status for key in held} == {"guessed"}
    assert any("reset_after=False" in str(question) for question in made["rnn.weight_hh_l0"].entry.questions)
    assert made["out.weight"].status == "mapped"


def test_an_incomplete_set_of_gates_is_joined_with_nothing() -> None:
    source = apart(recurrent("lstm"), "lstm", SPELLINGS["two letters"], "ifg")
    made = worked_out(source, {f"rnn.{k}": v.shape for k, v in recurrent("lstm").items()} | {"a.weight": (3, 3)})
    assert {entry.status for entry in made.values()} == {"unmapped"}


@pytest.mark.parametrize("name", ["two letters", "gate, then side"])
@pytest.mark.parametrize("back", [False, True])
def test_gates_in_a_matrix_that_has_their_letters_become_a_layer_each_and_back(name: str, back: bool) -> None:
    held = recurrent("lstm")
    single = apart(held, "lstm", SPELLINGS[name], "ifgo")
    fused: dict[str, Any] = {}
    for side, letter in (("ih", "x"), ("hh", "h")):
        for leaf in ("weight", "bias"):
            gates = dict(zip("ifgo", np.split(held[f"{leaf}_{side}_l0"], 4), strict=True))
            fused[f"tree.iou{letter}.{leaf}"] = np.concatenate([gates[gate] for gate in "iog"])  # u is g
            fused[f"tree.f{letter}.{leaf}"] = gates["f"]
    source, wanted = (single, fused) if back else (fused, single)
    made = worked_out(source | OUT, shapes_of(wanted | OUT))
    for key, value in wanted.items():
        assert made[key].status == "mapped"
        np.testing.assert_array_equal(made[key].values, value)


def test_some_gates_in_one_matrix_and_the_others_apart_become_a_layer_of_torch() -> None:
    held = recurrent("gru")
    source: dict[str, Any] = {}
    for side in ("ih", "hh"):
        r, z, n = np.split(held[f"weight_{side}_l0"], 3)
        source |= {f"cell.{'W' if side == 'ih' else 'U'}_zr.weight": np.concatenate([z, r])}
        source |= {f"cell.{'W' if side == 'ih' else 'U'}_n.weight": n}
    made = worked_out(source, {f"rnn.{k}": v.shape for k, v in held.items() if k.startswith("weight")})
    for side in ("ih", "hh"):
        np.testing.assert_array_equal(made[f"rnn.weight_{side}_l0"].values, held[f"weight_{side}_l0"])


def test_update_and_reset_gates_are_joined_apart_from_the_candidate() -> None:
    source = {
        f"update.gru.conv{gate}.{leaf}": shape
        for gate in "zrq"
        for leaf, shape in (("weight", (6, 9, 3, 3)), ("bias", (6,)))
    }
    target = {
        "gates.weight": (12, 9, 3, 3),
        "gates.bias": (12,),
        "candidate.weight": (6, 9, 3, 3),
        "candidate.bias": (6,),
    }
    mapping = port(signature(source), wanted(target, used=target))
    made = {e.target: (e.status, str(e.expr)) for e in mapping.entries}
    joined = "cat(0, update.gru.convz.weight, update.gru.convr.weight)"
    assert made["gates.weight"] == ("guessed", joined)
    assert made["candidate.weight"][1] == "update.gru.convq.weight"


_LSTM = [
    ("W_i", "W_f", "W_o", "W_c"),
    ("input_gate", "forget_gate", "output_gate", "cell_gate"),
    ("i", "f", "o", "g"),
    ("linear_i", "linear_f", "linear_o", "linear_g"),
    ("ig", "fg", "og", "candidate"),
]
_GRU = [("W_r", "W_z", "W_h"), ("reset_gate", "update_gate", "new_gate"), ("linear_r", "linear_z", "linear_n")]


def test_parameters_w_and_u_beside_one_bias_are_a_cell_and_a_guess_about_its_gates() -> None:
    held = recurrent("lstm")
    source = {f"rnn.{key}": value for key, value in held.items()}
    mapping = port(signature(shapes_of(source)), hand_written("cell"))
    made = {e.target: (e.status, str(e.expr)) for e in mapping.entries}
    assert made["cell.W"] == ("guessed", "transpose(rnn.weight_ih_l0)")
    assert made["cell.U"] == ("guessed", "transpose(rnn.weight_hh_l0)")
    assert made["cell.bias"] == ("guessed", "add(rnn.bias_ih_l0, rnn.bias_hh_l0)")


def hand_written(name: str) -> Signature:
    """A model whose LSTM multiplies with its own parameters from the right."""
    shapes = {f"{name}.W": (IN, 4 * WIDTH), f"{name}.U": (WIDTH, 4 * WIDTH), f"{name}.bias": (4 * WIDTH,)}
    plain = wanted(shapes, used=shapes)
    turned = {
        key: replace(e, how="matmul", facts=Facts(inputs_first=True)) if len(e.shape) == 2 else e
        for key, e in plain.entries.items()
    }
    return replace(plain, entries=turned)


def test_two_cells_in_one_module_are_told_by_their_kernels_and_their_gates_by_the_letters_behind_a_kind() -> None:
    kernels = {"1": (1, 5), "2": (5, 1)}
    source = {f"gru.conv{gate}{n}.weight": (4, 9, *size) for n, size in kernels.items() for gate in "zrq"}
    names = {"reset": "r", "update": "z", "candidate": "q"}
    target = {
        f"{cell}.{gate}.weight": (4, 9, *kernels[n]) for cell, n in (("down", "2"), ("across", "1")) for gate in names
    }
    mapping = port(signature(source), wanted(target))
    assert {entry.status for entry in mapping.entries} == {"mapped"}
    for cell, n in (("down", "2"), ("across", "1")):
        for gate, letter in names.items():
            assert pairing(mapping)[f"{cell}.{gate}.weight"] == f"gru.conv{letter}{n}.weight"


@pytest.mark.parametrize(
    ("theirs", "own"),
    [(a, b) for cell in (_LSTM, _GRU) for a, b in permutations(cell, 2)],
)
def test_gates_that_stay_apart_are_told_by_their_names_whatever_their_order(
    theirs: tuple[str, ...], own: tuple[str, ...]
) -> None:
    body = {"embed.weight": (30, 8), "out.weight": (5, 12)}
    source = body | {f"rnn.{name}.{leaf}": size for name in theirs[::-1] for leaf, size in _LAYER.items()}
    target = body | {f"cell.{name}.{leaf}": size for name in own for leaf, size in _LAYER.items()}
    mapping = port(signature(source), wanted(target, used=target))
    assert {entry.status for entry in mapping.entries} == {"mapped"}
    for old, new in zip(theirs, own, strict=True):
        assert pairing(mapping)[f"cell.{new}.weight"] == f"rnn.{old}.weight"


_LAYER = {"weight": (12, 20), "bias": (12,)}


def test_rows_that_gates_do_not_divide_are_not_cut() -> None:
    """Two of ten rows of four gates were lost."""
    source = {"cell.W_ifgo": (10, 3), "cell.U_ifgo": (10, 4), "out.weight": (5, 6)}
    target = {"out.weight": (5, 6), **{f"gates.{gate}.weight": (2, 3) for gate in "ifgo"}}
    mapping = port(signature(source), wanted(target))
    assert not any("slice(cell.W_ifgo" in str(entry.expr) for entry in mapping.entries)


def test_the_other_order_of_a_joined_matrix_has_the_rows_of_all_its_gates() -> None:
    layers = {f"cell.W_{gate}": (4, 7) for gate in "ifoc"}
    source = {f"{path}.weight": shape for path, shape in layers.items()} | {f"{path}.bias": (4,) for path in layers}
    target = {"rnn.weight_ih_l0": (16, 3), "rnn.weight_hh_l0": (16, 4), "rnn.bias_ih_l0": (16,)}
    mapping = port(signature(source | {"out.weight": (3, 4)}), wanted(target | {"out.weight": (3, 4)}))
    other = {
        entry.target: [option for question in entry.questions for option in question.options]
        for entry in mapping.entries
    }
    assert {key: [ex.shape_of(x, source) for x in options] for key, options in other.items()} == {
        "rnn.weight_ih_l0": [(16, 3)],
        "rnn.weight_hh_l0": [(16, 4)],
        "rnn.bias_ih_l0": [],
        "out.weight": [],
    }
    gates = [f"slice(cell.W_{gate}.weight, 1, 4, 7)" for gate in "ifco"]
    assert str(other["rnn.weight_ih_l0"][0]) == f"cat(0, {', '.join(gates)})"
