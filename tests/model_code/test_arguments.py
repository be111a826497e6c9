"""Arguments for the code of a model: configurations, dataclasses, and what the code says of itself."""

import json
import shlex

import pytest

torch = pytest.importorskip("torch")

from ckptool.cli import main
from ckptool.cli.typed import keyword_arguments
from ckptool.errors import CheckpointError
from ckptool.model_code.building import build, find_model

HEAD = "import torch\nfrom torch import nn\nfrom dataclasses import dataclass\nfrom typing import Optional\n\n"
BODY = "        super().__init__()\n        self.fc = nn.Linear({}, {})\n"
CODES = {
    "an object with attributes and entries": "class Net(nn.Module):\n    def __init__(self, config):\n"
    + BODY.format("config.width", "config['out']"),
    "a dataclass": "@dataclass\nclass Args:\n    width: int\n    out: int = 2\n\n"
    f"class Net(nn.Module):\n    def __init__(self, config: Args):\n{BODY.format('config.width', 'config.out')}",
    "a dataclass that may be left out": "@dataclass\nclass Args:\n    width: int\n    out: int = 2\n\n"
    f"class Net(nn.Module):\n    def __init__(self, config: 'Optional[Args]' = None):\n"
    f"        assert isinstance(config, Args)\n{BODY.format('config.width', 'config.out')}",
    "a configuration of transformers": "class Config:\n    def __init__(self, width=3, out=2, **others):\n"
    "        self.width, self.out = width, out\n\n"
    f"class Net(nn.Module):\n    config_class = Config\n    def __init__(self, config):\n"
    f"        assert isinstance(config, Config)\n{BODY.format('config.width', 'config.out')}",
}


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"fc.weight": torch.ones(2, 5), "fc.bias": torch.ones(2)}, tmp_path / "w.pth")


def shapes(text, *arguments):
    model = build(find_model(text, keyword_arguments(arguments, "--kwargs")))
    return {key: tuple(value.shape) for key, value in model.state_dict().items()}


@pytest.mark.parametrize("kind", CODES)
@pytest.mark.parametrize("how", ["typed", "in a file", "in YAML"])
def test_a_configuration_becomes_what_the_code_takes(tmp_path, kind, how):
    (tmp_path / "net.py").write_text(HEAD + CODES[kind])
    (tmp_path / "config.json").write_text('{"width": 5, "out": 2}')
    (tmp_path / "config.yaml").write_text("width: 5\nout: 2\n")
    value = {"typed": '{"width": 5, "out": 2}', "in a file": "@config.json", "in YAML": "@config.yaml"}[how]
    assert shapes("net.py", f"config={value}") == {"fc.weight": (2, 5), "fc.bias": (2,)}


def hint_of(capsys, line):
    with pytest.raises(SystemExit):
        main(shlex.split(line, comments=True)[1:])
    (hint,) = [part for part in capsys.readouterr().err.splitlines() if part.startswith("Hint: ")]
    return hint.removeprefix("Hint: ")


def test_the_call_that_is_named_is_in_the_file_of_the_class(tmp_path):
    net = "class Net(nn.Module):\n    def __init__(self, width, depth):\n" + BODY.format("width", "depth")
    (tmp_path / "base_net.py").write_text(f"{HEAD}{net}\nif not Net:\n    Net(4, depth=2)\n")
    (tmp_path / "user_net.py").write_text("from base_net import Net\n")
    with pytest.raises(CheckpointError) as raised:
        build(find_model("user_net.py:Net"))
    assert raised.value.evidence[1] == "line 12 of base_net.py calls it with these"


def test_the_call_that_is_named_is_the_last_one_of_the_file(tmp_path, capsys):
    body = BODY.format("dim", "dim")
    code = f"class Net(nn.Module):\n    def __init__(self, dim):\n{body}\n"
    code += "def both():\n    if True:\n        return [[Net(dim=3)]]\n\n"
    (tmp_path / "net.py").write_text(HEAD + code + "if __name__ == '__main__':\n    net = Net(dim=64)\n")
    assert "dim=64" in hint_of(capsys, "ckptool transfer w.pth net.py")


