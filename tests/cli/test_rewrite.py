"""What the rewriting commands do, as a person types them."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest
from samples import Files, Ran, Run, state_dict, tensor

import ckptool
from ckptool.checkpoint import Checkpoint
from ckptool.tree import Dict

PLAIN = ["conv1.weight", "conv1.bias", "fc.weight"]


def keys(path: Path | str, at: str | None = None) -> list[str]:
    return list(ckptool.open(path).state_dict(at))


def locations(path: Path | str) -> set[str]:
    return {storage.location for storage in ckptool.open(path).storages()}


# command line after the input and output -> the keys that are written
CASES = [
    ("strip-prefix dp.pth", PLAIN),
    ("strip-prefix dp.pth --prefix module", PLAIN),
    ("strip-prefix dp.pth --first", PLAIN),
    ("strip-prefix last.ckpt", PLAIN),
    ("strip-prefix plain.pth --if-present", PLAIN),
    ("strip-prefix gan.pth --at G --prefix conv1 --if-present", None),
    ("add-prefix plain.pth", [f"module.{key}" for key in PLAIN]),
    ("add-prefix plain.pth --prefix a.b", [f"a.b.{key}" for key in PLAIN]),
    ("rename plain.pth --rename conv1=stem", ["stem.weight", "stem.bias", "fc.weight"]),
    ("rename mixed.pth --rename module=", [*PLAIN, "n_averaged"]),
    ("rename plain.pth --rename {}.weight={}.w", ["conv1.w", "conv1.bias", "fc.w"]),
    ("rename plain.pth --rename =net", [f"net.{key}" for key in PLAIN]),
    (r"rename plain.pth --rename re:conv(\d)=c\1", ["c1.weight", "c1.bias", "fc.weight"]),
    ("convert dp.pth --unwrap", PLAIN),
    ("convert mixed.pth --unwrap", PLAIN),
    ("convert dp.pth --strip-prefix module. --drop fc", PLAIN[:2]),
    ("convert dp.pth --strip-first --select conv1.weight --select fc", ["conv1.weight", "fc.weight"]),
    ("convert plain.pth --add-prefix b --rename conv1=a", ["b.a.weight", "b.a.bias", "b.fc.weight"]),
    ("convert last.ckpt --extract --unwrap", PLAIN),
    ("convert gan.pth --extract --at D", PLAIN),
]


@pytest.mark.parametrize("out", ["out.pth", "out.safetensors"])
@pytest.mark.parametrize(
    ("command", "expected"), [case for case in CASES if case[1]], ids=lambda value: str(value)[:60]
)
def test_a_command_writes_these_keys(run: Run, files: Files, command: str, expected: list[str], out: str) -> None:
    name, source, *options = command.split()
    if out.endswith(".safetensors") and source in ("last.ckpt", "gan.pth") and "--extract" not in options:
        options += ["--at", "state_dict"] if source == "last.ckpt" else []
    ran = run(name, source, out, *options)
    assert ran.code == 0, ran.err
    assert keys(out) == expected


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        (["cpu"], {"cpu"}),
        (["cuda:1=cuda:0"], {"cuda:0", "cpu"}),
        (["cuda:1->cuda:0"], {"cuda:0", "cpu"}),
        (["cuda:*=cpu"], {"cpu"}),
        (["cuda:1=cuda:0,cpu=mps"], {"cuda:0", "cpu"}),  # the step of Adam stays on the cpu
        (["1->0"], {"cuda:0", "cpu"}),
    ],
)
def test_remap_reaches_every_storage(run: Run, files: Files, rules: list[str], expected: set[str]) -> None:
    ran = run("remap", "last.ckpt", "out.ckpt", *(f"--map-location={rule}" for rule in rules))
    assert ran.code == 0, ran.err
    assert locations("out.ckpt") == expected
    assert "note: args/@state/gpu also names a device (cuda:1); left as it is" in ran.err


def test_a_target_that_holds_already_is_success(run: Run, files: Files) -> None:
    ran = run("remap", "plain.pth", "out.pth", "-m", "cpu")
    assert (ran.code, "0 of 3 storages changed" in ran.err) == (0, True)
    assert Path("out.pth").exists()


def test_the_format_follows_the_suffix_the_option_and_the_source(run: Run, files: Files) -> None:
    for args, expected in [
        (("convert", "plain.pth", "a.safetensors"), "safetensors"),
        (("convert", "plain.pth", "b.pth", "-t", "legacy"), "torch-legacy"),
        (("strip-prefix", "old.pth", "c.pth"), "torch-legacy"),
        (("convert", "old.pth", "d.pth", "--to", "torch-zip"), "torch-zip"),
        (("convert", "plain.safetensors", "e.pth"), "torch-zip"),
        (("convert", "plain.safetensors", "f.weights"), "safetensors"),
    ]:
        ran = run(*args)
        assert ran.code == 0, ran.err
        assert ckptool.detect(args[2]) == expected


def test_in_place_replaces_the_input_and_keeps_its_mode_and_a_backup(run: Run, files: Files) -> None:
    before = files["dp.pth"].read_bytes()
    files["dp.pth"].chmod(0o640)
    ran = run("strip-prefix", "dp.pth", "--in-place", "--backup", ".orig")
    assert ran.code == 0, ran.err
    assert keys("dp.pth") == PLAIN
    assert stat.S_IMODE(os.stat("dp.pth").st_mode) == 0o640
    assert Path("dp.pth.orig").read_bytes() == before


def test_the_input_may_be_the_output_when_overwriting_is_asked_for(run: Run, files: Files) -> None:
    refused = run("strip-prefix", "dp.pth", "dp.pth")
    assert (refused.code, "exists already" in refused.err) == (2, True)
    assert run("strip-prefix", "dp.pth", "dp.pth", "--overwrite").code == 0
    assert keys("dp.pth") == PLAIN


def test_a_dry_run_says_the_plan_on_stdout_and_writes_nothing(run: Run, files: Files) -> None:
    before = sorted(os.listdir())
    ran = run("strip-prefix", "dp.pth", "out.pth", "-n", "-v")
    assert ran.code == 0
    assert ran.out.startswith("would write out.pth: torch-zip")
    assert "module.fc.weight -> fc.weight" in ran.out
    assert ran.err == ""
    assert sorted(os.listdir()) == before


def test_a_dry_run_is_refused_where_the_run_would_be(run: Run, files: Files) -> None:
    assert run("convert", "last.ckpt", "out.safetensors", "-n").code == 2


def test_the_receipt_is_json_on_request_and_gone_with_quiet(run: Run, files: Files) -> None:
    ran = run("strip-prefix", "dp.pth", "out.pth", "--json", "-v")
    receipt = json.loads(ran.out)
    assert (receipt["ckptool"], receipt["command"], receipt["format"]) == (1, "strip-prefix", "torch-zip")
    assert receipt["bytes"] == os.path.getsize("out.pth")
    assert receipt["renamed"][0] == {"from": "module.conv1.weight", "to": "conv1.weight"}
    quiet = run("strip-prefix", "dp.pth", "out2.pth", "-q")
    assert quiet == Ran(0, "", "")


def test_content_that_would_be_lost_is_refused_until_allowed(run: Run, files: Files) -> None:
    refused = run("convert", "last.ckpt", "out.safetensors")
    assert refused.code == 2
    assert "epoch" in refused.err
    assert "optimizer (2 tensors)" in refused.err
    assert not Path("out.safetensors").exists()
    allowed = run("convert", "last.ckpt", "out.safetensors", "--allow-loss")
    assert (allowed.code, "LOST, as allowed: epoch" in allowed.err) == (0, True)


def test_an_object_that_may_run_code_is_written_only_on_request(run: Run, files: Files) -> None:
    refused = run("remap", "evil.pth", "out.pth", "-m", "cpu")
    assert refused.code == 2
    assert "os.system (1)" in refused.err
    assert "--extract" in refused.err
    assert "--keep-objects" in refused.err
    assert not Path("out.pth").exists()
    kept = run("remap", "evil.pth", "out.pth", "-m", "cpu", "--keep-objects")
    assert (kept.code, "object kept: os.system" in kept.err) == (0, True)
    assert run("convert", "evil.pth", "clean.pth", "--extract").code == 0
    assert "os.system" not in Path("clean.pth").read_bytes().decode("latin-1")


def test_a_file_without_weights_to_extract_leads_to_clean(run: Run, tmp_path: Path) -> None:
    Path("evil.pkl").write_bytes(b"\x80\x02}U\x01wcos\nsystem\n(U\x09touch rantRs.")
    hint = run("convert", "evil.pkl", "out.pth").err.splitlines()[-1]
    assert hint.startswith("Hint: ckptool clean evil.pkl evil-clean.pkl   # makes plain data of them; --keep-objects ")
    assert run(*hint.partition("   #")[0].split()[2:]).code == 0
    assert not Path("ran").exists()


def test_rules_can_come_from_a_file(run: Run, files: Files) -> None:
    Path("rules.txt").write_text("# first\nconv1=stem\n\nfc=head\n")
    assert run("rename", "plain.pth", "out.pth", "--rules", "rules.txt").code == 0
    assert keys("out.pth") == ["stem.weight", "stem.bias", "head.weight"]
    Path("bad.txt").write_text("conv1=stem\nnonsense\n")
    ran = run("rename", "plain.pth", "out2.pth", "--rules", "bad.txt")
    assert (ran.code, "bad.txt" in ran.err, "2" in ran.err) == (2, True, True)
    missing = run("rename", "plain.pth", "out3.pth", "--rules", "none.txt")
    assert (missing.code, "none.txt: no such file" in missing.err) == (2, True)


# what is typed wrong -> words that the message must have
WRONG = [
    ("strip-prefix plain.pth out.pth", ["plain.pth: no key starts with 'module.'", "conv1"]),
    ("strip-prefix mixed.pth out.pth", ["3 of 4 keys", "n_averaged", "--rename module="]),
    ("strip-prefix gan.pth out.pth", ["2 state dicts", "G", "D", "--at G"]),
    ("strip-prefix gan.pth out.pth --at Q", ["nothing is at 'Q'"]),
    ("strip-prefix absent.pth out.pth", ["absent.pth: no such file"]),
    ("strip-prefix dp.pth", ["Missing OUT"]),
    ("strip-prefix dp.pth -", ["-: stdin and stdout are not supported", "Hint: name a file"]),
    ("strip-prefix dp.pth a.pth -o b.pth", ["given twice"]),
    ("strip-prefix dp.pth a.pth --in-place", ["--in-place"]),
    ("strip-prefix dp.pth plain.pth", ["plain.pth: exists already", "--overwrite"]),
    ("strip-prefix dp.pth no/such/out.pth", ["folder", "mkdir -p no/such"]),
    ("rename plain.pth out.pth", ["Missing --rename"]),
    ("rename plain.pth out.pth --rename conv2=x", ["no key matches", "conv2"]),
    ("rename plain.pth out.pth --rename conv1=fc", ["two keys would become 'fc.weight'", "conv1.weight"]),
    ("rename plain.pth out.pth --rename conv1", ["OLD=NEW"]),
    ("rename plain.pth out.pth --rename re:(=x", ["("]),
    ("remap plain.pth out.pth -m cuda:1=cuda:0", ["no storage is on cuda:1", "cpu: 3"]),
    ("remap plain.pth out.pth -m gpu:0", ["not a location", "cuda"]),
    ("remap dp.pth out.pth -m cuda:1-", ["unquoted", "cuda:1=cuda:0"]),
    ("convert plain.pth out.safetensor", ["suffix .safetensor;", "Hint: ckptool convert plain.pth out.safetensors "]),
    ("convert plain.pth out.pth -t xlsx", ["no format 'xlsx'", "torch-zip"]),
    ("convert plain.pth out.pth --drop {...}", ["no key would be left"]),
    ("convert plain.pth out.pth --select nothing", ["no key matches 'nothing'"]),
    ("strip plain.pth out.pth", ["No such command", "strip-prefix"]),
]


@pytest.mark.parametrize(("command", "words"), WRONG, ids=lambda value: str(value)[:60])
def test_bad_input_is_told_and_leaves_everything_as_it_was(
    run: Run, files: Files, command: str, words: list[str]
) -> None:
    before = {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()}
    ran = run(*command.split())
    assert ran.code == 2
    assert ran.out == ""
    assert "Traceback" not in ran.err
    for word in words:
        assert word in ran.err
    assert {path.name: path.read_bytes() for path in Path().iterdir() if path.is_file()} == before


HINTED = ["strip-prefix mixed.pth out.pth", "strip-prefix gan.pth out.pth", "convert evil.pth out.pth"]


@pytest.mark.parametrize("command", HINTED)
def test_the_hint_of_an_error_is_a_command_or_an_option_that_works(run: Run, files: Files, command: str) -> None:
    hint = (
        run(*command.split())
        .err.split("Hint: ")[1]
        .split("   ")[0]
        .split(";")[0]
        .split(" keeps")[0]
        .split(" changes")[0]
    )
    words = hint.split()
    typed = words[1:] if words[0] == "ckptool" else [*command.split(), *words]
    ran = (
        run(*typed, "--prefix", "conv1", "--if-present") if "--at" in typed and "strip-prefix" in typed else run(*typed)
    )
    assert ran.code == 0 or "conv1" in ran.err, ran.err


def test_damaged_bytes_are_refused_with_their_name_or_listed(run: Run, files: Files) -> None:
    source = ckptool.open("plain.pth").state_dict()["fc.weight"].storage.source
    data = bytearray(files["plain.pth"].read_bytes())
    data[source.offset] ^= 1  # type: ignore[attr-defined]
    files["plain.pth"].write_bytes(data)
    ran = run("convert", "plain.pth", "out.safetensors")
    assert (ran.code, Path("out.safetensors").exists()) == (2, False)
    first, evidence, hint = ran.err.splitlines()
    assert first == "Error: plain.pth: the bytes of fc.weight are damaged: their checksum does not match."
    assert evidence.startswith("    CRC-32 recorded ")
    assert hint.startswith("Hint: ckptool verify plain.pth   # lists all that is damaged; --allow-loss")
    ran = run("convert", "plain.pth", "out.safetensors", "--allow-loss")
    assert ran.code == 0
    assert "  DAMAGED, as allowed: fc.weight: CRC-32 recorded " in ran.err
    receipt = json.loads(run("convert", "plain.pth", "other.safetensors", "--allow-loss", "--json").out)
    assert [line.split(":")[0] for line in receipt["damaged"]] == ["fc.weight"]


def test_of_much_damage_the_first_are_listed_and_the_rest_counted(run: Run, tmp_path: Path) -> None:
    weights = Dict([(f"w{n}", tensor(8, fill=n)) for n in range(20)])
    ckptool.save(Checkpoint(weights), "many.pth")
    data = bytearray(Path("many.pth").read_bytes())
    for storage in ckptool.open("many.pth").storages():
        data[storage.source.offset] ^= 1  # type: ignore[attr-defined]
    Path("many.pth").write_bytes(data)
    ran = run("convert", "many.pth", "out.safetensors", "--allow-loss", "--json")
    assert len(json.loads(ran.out)["damaged"]) == 20
    lines = run("convert", "many.pth", "other.safetensors", "--allow-loss").err.splitlines()
    assert sum("DAMAGED, as allowed: w" in line for line in lines) == 12
    assert lines[-1] == "  DAMAGED, as allowed: … and 8 more, which --json lists"


def test_a_prefix_with_strangers_beside_is_stripped_by_the_command_of_the_hint(run: Run) -> None:
    weights = Dict([(f"net.{key}", value) for key, value in state_dict().entries] + [("loss.weight", tensor(2))])
    ckptool.save(Checkpoint(Dict([("state_dict", weights), ("epoch", 3)])), "lit.ckpt")
    for typed in (
        "convert lit.ckpt out.pth --extract --strip-prefix net.",
        "convert --strip-prefix=net. lit.ckpt out.pth --extract",
        "strip-prefix lit.ckpt out.pth --prefix net. --overwrite",
    ):
        ran = run(*typed.split())
        assert ran.code == 2
        command = ran.err.split("Hint: ckptool ")[1].split("   # keeps ")[0]
        assert run(*command.split()).code == 0
        assert keys("out.pth") == PLAIN
        Path("out.pth").unlink()
