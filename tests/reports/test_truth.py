"""`ckptool doctor` without MODEL.py: what `load_state_dict(torch.load(FILE))` would not take is not healthy.

What is shown to type makes it so, and is not shown where it would not.
"""

import shlex
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from troubles import Net, typed, weights

import ckptool


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def loads(path):
    try:
        Net().load_state_dict(torch.load(path))
    except Exception:
        return False
    return True


def partly():
    return {(f"module.{key}" if n < 4 else key): value for n, (key, value) in enumerate(weights().items())}


ENVELOPES = {
    "under net": lambda: {"net": weights(), "acc": 0.9, "epoch": 3},
    "under two keys": lambda: {"models": {"net": weights()}},
    "in a list": lambda: {"model": [weights()]},
    "with a prefix": lambda: {"state_dict": weights("module.")},
    "partly prefixed": partly,
    "with an epoch": lambda: {**weights(), "epoch": 7},
    "with an optimizer": lambda: {**weights(), "optimizer": torch.optim.SGD(Net().parameters(), lr=1).state_dict()},
    "an average": lambda: {"n_averaged": torch.tensor(3), **weights("module.")},
}


@pytest.mark.parametrize("name", ENVELOPES)
def test_what_torch_would_not_take_is_not_healthy_and_the_cure_makes_it_so(name):
    torch.save(ENVELOPES[name](), "a.pth")
    assert not loads("a.pth")
    found = ckptool.doctor("a.pth")
    assert not found.healthy
    (command,) = found.cure
    code, words = typed(command)
    assert code == 0
    assert loads(words[3])
    assert ckptool.doctor(words[3]).healthy


@pytest.mark.parametrize("name", ["under net", "under two keys", "in a list"])
def test_the_line_of_python_for_an_envelope_works(name):
    torch.save(ENVELOPES[name](), "a.pth")
    (finding,) = [one for one in ckptool.doctor("a.pth").findings if one.name == "envelope"]
    model = Net()
    exec(finding.actions[0], {"torch": torch, "model": model})
    assert torch.equal(model.fc.weight, weights()["fc.weight"])


HOPELESS = {
    "zero-3": lambda: {key: value.new_empty(0) for key, value in weights().items()},
    "zero-3 with buffers": lambda: {k: v if "running" in k else v.new_empty(0) for k, v in weights().items()},
    "two placeholders": lambda: {"a.weight": torch.empty(0), "a.bias": torch.empty(0)},
    "no-parameters": lambda: {"state_dict": {"a": torch.empty(0, 3)}},
    "adapter": lambda: {
        "base_model.model.q.lora_A.weight": torch.ones(2, 4),
        "base_model.model.q.lora_B.weight": torch.ones(4, 2),
    },
    "adapter of kohya": lambda: {
        "lora_unet_q.lora_down.weight": torch.ones(2, 4),
        "lora_unet_q.lora_up.weight": torch.ones(4, 2),
        "lora_unet_q.alpha": torch.tensor(4.0),
    },
    "packed": lambda: {
        "a.weight": torch.ones(8, 1).byte(),
        "a.weight.absmax": torch.ones(1),
        "a.weight.quant_map": torch.ones(16),
    },
}


@pytest.mark.parametrize("name", HOPELESS)
def test_what_is_no_model_is_named_and_no_cure_is_shown(name):
    torch.save(HOPELESS[name](), "a.pth")
    found = ckptool.doctor("a.pth")
    kinds = {one.name for one in found.findings if one.trouble}
    expected = {"two placeholders": "zero-3", "zero-3 with buffers": "zero-3", "adapter of kohya": "adapter"}
    assert expected.get(name, name) in kinds
    assert found.cure == []


def test_the_code_of_the_model_refutes_what_names_suggest(tmp_path):
    """A model may have a part of its own that is called `module`, or a parameter without elements."""
    Path("odd.py").write_text(
        "import torch\nclass Odd(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.module = torch.nn.Linear(2, 2)\n        self.head = torch.nn.Linear(2, 2)\n"
    )
    part = torch.nn.Linear(2, 2).state_dict()
    torch.save({f"{name}.{key}": value for name in ("module", "head") for key, value in part.items()}, "a.pth")
    assert not ckptool.doctor("a.pth").healthy
    found = ckptool.doctor("a.pth", "odd.py")
    assert found.healthy
    assert found.cure == []