HINTS = {
    "a call under __main__": "class Net(nn.Module):\n    def __init__(self, width, depth):\n"
    f"{BODY.format('width', 'depth')}\nif __name__ == '__main__':\n    net = Net(5, depth=2)\n",
    "a dataclass with values": f"@dataclass\nclass Args:\n    width: int = 5\n    out: int = 2\n\n"
    f"class Net(nn.Module):\n    def __init__(self, args: Args):\n{BODY.format('args.width', 'args.out')}",
    "a class with values": "class Config:\n    def __init__(self, width=5):\n        self.width = width\n\n"
    f"class Net(nn.Module):\n    def __init__(self, config: Config):\n{BODY.format('config.width', '2')}",
    "a file beside it": f"class Net(nn.Module):\n    def __init__(self, cfg):\n{BODY.format('cfg.width', '2')}",
}


@pytest.mark.parametrize("kind", HINTS)
@pytest.mark.parametrize(
    "command", ["verify w.pth --fits net.py", "transfer w.pth net.py -o o.pth", "doctor w.pth net.py"]
)
def test_the_command_of_the_hint_builds_the_model(tmp_path, capsys, kind, command):
    (tmp_path / "net.py").write_text(HEAD + HINTS[kind])
    if "beside" in kind:
        (tmp_path / "config.json").write_text(json.dumps({"width": 5}))
    line = hint_of(capsys, f"ckptool {command}")
    assert line.startswith(f"ckptool {command} --kwargs ")
    with pytest.raises(SystemExit) as left:
        main(shlex.split(line)[1:])
    assert not left.value.code


@pytest.mark.parametrize(
    "code",
    [
        "def vgg(classes=2):\n    return nn.Sequential(nn.Linear(5, classes))\n",
        "def net():\n    made = nn.Sequential(nn.Linear(5, 2))\n    return made.eval()\n",
        "def net(depth=1):\n    return _make(depth)\n\ndef _make(n):\n    "
        "    return torch.nn.Sequential(*[nn.Linear(5, 2)] * n)\n",
        "def net():\n    return nn.Sequential(nn.Linear(5, 2)).to('cpu').eval()\n\n"
        "def loss(a, b):\n    return (a - b).mean()\n",
    ],
)  # fmt: skip
def test_a_function_without_annotation_is_seen_to_make_a_model(tmp_path, code):
    (tmp_path / "net.py").write_text(HEAD + code)
    assert shapes("net.py") == {"0.weight": (2, 5), "0.bias": (2,)}


def test_functions_that_make_no_model_are_not_called(tmp_path):
    (tmp_path / "net.py").write_text(
        HEAD + "def main():\n    return train(1)\n\ndef train(n):\n    raise SystemExit(3)\n"
    )
    with pytest.raises(CheckpointError, match="defines no model"):
        find_model("net.py")


def test_what_a_command_line_wants_is_said_once(tmp_path, capfd):
    (tmp_path / "net.py").write_text(
        "import argparse\np = argparse.ArgumentParser()\np.add_argument('data')\np.parse_args()\n"
    )
    with pytest.raises(CheckpointError) as raised:
        find_model("net.py")
    assert raised.value.evidence[-1] == "net.py: error: the following arguments are required: data"
    assert capfd.readouterr().err == ""


def test_an_entry_that_a_dataclass_has_not_is_named(tmp_path):
    (tmp_path / "net.py").write_text(HEAD + CODES["a dataclass"])
    with pytest.raises(CheckpointError, match=r"Args has no 'widht'") as raised:
        shapes("net.py", 'config={"widht": 5}')
    assert raised.value.hint == "did you mean 'width'?"


def test_json_whose_quotes_a_shell_took_is_named():
    with pytest.raises(CheckpointError, match="is not JSON; a shell takes quotes away"):
        keyword_arguments(["config={width:5}"], "--kwargs")
