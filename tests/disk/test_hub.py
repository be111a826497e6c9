"""Models on the Hugging Face hub by their name: its own client asks, one commit is read, and little is fetched."""

import json
import shutil

import numpy as np
import pytest
from hub import COMMIT, OTHER, SIGNATURE, hub_serving
from test_urls import checkpoint, tensor

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.cli import main
from ckptool.disk import remote
from ckptool.reports.inspect import inspect
from ckptool.tree import Dict

constants = pytest.importorskip("huggingface_hub.constants")


@pytest.fixture(autouse=True)
def client(monkeypatch, tmp_path):
    """No pauses, no login, and a cache of its own."""
    import huggingface_hub

    monkeypatch.setattr(remote, "PAUSES", (0.0, 0.0))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)
    monkeypatch.setenv("HF_TOKEN", "hf_nobody")
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    huggingface_hub.close_session()
    remote.TRAFFIC.clear()
    yield
    huggingface_hub.close_session()


@pytest.fixture
def hub(tmp_path, monkeypatch):
    folder = tmp_path / "hub"
    (folder / "org" / "m").mkdir(parents=True)
    with hub_serving(folder) as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.address)
        template = server.address + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        yield server


@pytest.fixture
def model(hub):
    """A model of six shards, with a configuration, and its pickled weights in a folder of the repository."""
    root = hub.folder / "org" / "m"
    ckptool.save(checkpoint(), root, format="shards", max_shard_size="200KB", overwrite=True)
    (root / "config.json").write_text('{"hidden_size": 200}')
    (root / "old").mkdir()
    ckptool.save(checkpoint(), root / "old" / "pytorch_model.bin", format="torch-zip")
    return hub


@pytest.fixture
def run(capsys):
    def command(*words):
        with pytest.raises(SystemExit) as left:
            main([str(word) for word in words])
        captured = capsys.readouterr()
        return left.value.code, captured.out, captured.err

    return command


def refused(path, kind=ckptool.Unreadable):
    with pytest.raises(kind) as caught:
        ckptool.open(path)
    assert len(str(caught.value).split("Hint: ")) == 2
    assert SIGNATURE not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("elsewhere", [False, True], ids=["here", "redirected"])
@pytest.mark.parametrize(
    "name",
    [
        "hf://org/m",
        "hf://org/m/",
        "hf://org/m@main",
        "hf://org/m@refs/pr/7",
        f"hf://org/m@{COMMIT}/model.safetensors.index.json",
        "hf://org/m/old",
        "hf://org/m/old/pytorch_model.bin",
    ],
)
def test_a_model_is_read_by_its_name(model, tmp_path, name, elsewhere):
    model.elsewhere = elsewhere
    ckptool.save(ckptool.open(name), tmp_path / "out.safetensors", allow_loss=True)
    assert ckptool.diff(tmp_path / "out.safetensors", model.folder / "org" / "m", weights=True).same
    assert ckptool.verify(name).sound


def test_every_command_that_reads_takes_a_model(model, run, tmp_path):
    here = model.folder / "org" / "m"
    assert run("inspect", "hf://org/m")[0] == 0
    assert run("diff", "hf://org/m", here)[0] == 0
    assert run("verify", "hf://org/m", "--digest")[0] == 0
    assert run("scan", "hf://org/m")[0] == 0
    assert run("doctor", "hf://org/m")[0] == 0
    code, _, err = run("convert", "hf://org/m", tmp_path / "copy", "-t", "shards")
    assert code == 0
    assert "copied along, as they are: config.json" in err
    assert run("average", "hf://org/m", here, "-o", tmp_path / "mean.pth")[0] == 0
    _, out, _ = run("convert", "hf://org/m", tmp_path / "again.pth", "--json")
    assert json.loads(out)["source"] == "hf://org/m"


def test_looking_at_163_shards_fetches_kilobytes(hub, run):
    root = hub.folder / "org" / "m"
    rng = np.random.default_rng(0)
    tensors = [(f"layers.{n}.{k}.weight", tensor(rng.bytes(20_000))) for n in range(163) for k in "ab"]
    ckptool.save(Checkpoint(Dict(tensors)), root, format="shards", max_shard_size=45_000, overwrite=True)
    assert len(list(root.iterdir())) == 164
    before = sum(file.stat().st_size for file in root.iterdir())
    assert len(inspect("hf://org/m").tensors) == 326
    index = (root / "model.safetensors.index.json").stat().st_size
    assert hub.sent <= index + 163 * (16 << 10) < 0.5 * before
    assert len(hub.requests) <= 163 + 3
    code, _, err = run("inspect", "hf://org/m")
    assert code == 0
    assert err.count("\n") == 1
    assert err.endswith("requests: hf://org/m (164 files)\n")


def test_one_tensor_of_a_model_costs_what_it_weighs(model):
    found = ckptool.open("hf://org/m").state_dict()["layers.3.weight"]
    opened = model.sent
    assert np.array_equal(found.numpy(), checkpoint().state_dict()["layers.3.weight"].numpy())
    assert model.sent - opened <= 160_000


def test_one_commit_is_read_whatever_the_branch_becomes(model, tmp_path):
    ckpt = ckptool.open("hf://org/m")
    model.revisions["main"] = OTHER
    ckptool.save(ckpt, tmp_path / "out.pth")
    files = [path for path, _ in model.requests if "/resolve/" in path]
    assert files
    assert all(f"/resolve/{COMMIT}/" in path for path in files)


