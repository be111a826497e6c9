"""`ckptool scan`."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from samples import Files, Run

PACKED = Path(__file__).parents[2] / "fixtures" / "frameworks" / "packed.h5"
EVIL = b"cos\nsystem\n(S'touch canary\\x1b[31m'\ntR."


def test_the_exit_code_is_the_verdict(run: Run, files: Files, tmp_path: Path) -> None:
    (tmp_path / "cut.pkl").write_bytes(pickle.dumps([1, 2, 3])[:-2])
    expected = {"plain.pth": 0, "last.ckpt": 0, "old.pth": 0, "plain.safetensors": 0, "evil.pth": 1, "cut.pkl": 2}
    for name, code in expected.items():
        assert run("scan", name).code == code, name
    assert run("scan", *expected).code == 2
    assert run("scan", "plain.pth", "evil.pth").code == 1
    assert run("scan", "absent.pth").code == 2
    assert run("scan", "absent.pth", "plain.pth").code == 2


def test_what_was_found_counts_where_the_rest_cannot_be_read(run: Run, tmp_path: Path) -> None:
    (tmp_path / "x.pkl").write_bytes(EVIL[:-1])
    ran = run("scan", "x.pkl")
    assert ran.code == 1
    assert "the pickle is cut short" in ran.out


@pytest.mark.parametrize("width", [80, 120])
def test_the_text_says_what_would_be_called(run: Run, tmp_path: Path, monkeypatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    (tmp_path / "x.pkl").write_bytes(EVIL)
    assert run("scan", "x.pkl").out == (
        "x.pkl: NOT SAFE, 1 name other than tensors and plain data\n"
        "  code execution:\n"
        "    os.system: called 1 time\n"
        "        os.system('touch canary\\x1b[31m')\n"
    )


def test_a_safe_file_is_one_line(run: Run, files: Files) -> None:
    assert run("scan", "plain.pth").out == "plain.pth: safe, tensors and plain data only\n"
    assert run("scan", "plain.safetensors").out == "plain.safetensors: safe, it holds no pickle\n"
    assert run("scan", "last.ckpt").out == (
        "last.ckpt: safe, tensors and plain data only\n"
        "    torch.load(weights_only=True) does not know argparse.Namespace\n"
    )


def test_verbose_lists_every_name(run: Run, files: Files) -> None:
    out = run("scan", "plain.pth", "-v").out
    assert "torch._utils._rebuild_tensor_v2: called 3 times" in out
    assert "collections.OrderedDict" in out


def test_folders_are_searched_and_what_is_no_checkpoint_does_not_matter(run: Run, files: Files, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    (folder / "deep").mkdir(parents=True)
    (folder / "README.md").write_text("words")
    (folder / "deep" / "a.pth").write_bytes(files["plain.pth"].read_bytes())
    ran = run("scan", "many")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out == (
        "many/deep/a.pth: safe, tensors and plain data only\n1 file skipped: neither checkpoint nor pickle\n"
    )
    assert run("scan", "many", "-q").out == ""
    (folder / "config.json").write_bytes(EVIL)  # a pickle under any name is one
    assert run("scan", "many", "-q").code == 1
    assert run("scan", "many/README.md").code == 2


def test_several_files_end_with_totals(run: Run, files: Files, tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for name in ("plain.pth", "evil.pth", "dp.pth"):
        (folder / name).write_bytes(files[name].read_bytes())
    (folder / "cut.pth").write_bytes(files["plain.pth"].read_bytes()[:60])
    (folder / "notes.txt").write_text("words")
    ran = run("scan", "many", "missing.pth")
    assert ran.out.endswith(
        "5 files scanned: 2 safe, 1 NOT SAFE, 1 CANNOT TELL, 1 could not be read\n"
        "1 file skipped: neither checkpoint nor pickle\n"
    )
    assert "files scanned" not in run("scan", "many", "-q").out
    assert "files scanned" not in run("scan", "plain.pth").out


def test_links_out_of_a_folder_are_not_followed_and_make_the_verdict_unknown(
    run: Run, files: Files, tmp_path: Path
) -> None:
    folder = tmp_path / "many"
    (folder / "deep").mkdir(parents=True)
    (tmp_path / "evil.pkl").write_bytes(EVIL)
    (folder / "a.pth").write_bytes(files["plain.pth"].read_bytes())
    (folder / "deep" / "b.pth").symlink_to("../a.pth")
    assert run("scan", "many", "-q").code == 0
    (folder / "deep" / "c.pth").symlink_to("../../evil.pkl")
    (folder / "d").symlink_to("/")
    ran = run("scan", "many")
    assert ran.out == (
        "many/a.pth: safe, tensors and plain data only\n"
        "many/deep/b.pth: safe, tensors and plain data only\n"
        "2 files scanned: 2 safe\n"
        "not followed: many/d, many/deep/c.pth, links out of the folder\n"
    )
    assert (ran.code, ran.err) == (2, "")
    assert run("scan", "many", "-q").out == "not followed: many/d, many/deep/c.pth, links out of the folder\n"
    assert json.loads(run("scan", "many", "--json").out)["not_followed"] == ["many/d", "many/deep/c.pth"]
    (folder / "bad.pkl").write_bytes(EVIL)
    assert run("scan", "many").code == 1
    assert run("scan", "many/deep/c.pth").code == 1  # named itself, a link is followed


def test_the_json_document_has_every_field_that_is_promised(run: Run, files: Files) -> None:
    ran = run("scan", "evil.pth", "plain.pth", "--json")
    document = json.loads(ran.out)
    assert (document["ckptool"], document["command"], document["skipped"]) == (1, "scan", 0)
    evil, plain = document["files"]
    assert set(evil) == set("verdict path bytes kind pickles findings weights_only problems notes checkpoint".split())
    assert (evil["verdict"], plain["verdict"]) == ("unsafe", "safe")
    assert (evil["weights_only"], plain["weights_only"]) == (False, True)
    assert evil["findings"][0] == {
        "group": "code execution",
        "name": "os.system",
        "calls": 1,
        "places": ["archive/data.pkl"],
        "examples": ["os.system('id')"],
    }


def test_reports_stand_in_the_order_of_the_files_though_some_are_read_apart(run: Run, tmp_path: Path) -> None:
    """And each once: also where more files wait for one than may."""
    hdf5 = (PACKED).read_bytes()
    Path("all").mkdir()
    for number in range(400):
        path = Path("all", f"{number:03}{'.h5' if number in (1, 2, 399) else '.pkl'}")
        path.write_bytes(hdf5 if path.suffix == ".h5" else b"\x80\x02}.")
    ran = run("scan", "all", "absent.h5", "all/001.h5")
    said = [line.partition(":")[0] for line in ran.out.splitlines() if line.startswith("all/")]
    assert said == [*(str(path) for path in sorted(Path("all").iterdir())), "all/001.h5"]
    assert (ran.code, ran.err.count("absent.h5")) == (2, 1)