def test_a_training_checkpoint_can_be_mended_with_all_that_is_in_it():
    optimizer = torch.optim.SGD(Net().parameters(), lr=1)
    torch.save({"model": weights("module."), "optimizer": optimizer.state_dict(), "epoch": 3}, "a.pth")
    found = ckptool.doctor("a.pth")
    (beside,) = [one for one in found.findings if one.name == "beside"]
    outs = [shlex.split(command)[3] for command in (*found.cure, beside.commands[0][0])]
    assert len(set(outs)) == 2
    assert typed(beside.commands[0][0])[0] == 0
    loaded = torch.load(outs[1])
    Net().load_state_dict(loaded["model"])
    assert loaded["epoch"] == 3


@pytest.mark.parametrize("name", [*ENVELOPES, *HOPELESS])
def test_no_two_commands_of_one_report_write_one_file(name):
    torch.save((ENVELOPES | HOPELESS)[name](), "a.pth")
    found = ckptool.doctor("a.pth")
    commands = [*found.cure, *(command for one in found.findings for command, _ in one.commands)]
    looking = ("doctor", "inspect", "scan", "verify")
    writing = [words[3] for words in map(shlex.split, commands) if words[1] not in looking]
    assert len(writing) == len(set(writing))


# -- a message and a file

LISTS = "Missing key(s) in state_dict: {}. \n\tUnexpected key(s) in state_dict: {}. "


def quoted(keys):
    return ", ".join(f'"{key}"' for key in keys)


def messages_for(model, state):
    with pytest.raises(RuntimeError) as failed:
        model.load_state_dict(state)
    return str(failed.value), str(model.load_state_dict(state, strict=False))


@pytest.mark.parametrize("which", [0, 1], ids=["error", "_IncompatibleKeys"])
@pytest.mark.parametrize(
    "state",
    [
        lambda: weights("encoder.model."),
        lambda: weights("net.") | {"loss.weight": torch.ones(2)},
        lambda: weights("module._orig_mod."),
        lambda: {**weights(), "more.w": torch.ones(2)},
    ],
    ids=["prefix", "with a loss", "wrappers", "one more"],
)
def test_the_lists_of_a_message_and_the_file_choose_one_plan(state, which):
    torch.save({"state_dict": state(), "epoch": 1}, "a.pth")
    text = messages_for(Net(), state())[which]
    told, found = ckptool.advise(text, "a.pth")
    assert told
    (command,) = found.cure
    code, words = typed(command)
    assert code == 0
    assert loads(words[3])


def test_a_script_that_looks_for_a_key_finds_it_there():
    for value in (weights(), {"net": weights("module."), "epoch": 3}):
        torch.save(value, "a.pth")
        _, found = ckptool.advise("KeyError: 'state_dict'", "a.pth")
        (command,) = found.cure
        code, words = typed(command + " --overwrite")
        assert code == 0
        Net().load_state_dict(torch.load(words[3])["state_dict"])


def test_a_wrapped_model_gets_the_prefix_though_the_file_is_fine():
    torch.save(weights(), "a.pth")
    with pytest.raises(RuntimeError) as failed:
        torch.nn.DataParallel(Net()).load_state_dict(weights())
    _, found = ckptool.advise(str(failed.value), "a.pth")
    _, words = typed(found.cure[0])
    torch.nn.DataParallel(Net()).load_state_dict(torch.load(words[3]))


def test_the_gpu_that_a_message_speaks_of_is_the_one_in_the_plan():
    torch.save(weights("module."), "a.pth")
    ckptool.save(ckptool.map_location(ckptool.open("a.pth"), "cpu=cuda:3"), "b.pth")
    text = "Attempting to deserialize object on CUDA device 3 but torch.cuda.device_count() is 1."
    _, found = ckptool.advise(text, "b.pth")
    assert len([c for c in found.cure if "--map-location" in c]) == 1
    assert "cuda:*=cuda:0" in found.cure[0]


