"""What inspect and doctor say of adapters, and `ckptool merge-lora` as it is typed."""

import json
import shutil

import pytest
from click.testing import CliRunner

import ckptool
from ckptool.cli import cli, main
from ckptool.reports.inspect import describe
from ckptool.reports.inspect_text import inspect_text


def run(capsys, *words):
    with pytest.raises(SystemExit) as left:
        main([str(word) for word in words])
    said = capsys.readouterr()
    return left.value.code, said.out, said.err


@pytest.mark.parametrize(
    ("case", "family", "layout", "ranks", "alphas", "targets"),
    [
        ("lora", "LoRA", "peft", [2], [6], ["q_proj", "v_proj"]),
        ("dora", "DoRA", "peft", [2], [6], ["q_proj", "v_proj"]),
        ("rslora", "rsLoRA", "peft", [2], [6], ["q_proj", "v_proj"]),
        ("patterns", "LoRA", "peft", [3, 2], [6, 5], ["q_proj", "v_proj"]),
        ("experts", "LoRA", "peft", [2], [6], ["experts", "q_proj", "v_proj"]),
        ("loha", "LoHa", "peft", [2], [3], ["q_proj", "v_proj"]),
        ("unet-kohya", "LoRA", "kohya", [2], [], None),
        ("unet-diffusers-older", "LoRA", "diffusers", [2], [], None),
    ],
)
def test_an_adapter_is_shown_with_family_rank_alpha_and_targets(written, case, family, layout, ranks, alphas, targets):
    seen = describe(ckptool.open(written / "adapters" / case)).adapter
    assert (seen.family, seen.layout, seen.ranks, seen.alphas) == (family, layout, ranks, alphas)
    assert targets is None or seen.targets == targets


def test_the_text_names_the_base_model(written, tmp_path):
    shutil.copytree(written / "adapters" / "lora", tmp_path / "lora")
    config = tmp_path / "lora" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "org/model"}))
    text = inspect_text(describe(ckptool.open(tmp_path / "lora")))
    assert "  adapter:\n    LoRA in the layout of peft, rank 2, alpha 6\n" in text
    assert "    changes 2 layers: q_proj, v_proj\n    base model: org/model" in text


def test_a_model_is_no_adapter(written):
    assert describe(ckptool.open(written / "bases" / "llama")).adapter is None


def test_doctor_says_that_an_adapter_needs_its_base(written, tmp_path, capsys):
    code, out, _ = run(capsys, "doctor", written / "adapters" / "lora")
    assert code == 1
    assert "an adapter (LoRA) of 2 layers: it needs its base model" in out
    assert "ckptool merge-lora BASE" in out
    assert "--strip-prefix" not in out


def test_doctor_types_the_command_where_the_base_is_at_hand(written, tmp_path, capsys):
    shutil.copytree(written / "adapters" / "lora", tmp_path / "lora")
    config = tmp_path / "lora" / "adapter_config.json"
    base = str(written / "bases" / "llama")
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": base}))
    _, out, _ = run(capsys, "doctor", tmp_path / "lora", "--json")
    (finding,) = [one for one in json.loads(out)["findings"] if one["name"] == "adapter"]
    ((command, _),) = finding["commands"]
    words = command.split()
    assert words[:2] == ["ckptool", "merge-lora"]
    assert run(capsys, *words[1:])[0] == 0
    assert (tmp_path / "lora-merged" / "config.json").exists()


def test_the_command_merges_and_says_what_it_did(written, tmp_path, capsys):
    adapters = written / "adapters"
    out = tmp_path / "merged"
    words = ["merge-lora", written / "bases" / "llama", f"{adapters / 'lora'}@0.5", adapters / "dora", f"{out}/"]
    code, said, _ = run(capsys, *words, "--json")
    assert code == 0
    receipt = json.loads(said)
    steps = (receipt["files"][0] if "files" in receipt else receipt)["steps"]
    assert any("lora, weight 0.5: 4 keys of 2 layers change 2 tensors" in step for step in steps)
    expected = ckptool.open(written / "merged" / "dora-and-lora.safetensors").state_dict().tensors
    made = ckptool.open(out).state_dict().tensors
    assert all(abs(made[key].numpy() - one.numpy()).max() < 1e-6 for key, one in expected.items())


def test_nothing_is_written_where_an_adapter_does_not_fit(written, tmp_path, capsys):
    words = ["merge-lora", written / "bases" / "gpt2", written / "adapters" / "lora", tmp_path / "out"]
    code, _, said = run(capsys, *words)
    assert code == 2
    assert "does not fit this base: 2 of 2 layers do not" in said
    assert not (tmp_path / "out").exists()


def test_a_base_in_the_place_of_an_adapter_is_told_apart(written, tmp_path, capsys):
    code, _, said = run(
        capsys, "merge-lora", written / "adapters" / "lora", written / "bases" / "llama", tmp_path / "o"
    )
    assert code == 2
    assert "is not an adapter: none of its keys is that of one" in said


@pytest.mark.parametrize("words", [[], ["base"], ["base", "adapter"]])
def test_too_few_words_are_a_usage_error(words):
    assert CliRunner().invoke(cli, ["merge-lora", *words]).exit_code == 2


def test_a_weight_that_is_no_number_is_refused(written, tmp_path, capsys):
    words = ["merge-lora", written / "bases" / "llama", f"{written / 'adapters' / 'lora'}@0", tmp_path / "o"]
    code, _, said = run(capsys, *words)
    assert code == 2
    assert "0 is not a weight" in said


def test_packed_weights_are_shown_with_bits_groups_and_what_belongs_together(tmp_path):
    import zipfile
    from pathlib import Path

    with zipfile.ZipFile(Path(__file__).parents[2] / "fixtures" / "quantized.zip") as archive:
        archive.extractall(tmp_path)
    text = inspect_text(describe(ckptool.open(tmp_path / "bnb-nf4")))
    assert "bitsandbytes, 4 bits, a scale for groups of 64: 7 weights in 28 tensors" in text
    (packed,) = describe(ckptool.open(tmp_path / "gptq-4")).as_json()["packed"]
    assert (packed["family"], packed["bits"], packed["shared"], packed["weights"]) == ("GPTQ", 4, "groups of 16", 1)
    assert packed["together"] == ["m.qweight", "m.qzeros", "m.scales", "m.g_idx"]


def test_a_quantised_base_is_dequantised_before_it_is_merged(tmp_path, written, torch):
    import zipfile
    from pathlib import Path

    with zipfile.ZipFile(Path(__file__).parents[2] / "fixtures" / "quantized.zip") as archive:
        archive.extractall(tmp_path)
    base = ckptool.open(tmp_path / "bnb-nf4-nested")
    name = "model.layers.0.self_attn.q_proj"
    a, b = torch.randn(2, 16), torch.randn(16, 2)
    torch.save(
        {f"base_model.model.{name}.lora_A.weight": a, f"base_model.model.{name}.lora_B.weight": b}, tmp_path / "a.pt"
    )
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 4}))
    receipt = ckptool.save(ckptool.merge_lora(base, tmp_path / "a.pt"), tmp_path / "merged/")
    made = ckptool.load(tmp_path / "merged")[f"{name}.weight"]
    plain = ckptool.load(tmp_path / "bnb-nf4-nested.expected.safetensors")[f"{name}.weight"]
    assert torch.equal(made, (plain.float() + 2 * (b @ a)).to(plain.dtype))
    assert "config.json: quantization_config removed" in receipt.form
