"""MODEL.py as people have it: a model is found in it, or one line says what to type."""

import dataclasses
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import ckptool
from ckptool.cli import main
from ckptool.errors import Ambiguous, NotFound, RuleError, Unreadable
from ckptool.model_code.arguments import _fields
from ckptool.model_code.building import build, find_model

HEAD = "import torch\nfrom torch import nn\n\n"
LAYER = (
    "class {}(nn.Module):\n    def __init__(self{}):\n        super().__init__()\n        self.{} = nn.Linear({})\n\n"
)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


def code(text, name="net.py"):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(HEAD + text)
    return name


def chosen(name, weights=None):
    return find_model(name, weights=weights).name


BLOCKS = LAYER.format("Block", "", "a", "2, 2") + LAYER.format("Head", "", "b", "2, 3")
NO_PARAMETERS = "class Swish(nn.Module):\n    def forward(self, x):\n        return x * x.sigmoid()\n\n"
NET = LAYER.format("Net", "", "fc", "5, 7")


def test_a_helper_without_parameters_is_not_the_model():
    assert chosen(code(NO_PARAMETERS + NET)) == "Net"
    assert chosen(code("class Mixin:\n    pass\n\n" + NO_PARAMETERS + NET, "b.py")) == "Net"


def test_of_several_models_the_one_that_the_weights_go_into_is_meant(capsys):
    path = code(NET + LAYER.format("Alt", "", "fc", "5, 9") + BLOCKS)
    for name, size in (("Net", 7), ("Alt", 9)):
        assert chosen(path, {"fc.weight": (size, 5), "fc.bias": (size,)}) == name
    torch.save({"fc.weight": torch.ones(9, 5), "fc.bias": torch.ones(9)}, "a.pth")
    assert ckptool.fits("a.pth", path).fits
    assert ckptool.doctor("a.pth", path).healthy
    with pytest.raises(SystemExit) as left:
        main(["transfer", "a.pth", path, "-o", "out.pth"])
    assert not left.value.code, capsys.readouterr().err


AVERAGED = """
class Averaged(nn.Module):
    'Keeps the average of a Net.'

    def __init__(self, net{kind}=None):
        super().__init__()
        self.net, self.steps = net, nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.net(x)
"""


@pytest.mark.parametrize("kind", ["", ": Net"])
def test_a_class_for_averages_of_a_model_is_not_taken_for_it(kind):
    path = code(NET + AVERAGED.format(kind=kind))
    assert chosen(path, {"fc.weight": (7, 5), "fc.bias": (7,)}) == "Net"
    assert chosen(path, {"steps": (1,)}) == "Averaged"


def test_weights_of_other_names_choose_by_their_shapes():
    path = code(NET + LAYER.format("Alt", "", "fc", "5, 9"))
    assert chosen(path, {"module.linear.weight": (9, 5)}) == "Alt"


def test_of_equal_ones_none_is_chosen_and_the_best_stand_first():
    path = code(BLOCKS + LAYER.format("Twin", "", "fc", "5, 7") + NET)
    with pytest.raises(Ambiguous) as raised:
        find_model(path, weights={"fc.weight": (7, 5)})
    assert [line.split()[0] for line in raised.value.evidence][:2] == ["Twin", "Net"]
    assert raised.value.hint == "net.py:Twin"
    with pytest.raises(Ambiguous):
        find_model(path)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("def build():\n    return nn.Linear(2, 3)\n", "build"),
        ("def create_model():\n    return nn.Linear(2, 3)\n", "create_model"),
        (
            LAYER.format("VGG", ", classes", "fc", "5, classes")
            + "def vgg(num_classes=10):\n    return VGG(num_classes)\n",
            "vgg",
        ),
        (
            LAYER.format("VGG", ", classes", "fc", "5, classes")
            + "def vgg(num_classes=10):\n    model = VGG(num_classes)\n    model.eval()\n    return model\n",
            "vgg",
        ),
        (NET + "def conv(n=2):\n    return nn.Conv2d(n, n, 3)\n", "Net"),
        (
            LAYER.format("Block", "", "a", "2, 2") + "def block():\n    return Block()\n\n"
            "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n        self.b = Block()\n",
            "Net",
        ),
    ],
    ids=["build", "create_model", "returns", "by a name", "a helper", "a block"],
)
def test_functions_without_an_annotation_count(text, name):
    path = code(text)
    assert chosen(path) == name
    assert isinstance(build(find_model(path)), torch.nn.Module)