def test_other_shapes_of_a_message_are_left_out_in_the_plan():
    torch.save({"model": Net(9).state_dict()}, "a.pth")
    text = messages_for_shapes()
    _, found = ckptool.advise(text, "a.pth")
    (command,) = found.cure
    _, words = typed(command)
    left = Net().load_state_dict(torch.load(words[3]), strict=False)
    assert left.missing_keys == ["fc.weight", "fc.bias"]
    assert not left.unexpected_keys


def messages_for_shapes():
    with pytest.raises(RuntimeError) as failed:
        Net().load_state_dict(Net(9).state_dict())
    return str(failed.value)


def test_commands_about_a_model_name_the_one_that_was_given(capsys):
    Path("net.py").write_text(
        "import torch\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a = torch.nn.Linear(2, 2)\n"
    )
    torch.save({"b.weight": torch.ones(2, 2)}, "a.pth")
    typed("ckptool doctor a.pth net.py --error 'Missing key(s) in state_dict: \"a.bias\". '")
    out = capsys.readouterr().out
    assert "MODEL.py" not in out
    assert "ckptool doctor a.pth" not in out


def test_a_message_about_a_file_that_does_not_open_gets_no_command_that_cannot_work(capsys):
    Path("zero.pth").write_bytes(bytes(4096))
    text = "RuntimeError: Cannot use ``weights_only=True`` with files saved in the legacy .tar format."
    _, found = ckptool.advise(text, "zero.pth")
    assert found.cure == []


def test_weights_that_are_arrays_of_numpy_are_cleaned_before_they_are_extracted():
    arrays = {key: value.numpy() if value.dim() else value for key, value in weights("module.").items()}
    torch.save({"state_dict": arrays, "epoch": 3}, "a.pth")
    found = ckptool.doctor("a.pth")
    assert [command.split()[1] for command in found.cure] == ["clean", "convert"]
    for command in found.cure:
        code, words = typed(command)
        assert code == 0
    assert loads(words[3])


def test_a_legacy_file_with_objects_gets_no_command_that_refuses_them(capsys):
    torch.save({"state_dict": weights(), "path": Path("x")}, "a.pth", _use_new_zipfile_serialization=False)
    found = ckptool.doctor("a.pth")
    assert "legacy" in {one.name for one in found.findings}
    for one in found.findings:
        for command, _ in one.commands:
            assert typed(command)[0] == 0, command
            assert "-t torch-zip" not in command


# -- folders


def test_the_files_of_a_folder_are_looked_into(capsys):
    Path("runs").mkdir()
    torch.save(weights(), "runs/good.pth")
    torch.save({"model": weights()}, "runs/last.ckpt")
    Path("runs/cut.pth").write_bytes(b"PK\3\4")
    code, _ = typed("ckptool doctor runs")
    out = " ".join(capsys.readouterr().out.split())
    assert code == 1
    assert "good.pth: no problem found" in out
    assert "last.ckpt: the weights are under the key 'model'" in out
    assert "cut.pth: " in out


def test_a_folder_that_lacks_a_shard_says_which():
    ckptool.save({f"a{n}": torch.ones(99) for n in range(3)}, "f/", format="shards", max_shard_size=400)
    Path("f/model-00002-of-00003.safetensors").unlink()
    (first, *_) = [one for one in ckptool.doctor("f").findings if one.trouble]
    assert "model-00002-of-00003.safetensors" in first.what


def test_an_unpacked_archive_is_named(tmp_path):
    import zipfile

    torch.save(weights(), "a.pth")
    with zipfile.ZipFile("a.pth") as archive:
        archive.extractall("out")
    (first, *_) = ckptool.doctor("out/a").findings
    assert first.name == "unpacked"


def test_a_prefix_that_all_names_share_is_worth_knowing():
    torch.save({"state_dict": weights("encoder.model.")}, "a.ckpt")
    (finding,) = [one for one in ckptool.doctor("a.ckpt").findings if one.name == "prefix"]
    assert not finding.trouble
    code, words = typed(finding.commands[0][0])
    assert code == 0
    assert loads(words[3])
    torch.save({"a.weight": torch.ones(2), "a.bias": torch.ones(2)}, "b.pth")
    assert ckptool.doctor("b.pth").findings == []
