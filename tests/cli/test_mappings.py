"""`ckptool mappings`, and `ckptool transfer FILE --mapping NAME` without a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from samples import Run


def save(folder: Path) -> None:
    leaves = ("gamma", "beta")
    keys = [*(f"bert.embeddings.LayerNorm.{leaf}" for leaf in leaves), "bert.pooler.dense.weight"]
    torch.save({key: torch.full((3,), float(n)) for n, key in enumerate(keys)}, folder / "old.bin")


def test_the_mappings_are_listed_with_what_each_takes_gives_and_needs(run: Run) -> None:
    ran = run("mappings")
    assert ran.code == 0
    assert "llama-to-hf\n  takes Llama, as Meta's files have it" in ran.out
    assert "  needs heads: " in ran.out
    listed = json.loads(run("mappings", "--json").out)["mappings"]
    assert {"name", "takes", "gives", "needs"} == set(listed[0])


def test_a_file_is_shown_to_be_edited(run: Run, tmp_path: Path) -> None:
    shown = run("mappings", "bert-old-to-new").out
    assert "ckptool-mapping: 1" in shown
    save(tmp_path)
    (tmp_path / "mine.yaml").write_text(shown)
    assert run("transfer", "old.bin", "--mapping", "mine.yaml", "-o", "new.pth").code == 0
    ran = run("mappings", "nonsense")
    assert (ran.code, ran.err.splitlines()[-1]) == (2, "Hint: ckptool mappings   # lists them")


def test_a_mapping_is_used_without_a_model_and_back(run: Run, tmp_path: Path) -> None:
    save(tmp_path)
    ran = run("transfer", "old.bin", "--mapping", "bert-old-to-new", "-o", "new.safetensors", "-q")
    assert (ran.code, ran.err) == (0, "")
    assert run("transfer", "new.safetensors", "--mapping", "bert-old-to-new", "--invert", "-o", "back.pth").code == 0
    wanted, made = torch.load(tmp_path / "old.bin"), torch.load(tmp_path / "back.pth")
    assert made.keys() == wanted.keys()
    assert all(torch.equal(made[key], wanted[key]) for key in wanted)


def test_the_name_of_the_mapping_names_the_file_that_is_written(run: Run, tmp_path: Path) -> None:
    save(tmp_path)
    assert run("transfer", "old.bin", "--mapping", "bert-old-to-new").code == 0
    assert (tmp_path / "old.bert-old-to-new.pth").exists()


def test_it_becomes_code_too(run: Run, tmp_path: Path) -> None:
    save(tmp_path)
    assert run("transfer", "old.bin", "--mapping", "bert-old-to-new", "-n", "--emit", "port.py").code == 0
    assert 'out["bert.embeddings.LayerNorm.weight"]' in (tmp_path / "port.py").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "Missing argument 'MODEL.py[:NAME]' (or --mapping: `ckptool mappings` lists some)."),
        (("--mapping", "bert-old-to-new", "--prove", "--source-model", "x.py"), "--source-model needs MODEL.py."),
        (("--mapping", "bert-old-to-new", "--number", "heads"), "'heads' is not NAME=N, N from 1 on."),
        (("--mapping", "bert-old-to-new", "--number", "heads=0"), "'heads=0' is not NAME=N, N from 1 on."),
        (("--mapping", "bert-old-to-new", "--number", "heads=3"), "bert-old-to-new has no number 'heads'."),
        (("--mapping", "bert-old-to-nev"), "there is no file bert-old-to-nev, and no mapping of this name comes with"),
        (("--mapping", "timm-vit-to-hf"), "the file does not hold what timm-vit-to-hf takes"),
        (("--mapping", "plain.yaml", "--invert"), "of a mapping for one model wants that model"),
        (("--mapping", "plain.yaml"), "1 key of the mapping is not in it"),
    ],
)
def test_what_cannot_be_done_is_one_line(run: Run, tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    save(tmp_path)
    (tmp_path / "plain.yaml").write_text("ckptool-mapping: 1\nmapping:\n  a: b\n")
    ran = run("transfer", "old.bin", *words)
    assert ran.code == 2
    assert said in ran.err
    assert not list(tmp_path.glob("old.*.pth"))


@pytest.mark.parametrize("words", [("--mapping", "bert-old-to-nev"), ("--mapping=bert-old-to-nev",)])
def test_a_misspelt_mapping_leads_to_the_command_that_was_meant(
    run: Run, tmp_path: Path, words: tuple[str, ...]
) -> None:
    save(tmp_path)
    hint = run("transfer", "old.bin", *words, "-o", "new.pth").err.splitlines()[-1]
    meant = "ckptool transfer old.bin -o new.pth --mapping bert-old-to-new"
    assert hint == f"Hint: {meant}   # did you mean bert-old-to-new?"
    assert run(*meant.split()[1:]).code == 0


def test_a_mapping_for_one_model_is_used_without_it(run: Run, tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "plain.yaml").write_text(
        "ckptool-mapping: 1\nmapping:\n  w: slice(bert.pooler.dense.weight, 0, 0, 2)\n"
    )
    assert run("transfer", "old.bin", "--mapping", "plain.yaml", "-o", "w.pth").code == 0
    assert torch.load(tmp_path / "w.pth")["w"].tolist() == [2.0, 2.0]


def test_invert_with_the_wrong_model_says_so_in_one_line(run: Run, tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "plain.yaml").write_text("ckptool-mapping: 1\nmapping:\n  w: bert.pooler.dense.weight\n")
    (tmp_path / "net.py").write_text("from torch import nn\ndef build():\n    return nn.Linear(2, 2)\n")
    ran = run("transfer", "old.bin", "net.py", "--mapping", "plain.yaml", "--invert", "-n")
    assert ran.code == 2
    assert "--invert: the model does not have 1 key of the 1 that the mapping takes" in ran.err