def test_what_the_cache_has_is_read_from_there(model, tmp_path):
    from huggingface_hub import hf_hub_download

    name = "model-00003-of-00006.safetensors"
    hf_hub_download("org/m", name)
    model.requests.clear()
    ckptool.save(ckptool.open("hf://org/m"), tmp_path / "out.pth")
    files = [path for path, _ in model.requests if "/resolve/" in path]
    assert len({path.rpartition("/")[2] for path in files}) == 6  # without config.json, which one file leaves behind
    assert not [path for path in files if name in path]
    receipt = ckptool.plan(ckptool.open("hf://org/m"), tmp_path / "again", format="shards")
    assert "divided as before" in receipt.how


def test_a_commit_and_a_file_of_the_cache_need_no_network(model, monkeypatch):
    from huggingface_hub import hf_hub_download

    hf_hub_download("org/m", "model.safetensors.index.json")
    hf_hub_download("org/m", "model-00001-of-00006.safetensors")
    model.requests.clear()
    assert len(inspect(f"hf://org/m@{COMMIT}/model-00001-of-00006.safetensors").tensors) == 1
    assert not model.requests


def test_offline_only_the_cache_is_read(model, monkeypatch, tmp_path):
    from huggingface_hub import snapshot_download

    snapshot_download("org/m")
    model.requests.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    ckptool.save(ckptool.open("hf://org/m"), tmp_path / "out.safetensors")
    assert ckptool.diff(tmp_path / "out.safetensors", "hf://org/m/old/pytorch_model.bin", weights=True).same
    assert "not in the cache" in refused("hf://org/m/nothing.bin")
    assert "not in the cache" in refused("hf://org/other")
    assert not model.requests


def test_a_login_is_that_of_the_client_and_is_never_shown(model, run, tmp_path, monkeypatch):
    model.token = "hf_secret_of_somebody"
    code, out, err = run("inspect", "hf://org/m")
    assert code == 2
    assert "is private" in err
    assert "hf auth login" in err
    monkeypatch.setenv("HF_TOKEN", model.token)
    model.elsewhere = True
    target = tmp_path / "out.safetensors"
    converted = ["convert", "hf://org/m", target, "--json", "--save-recipe", tmp_path / "r"]
    for words in (["inspect", "hf://org/m"], converted):
        code, out, err = run(*words)
        assert code == 0
        assert "secret" not in out + err
        assert SIGNATURE not in out + err
    for file in (target, tmp_path / "r"):
        assert b"secret" not in file.read_bytes()
        assert SIGNATURE.encode() not in file.read_bytes()


@pytest.mark.parametrize(
    ("name", "what", "hint"),
    [
        ("hf://org/nothing", "there is no model org/nothing on the hub, or it is private", "hf auth login"),
        ("hf://org/m@never", "org/m has no revision never", "branches and tags"),
        ("hf://org/m/nothing.bin", "is not in the repository", "check the name"),
        ("hf://org/gated", "org/gated is gated", "hf auth login"),
        ("hf://org/gated/model-00001-of-00006.safetensors", "org/gated is gated", "hf auth login"),
        ("hf://org", "names no model", "hf://ORG/MODEL"),
        ("hf://datasets/org/m", "names no model", "hf download"),
        ("hf://org/m/../x", "names no file", "check the name"),
    ],
)
def test_what_is_not_there_is_said_in_a_line(model, name, what, hint):
    shutil.copytree(model.folder / "org" / "m", model.folder / "org" / "gated")
    said = refused(name)
    assert said.startswith(f"{name}")
    assert what in said
    assert hint in said


def test_a_hub_that_cannot_be_reached_is_said_to_be(model, monkeypatch):
    model.server_close()
    model.shutdown()
    assert "the hub cannot be reached" in refused("hf://org/m")


def test_what_breaks_off_is_asked_for_again(model, tmp_path):
    model.failing = [503, 502]
    model.cut = [1000, 50_000]
    ckptool.save(ckptool.open("hf://org/m"), tmp_path / "out.pth")
    assert ckptool.diff(tmp_path / "out.pth", model.folder / "org" / "m", weights=True).same
    assert not model.failing
    assert not model.cut
    model.failing = [503] * 3
    assert "HTTP 503" in refused("hf://org/m")


def test_answers_with_other_bytes_are_refused_and_nothing_is_written(model, tmp_path):
    ckpt = ckptool.open("hf://org/m")
    model.shift = 16
    with pytest.raises(ckptool.Unreadable, match="does not send the bytes that were asked for"):
        ckptool.save(ckpt, tmp_path / "out.pth")
    model.shift, model.tag = 0, "other"
    with pytest.raises(ckptool.Malformed, match="changed on the hub while it was being read"):
        ckptool.save(ckpt, tmp_path / "out.pth")
    assert not list(tmp_path.glob("*out*"))


def test_a_shard_that_was_not_uploaded_is_named(model):
    (model.folder / "org" / "m" / "model-00002-of-00006.safetensors").unlink()
    said = refused("hf://org/m", ckptool.Malformed)
    assert "'model-00002-of-00006.safetensors', which is not in the folder" in said
    assert "the upload did not finish" in said


def test_nothing_is_asked_unless_the_word_says_so(model, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for command in ("inspect", "doctor", "verify", "scan"):
        code, _, err = run(command, "org/m")
        assert code == 2
        assert "Hint: if it is a model on the Hugging Face hub, name it hf://org/m\n" in err
    assert not model.requests
    (tmp_path / "org").mkdir()
    assert "hf://" not in run("inspect", "org/m")[2]
    assert "hf://" not in run("inspect", "org2/m.pth")[2]


def test_uploading_is_left_to_the_client_of_the_hub(model, run, tmp_path):
    for target, command in (("hf://org/m", "hf upload org/m FILE"), ("hf://org/m/a.pth", "hf upload org/m FILE a.pth")):
        code, _, err = run("convert", model.folder / "org" / "m", target)
        assert code == 2
        assert "is on the hub, where its own client uploads" in err
        assert f"then: {command}\n" in err