@pytest.mark.parametrize("first", ["", "from __future__ import annotations\n"])
@pytest.mark.parametrize("said", ["Net", "'Net'", "nn.Module", "'Missing'"])
def test_an_annotation_says_that_a_function_makes_a_model_also_as_a_text(first, said):
    sized = LAYER.format("Net", ", n", "fc", "5, n") + "def _net(n):\n    return Net(n)\n\n"
    Path("net.py").write_text(first + HEAD + sized + f"def small() -> {said}:\n    return _net(7)\n")
    assert chosen("net.py") == ("Net" if "Missing" in said else "small")


def test_of_several_functions_the_one_that_the_weights_go_into_is_meant():
    text = LAYER.format("VGG", ", classes", "fc", "5, classes")
    text += "".join(f"def vgg{n}(num_classes={n}):\n    return VGG(num_classes)\n\n" for n in (11, 13, 19))
    assert chosen(code(text), {"fc.weight": (13, 5)}) == "vgg13"


def test_a_model_that_is_made_when_the_file_is_run_is_the_reason():
    path = code("if __name__ == '__main__':\n    net = nn.Linear(2, 3)\n")
    with pytest.raises(NotFound, match=r"makes its model under `if __name__ == \"__main__\":` \(line 5\)") as raised:
        find_model(path)
    assert "`net = …`" in raised.value.hint


def test_a_file_of_a_package_may_import_its_neighbours():
    code("", "pack/__init__.py")
    code("", "pack/inner/__init__.py")
    code(LAYER.format("Part", "", "a", "2, 2"), "pack/parts.py")
    text = "class Net(Part):\n    pass\n"
    Path("pack/inner/net.py").write_text("from ..parts import Part\n\n\n" + text)
    assert chosen("pack/inner/net.py") == "Net"
    assert "a.weight" in build(find_model("pack/inner/net.py:Net")).state_dict()


def test_a_command_line_that_is_read_when_it_is_imported():
    text = "import argparse\np = argparse.ArgumentParser()\np.add_argument({})\nargs = p.parse_args()\n"
    assert chosen(code(text.format("'--width', default=3") + NET)) == "Net"
    with pytest.raises(Unreadable, match=r"it is imported \(SystemExit\): it reads a command line") as raised:
        find_model(code(text.format("'data'") + NET, "b.py"))
    assert "__main__" in raised.value.hint


def test_a_module_that_is_not_there_is_named():
    with pytest.raises(Unreadable, match="needs the module 'no_such_thing', which is not there") as raised:
        find_model(code("import no_such_thing.models\n"))
    assert raised.value.hint.startswith("PYTHONPATH=FOLDER if no_such_thing is in a folder of yours")


def test_a_configuration_is_given_as_json(capsys):
    path = code(
        "class Net(nn.Module):\n    def __init__(self, cfg):\n        super().__init__()\n"
        "        self.fc = nn.Linear(cfg.model.dim, cfg['classes'])\n"
    )
    with pytest.raises(RuleError, match="Net needs cfg") as raised:
        build(find_model(path))
    assert raised.value.hint == "--kwargs cfg='{\"NAME\": VALUE}'"
    torch.save({"fc.weight": torch.ones(4, 3), "fc.bias": torch.ones(4)}, "a.pth")
    with pytest.raises(SystemExit) as left:
        main(["transfer", "a.pth", path, "-o", "b.pth", "--kwargs", 'cfg={"model": {"dim": 3}, "classes": 4}'])
    assert not left.value.code, capsys.readouterr().err


def test_the_fields_of_a_configuration_are_shown_with_their_values():
    @dataclasses.dataclass
    class Settings:
        width: int
        note: str = "a: null"
        depth: int | None = None

    assert _fields(Settings) == '{"width": VALUE, "note": "a: null", "depth": VALUE}'
