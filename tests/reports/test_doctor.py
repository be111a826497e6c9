"""`ckptool doctor`: what people have is made, fails as it does for them, is named, and repaired as is advised."""

import json
import shlex
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("safetensors")

import torch
from troubles import SITUATIONS, TROUBLES, Net, typed, weights

import ckptool

MODEL = """
import torch

class Net(torch.nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.BatchNorm1d(5))
        self.fc = torch.nn.Linear(5, classes)
"""


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(MODEL)


def what_torch_says(trouble, path):
    with pytest.raises(Exception) as failed:  # noqa: PT011 - of many classes; its text is what counts
        trouble.fail(path)
    return f"{type(failed.value).__name__}: {failed.value}"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", TROUBLES)
def test_the_message_is_explained(name):
    trouble = TROUBLES[name]
    path = Path(trouble.name)
    trouble.make(path)
    said = what_torch_says(trouble, path)
    assert ckptool.explain(said, path)[0].name == trouble.lesson, said


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SITUATIONS)
def test_messages_that_are_not_about_a_broken_file_are_explained_too(name, capsys):
    happen, can_be_typed = SITUATIONS[name]
    path = Path("a.pth")
    with pytest.raises(Exception) as failed:  # noqa: PT011 - of many classes; its text is what counts
        happen(path)
    said = f"{type(failed.value).__name__}: {failed.value}"
    (first, *_) = ckptool.explain(said, path)
    assert first.name == name.partition(",")[0], said
    if can_be_typed:
        command = [one for one, _ in first.commands if shlex.split(one)[1] != "verify"][-1]
        code, words = typed(command)
        assert code == 0, capsys.readouterr().err
        assert ckptool.verify(words[3]).sound


@pytest.mark.parametrize("name", [name for name, trouble in TROUBLES.items() if trouble.finding])
def test_the_file_is_diagnosed_without_the_message(name):
    trouble = TROUBLES[name]
    path = Path(trouble.name)
    trouble.make(path)
    found = ckptool.doctor(path)
    assert trouble.finding in [one.name for one in found.findings]
    if trouble.finding not in ("envelope", "compressed", "legacy"):
        assert not found.healthy


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, trouble in TROUBLES.items() if trouble.works])
def test_what_is_advised_mends_it(name, capsys):
    trouble = TROUBLES[name]
    path = Path(trouble.name)
    trouble.make(path)
    found = ckptool.doctor(path)
    if found.cure and found.findings[0].name not in ("unreadable", "repairable", "damaged"):
        assert [command for command, _ in ckptool.inspect(path).suggestions] == found.cure
    notes = [one for one in found.findings if one.name == trouble.finding]
    commands = found.cure or [command for one in notes for command, _ in one.commands]
    if not commands:  # the file is fine, and the message says what it was not meant for
        commands = [command for command, _ in ckptool.explain(what_torch_says(trouble, path), path)[0].commands]
    for command in commands:
        code, words = typed(command)
        assert code == (0 if words[1] != "doctor" else code), capsys.readouterr().err
    out = [words[3] for words in map(shlex.split, commands) if words[1] not in ("doctor", "scan")][-1]
    trouble.works(out)
    assert ckptool.doctor(out).healthy


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [name for name, trouble in TROUBLES.items() if trouble.works])
def test_what_is_said_about_the_message_helps_as_well(name, capsys):
    trouble = TROUBLES[name]
    path = Path(trouble.name)
    trouble.make(path)
    (first, *_) = ckptool.explain(what_torch_says(trouble, path), path)
    looking = ("doctor", "scan", "inspect", "verify")
    rewriting = [c for c, _ in first.commands if shlex.split(c)[1] not in looking]
    if first.name == "code-execution":
        assert not rewriting
        return
    if not rewriting:  # a look at the file is advised, and it says what to type
        assert [c for c, _ in first.commands] == [f"ckptool doctor {path}"]
        rewriting = [c for c in ckptool.doctor(path).cure if shlex.split(c)[1] not in looking]
    code, words = typed(rewriting[-1])
    assert code == 0, capsys.readouterr().err
    if first.name == "device-index":  # there is one GPU, so the message says, and to that it is moved
        assert {storage.location for storage in ckptool.open(words[3]).storages()} == {"cuda:0"}
    else:  # an envelope may still be around them: then the plan of both together takes it off
        assert {one.name for one in ckptool.doctor(words[3]).findings if one.trouble} <= {"envelope"}


def test_a_file_of_a_plain_model_is_healthy():
    torch.save(weights(), "a.pth")
    found = ckptool.doctor("a.pth", "net.py")
    assert found.healthy
    assert found.findings == []
    assert found.fit.fits


