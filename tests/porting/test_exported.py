"""Files that were exported to ONNX: numbers in place of names, in the order of use, and matrices with inputs first."""

from __future__ import annotations

from typing import Any

import pytest
from sides import found, pairing, signature, wanted

torch = pytest.importorskip("torch")


class Net(torch.nn.Module):
    """A convolution, and layers that are used in another order than they are registered."""

    def __init__(self, names: tuple[str, str, str] = ("keys", "queries", "free")) -> None:
        super().__init__()
        self.names = names
        self.stem, self.body = torch.nn.Conv2d(3, 6, 3), torch.nn.Conv2d(6, 6, 1)
        for name in names:
            setattr(self, name, torch.nn.Linear(6, 6, bias=name != "free"))
        self.out = torch.nn.Linear(6, 2)

    def forward(self, x: Any) -> Any:
        x = self.body(self.stem(x).relu()).flatten(2).transpose(1, 2)
        first, second, last = (getattr(self, self.names[i]) for i in (1, 0, 2))
        return self.out(last(first(x).tanh() * second(x))[:, 0])


def exported(model: Net, *, dynamo: bool = False) -> dict[str, Any]:
    """The initialisers that torch.onnx.export writes for it, where batch norms were folded into the convolutions."""
    kept = {k: v for k, v in model.state_dict().items() if k.endswith("bias") and not k.startswith(("stem", "body"))}
    kept["out.weight"] = model.out.weight
    numbered = [("Conv", model.stem.weight), ("Conv", model.stem.bias), ("Conv", model.body.weight)]
    numbered += [("Conv", model.body.bias)]
    used = [model.get_submodule(model.names[i]) for i in (1, 0, 2)]
    numbered += [("MatMul", layer.weight.t()) for layer in used]
    if dynamo:
        convolutions = {k: v for k, v in model.state_dict().items() if k.startswith(("stem", "body"))}
        return convolutions | kept | {f"val_{300 + 2 * n}": v for n, (op, v) in enumerate(numbered) if op == "MatMul"}
    return kept | {f"onnx::{op}_{193 + n + n // 2}": v for n, (op, v) in enumerate(numbered)}


def transfer(source: dict[str, Any], model: Any) -> Any:
    from ckptool.model_code.building import signature_of
    from ckptool.porting.sources import match_signature

    return match_signature(source, signature_of(model, inputs=(torch.zeros(1, 3, 5, 5),)))


@pytest.mark.parametrize("dynamo", [False, True])
def test_what_has_a_number_is_known_by_the_order_of_use_in_the_model_that_was_exported(dynamo: bool) -> None:
    import ckptool

    theirs, own = Net(), Net()
    assert transfer(exported(theirs, dynamo=dynamo), own).is_sure
    ckptool.load_into(own, exported(theirs, dynamo=dynamo))
    x = torch.randn(2, 3, 5, 5)
    torch.testing.assert_close(own(x), theirs(x))


def test_the_code_of_the_graph_does_not_turn_matrices_a_second_time() -> None:
    import ckptool

    class Graph(torch.nn.Module):
        """Multiplies with the matrices as they are in the file."""

        def __init__(self) -> None:
            super().__init__()
            held = torch.nn.ModuleDict({"a": torch.nn.Module(), "b": torch.nn.Module()})
            held["a"].bias, held["b"].bias = (torch.nn.Parameter(torch.randn(n)) for n in (6, 4))
            self.a, self.b = held["a"], held["b"]
            self.register_parameter("onnx::MatMul_7", torch.nn.Parameter(torch.randn(6, 6)))
            self.register_parameter("onnx::MatMul_9", torch.nn.Parameter(torch.randn(6, 4)))

        def forward(self, x: Any) -> Any:
            first, second = (getattr(self, f"onnx::MatMul_{n}") for n in (7, 9))
            return torch.matmul((torch.matmul(x, first) + self.a.bias).relu(), second) + self.b.bias

    class Layers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(6, 6), torch.nn.Linear(6, 4)

        def forward(self, x: Any) -> Any:
            return self.b(self.a(x).relu())

    torch.manual_seed(0)
    theirs, own, x = Graph(), Layers(), torch.randn(2, 6)
    mapping = ckptool.transfer(theirs.state_dict(), own, source_model=theirs, inputs=["float32[2,6]"], prove=False)
    ckptool.load_into(own, theirs.state_dict(), mapping=mapping)
    torch.testing.assert_close(own(x), theirs(x))


def test_under_other_names_it_is_a_guess_which_matrix_belongs_to_which_bias() -> None:
    theirs, own = Net(("k", "q", "v")), Net(("keys", "queries", "values"))
    mapping = transfer(exported(theirs), own)
    pairs = pairing(mapping)
    assert [pairs[f"{name}.bias"] for name in ("stem", "body")] == ['"onnx::Conv_194"', '"onnx::Conv_197"']
    assert pairs["values.weight"] == 'transpose("onnx::MatMul_202")'
    for name in ("keys", "queries"):
        entry = found(mapping, f"{name}.weight")
        assert entry.status == "guessed"
        assert {str(entry.expr), *map(str, entry.rivals)} >= {f'transpose("onnx::MatMul_{n}")' for n in (199, 200)}


def test_two_names_with_one_number_are_two_tensors() -> None:
    from ckptool.porting.forms.canonical import canonical

    source = signature({"val_7": (3, 6), "val_07": (3, 6), "out.bias": (6,)})
    pieces = canonical(source, wanted({"a.weight": (6, 3), "b.weight": (6, 3)}))[0].pieces.values()
    made = {str(piece.expr): piece.shape for piece in pieces}
    assert made == {"transpose(val_7)": (6, 3), "transpose(val_07)": (6, 3), "out.bias": (6,)}
