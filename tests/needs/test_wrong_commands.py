"""Wrong files and wrong commands: one line that is true, and a hint that works when its whole line is pasted."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from typing_user import NET_PY, net


@pytest.fixture
def files(user):
    """What stands about in the folder of a tired user."""
    weights = net().state_dict()
    torch.save(weights, "plain.pth")
    torch.save({f"module.{key}": value for key, value in weights.items()}, "dp.pth")
    torch.save({"state_dict": weights, "epoch": 3}, "env.pth")
    torch.save(
        {"state_dict": weights, "state_dict_ema": {key: value.clone() for key, value in weights.items()}}, "timm.pth"
    )
    torch.save(
        {"state_dict": {f"net.{key}": value for key, value in weights.items()} | {"loss.w": torch.ones(1)}}, "l.ckpt"
    )
    torch.save(torch.nn.Linear(2, 2), "whole.pth")
    torch.save(torch.optim.Adam(net().parameters()).state_dict(), "optim.pt")
    torch.save(torch.rand(3), "tensor.pt")
    torch.save({}, "nothing.pt")
    torch.save({"w": torch.eye(3).to_sparse(), "v": torch.ones(2)}, "sparse.pth")
    save_file(weights, "plain.safetensors")
    Path("cut.pth").write_bytes(Path("plain.safetensors").read_bytes()[:-10])
    Path("net.py").write_text(NET_PY)
    Path("notes.txt").write_text("hello")
    Path("empty").mkdir()
    return user


PASTED = [
    ("ckptool strip-prefix dp.pth o.pth --prefix model.", "no key starts with 'model.'"),
    ("ckptool strip-prefix dp.pth --in-place --prefix modul", "no key starts with 'modul.'"),
    ("ckptool convert l.ckpt o.pth --extract --strip-prefix net.", "'net.' fits 13 of 14 keys"),
    ("ckptool convert env.pth o.safetensors", "these would be lost"),
    ("ckptool convert sparse.pth o.safetensors", "these would be lost"),
    ("ckptool convert plain.pth o.pth --cast bfloat", "not a floating point dtype"),
    ("ckptool rename plain.pth o.pth --rename body=trunk", "no key matches"),
    ("ckptool slim timm.pth o.pth", "say which"),
    ("ckptool strip-prefix whole.pth o.pth", "pickled model"),
    ("ckptool transfer net.py plain.pth -o o.pth", "is code; the weights come first"),
    ("ckptool doctor net.py plain.pth", "is code; the file comes first"),
    ("ckptool inspect plian.pth", "no such file"),
    ("ckptool convert plan.pth o.safetensors", "no such file"),
    ("ckptool transfer plain.pth net.py:Nte -o o.pth", "there is no 'Nte' in it"),
    ("ckptool transfer plain.pth net.py --kwargs clases=3 -o o.pth", "takes no 'clases'"),
    ("ckptool convert plain.pth new/o.pth", "does not exist"),
    ("ckptool repair cut.pth o.pth", "would be lost"),
    ("ckptool convert plain.pth o.pth --for troch", "is not a version of torch"),
    ("ckptool transfer optim.pt net.py -o o.pth", "holds no state dict"),
    ("ckptool convert plain.pth dp.pth", "exists already"),
    ("ckptool strip-prefix dp.pth dp.pth", "exists already"),
    ("ckptool convert dp.pth o.pth --strip-prefix module. --save-recipe notes.txt", "exists already"),
    ("ckptool slim plain.pth o.pth --weights ema", "holds no moving average"),
]


@pytest.mark.parametrize(("line", "says"), PASTED)
def test_the_hint_of_a_wrong_command_can_be_pasted(files, line, says):
    before = {path: path.read_bytes() for path in Path().glob("*.*")}
    seen = files.tries(line)
    assert seen.code == 2
    assert says in " ".join(seen.text.split()), seen.text
    (hint,) = [row.removeprefix("Hint: ") for row in seen.text.splitlines() if row.startswith("Hint: ")]
    if hint.startswith("mkdir -p "):
        Path(hint.removeprefix("mkdir -p ")).mkdir(parents=True)
        hint = line
    files.types(hint)
    assert all(path.read_bytes() == data for path, data in before.items() if "--in-place" not in line)


def test_who_names_a_folder_of_files_is_told_what_is_in_each(files):
    Path("runs").mkdir()
    Path("plain.pth").rename("runs/plain.pth")
    seen = files.tries("ckptool convert runs o.pth")
    assert (seen.code, Path("o.pth").exists()) == (2, False)
    (hint,) = [row.removeprefix("Hint: ") for row in seen.text.splitlines() if row.startswith("Hint: ")]
    assert "plain.pth: no problem found" in files.types(hint).text


NUMBERS_WRONG = {
    "slice(conv1.weight,0)": "slice(x, dim, start, stop)",
    "transpose(conv1.weight, 5, 7, 9)": "transpose(x)",
    "lora(fc.weight, 1.0, 2.0)": "lora(w, a, b, scale)",
}


@pytest.mark.parametrize("expression", NUMBERS_WRONG)
def test_an_operation_of_a_mapping_with_too_few_or_many_arguments_is_shown_as_it_is_written(files, expression):
    files.types("ckptool transfer plain.pth net.py --save-mapping map.yaml -n")
    Path("map.yaml").write_text(Path("map.yaml").read_text().replace(": conv1.weight", f": {expression}"))
    seen = files.tries("ckptool transfer plain.pth net.py --mapping map.yaml -o o.pth")
    assert (seen.code, Path("o.pth").exists()) == (2, False)
    assert "map.yaml: line 5" in seen.text
    assert f"Hint: it is written {NUMBERS_WRONG[expression]}" in seen.text


def test_the_way_back_with_the_model_of_the_way_there_says_which_model_is_meant(files):
    Path("mine.py").write_text(NET_PY.replace("conv1", "stem"))
    files.types("ckptool transfer plain.pth mine.py --save-mapping map.yaml -o mine.pth")
    seen = files.tries("ckptool transfer mine.pth mine.py --mapping map.yaml --invert -o back.pth")
    assert seen.code == 2
    assert "the model does not have 2 keys" in seen.text
    assert "the model is the one that the mapping takes from" in seen.text
    files.types("ckptool transfer mine.pth net.py --mapping map.yaml --invert -o back.pth")
    assert all(torch.equal(value, net().state_dict()[key]) for key, value in torch.load("back.pth").items())


SAID = {
    "optim.pt": "it is the state of an optimizer; the weights are in another file",
    "tensor.pt": "it is one tensor of shape [3], and no state dict",
    "nothing.pt": "it is a dict without entries: nothing was saved",
    "notes.txt": "not a checkpoint that can be read: a text: hello",
    "empty": "it is empty",
}


@pytest.mark.parametrize("name", SAID)
def test_doctor_says_what_a_file_is_that_holds_no_weights_and_cures_nothing(files, name):
    seen = files.asks(f"ckptool doctor {name}", says=SAID[name])
    assert "to fix it" not in seen.text