def test_bit_rot_is_found_and_what_is_whole_can_be_kept():
    torch.save(weights(), "a.pth")
    source = ckptool.open("a.pth").state_dict()["fc.weight"].storage.source
    data = bytearray(Path("a.pth").read_bytes())
    data[source.offset] ^= 1
    Path("a.pth").write_bytes(data)
    torch.load("a.pth")  # which does not notice
    (finding,) = [one for one in ckptool.doctor("a.pth").findings if one.trouble]
    assert finding.name == "bit-rot"
    assert typed(finding.commands[0][0])[0] == 0
    assert "fc.weight" not in torch.load("a-rest.pth")


def test_of_several_state_dicts_each_can_be_taken_out():
    torch.save({"G": weights("module."), "D": weights("module.")}, "gan.pth")
    found = ckptool.doctor("gan.pth")
    assert not found.healthy
    assert len(found.cure) == 2
    for command in found.cure:
        code, words = typed(command)
        assert code == 0
        Net().load_state_dict(torch.load(words[3]))


@pytest.mark.parametrize("change", ["module.", "_orig_mod.", "model.", "module._orig_mod.", "net.backbone."])
def test_what_does_not_fit_the_model_is_made_to_fit(change):
    torch.save({"epoch": 1, "state_dict": weights(change)}, "a.pth")
    found = ckptool.doctor("a.pth", "net.py:Net")
    assert not found.fit.fits
    assert found.fit.common[0] == 0
    code, words = typed(found.cure[0])
    assert code == 0
    assert ckptool.fits(words[3], "net.py").fits
    Net().load_state_dict(torch.load(words[3]))


def test_a_file_without_prefix_fits_a_model_that_has_one():
    Path("wrapped.py").write_text(
        MODEL + "\n\nclass Outer(torch.nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.encoder = Net()\n"
    )
    torch.save(weights(), "a.pth")
    found = ckptool.fits("a.pth", "wrapped.py:Outer")
    code, words = typed(found.commands[0][0])
    assert code == 0
    assert ckptool.fits(words[3], "wrapped.py:Outer").fits


def test_what_the_model_does_not_have_is_left_out():
    torch.save(weights("module.") | {"module.ema.decay": torch.ones(1), "module.head2.weight": torch.ones(2)}, "a.pth")
    found = ckptool.fits("a.pth", "net.py")
    code, words = typed(found.commands[0][0])
    assert code == 0
    assert ckptool.fits(words[3], "net.py").fits


def test_other_shapes_are_named_and_the_command_leaves_them_as_the_model_has_them():
    torch.save(Net(10).state_dict(), "a.pth")
    found = ckptool.fits("a.pth", "net.py")
    assert [key for key, _, _ in found.mismatched] == ["fc.weight", "fc.bias"]
    command, what = found.commands[0]
    assert "2 keys that the file has nothing for keep the model's initial values" in what
    assert ckptool.doctor("a.pth", "net.py").cure == [command]
    code, words = typed(command)
    assert code == 0
    assert ckptool.fits(words[words.index("-o") + 1], "net.py").fits
    (again,) = ckptool.doctor("a.pth", "net.py").cure  # that name is taken now
    assert again == command.replace("a-fitting.pth", "a-fitting-2.pth")
    assert typed(again)[0] == 0


def test_of_another_model_no_command_is_promised(capsys):
    torch.save({"stem.kernel": torch.ones(7, 9), "stem.offset": torch.ones(11)}, "a.pth")
    assert ckptool.doctor("a.pth", "net.py").cure == []
    assert typed("ckptool doctor a.pth net.py")[0] == 1
    assert "nothing of the file fits" in capsys.readouterr().out


@pytest.mark.parametrize(
    "state",
    [
        weights(),
        weights("module."),
        OrderedDictLike := {k: v for k, v in weights().items() if "num_batches" not in k},
        {**weights(), "more": torch.ones(1)},
        Net(10).state_dict(),
    ],
    ids=["fits", "prefix", "no counter", "one more", "another head"],
)
@pytest.mark.parametrize("metadata", [True, False])
def test_the_verdict_is_that_of_load_state_dict(state, metadata):
    state = dict(state) if not metadata else type(Net().state_dict())(state)
    if metadata:
        state._metadata = Net().state_dict()._metadata
    torch.save(state, "a.pth")
    try:
        Net().load_state_dict(torch.load("a.pth"), strict=True)
        fits = True
    except RuntimeError:
        fits = False
    assert ckptool.fits("a.pth", "net.py").fits is fits


def test_verify_says_whether_it_fits(capsys):
    torch.save(weights("module."), "a.pth")
    code, _ = typed("ckptool verify a.pth --fits net.py")
    out = capsys.readouterr().out
    assert code == 1
    assert "net.py: DOES NOT FIT, 0 of 9 keys, 0 % of 64 parameters" in out
    command = next(line.strip() for line in out.splitlines() if line.startswith("    ckptool "))
    code, words = typed(command)
    assert code == 0
    assert typed(f"ckptool verify {words[3]} --fits net.py")[0] == 0
    capsys.readouterr()
    typed(f"ckptool verify {words[3]} --fits net.py --json")
    assert json.loads(capsys.readouterr().out)["files"][0]["fit"]["fits"] is True
