"""Mappings for families of models: every size, both ways, and one line for what is not of the family."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from small_models import MetaLlama, TensorFlowBert

import ckptool
from ckptool.errors import CheckpointError, Malformed, NotFound, RuleError
from ckptool.porting import apply_mapping, family_files
from ckptool.porting.family import Family


def converted(state: Any, name: str, **more: Any) -> dict[str, Any]:
    made = apply_mapping(state, name, **more).apply(state).state_dict().tensors
    return {key: torch.from_numpy(tensor.numpy().copy()) for key, tensor in made.items()}


def llama(layers: int = 2, heads: int = 4, kv_heads: int = 2) -> dict[str, Any]:
    torch.manual_seed(0)
    return dict(MetaLlama(31, 32, heads, kv_heads, layers, 48).state_dict())


def bert(layers: int = 2) -> dict[str, Any]:
    torch.manual_seed(0)
    return TensorFlowBert(29, 24, 3, layers, 40, 16).weights


def vit(layers: int) -> dict[str, Any]:
    torch.manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "cls_token": (1, 1, 6), "pos_embed": (1, 5, 6), "patch_embed.proj.weight": (6, 3, 2, 2),
        "patch_embed.proj.bias": (6,), "norm.weight": (6,), "norm.bias": (6,), "head.weight": (4, 6), "head.bias": (4,),
    }  # fmt: skip
    for n in range(layers):
        for name, rows, columns in (("attn.qkv", 18, 6), ("attn.proj", 6, 6), ("mlp.fc1", 12, 6), ("mlp.fc2", 6, 12)):
            shapes |= {f"blocks.{n}.{name}.weight": (rows, columns), f"blocks.{n}.{name}.bias": (rows,)}
        shapes |= {f"blocks.{n}.norm{i}.{leaf}": (6,) for i in (1, 2) for leaf in ("weight", "bias")}
    return {key: torch.randn(shape) for key, shape in shapes.items()}


def resnet(blocks: tuple[int, ...], convolutions: int) -> dict[str, Any]:
    norm = ("weight", "bias", "running_mean", "running_var")
    keys = ["conv1.weight", *(f"bn1.{leaf}" for leaf in norm), "fc.weight", "fc.bias"]
    for stage, count in enumerate(blocks, 1):
        for block in range(count):
            at = f"layer{stage}.{block}"
            for n in range(1, convolutions + 1):
                keys += [f"{at}.conv{n}.weight", *(f"{at}.bn{n}.{leaf}" for leaf in norm)]
            if not block and stage > 1:
                keys += [f"{at}.downsample.0.weight", *(f"{at}.downsample.1.{leaf}" for leaf in norm)]
    return {key: torch.full((2,), float(n)) for n, key in enumerate(keys)}


def old_bert() -> dict[str, Any]:
    keys = ["bert.embeddings.LayerNorm.gamma", "bert.embeddings.LayerNorm.beta", "bert.pooler.dense.weight"]
    return {key: torch.full((3,), float(n)) for n, key in enumerate(keys)}


@pytest.mark.parametrize(
    ("name", "state", "more"),
    [
        ("llama-to-hf", llama(), {"numbers": {"heads": 4}}),
        ("llama-to-hf", llama(5, 8, 8), {"numbers": {"heads": 8}}),
        ("bert-tf-to-hf", bert(), {}),
        ("bert-tf-to-hf", bert(4), {}),
        ("timm-vit-to-hf", vit(1), {}),
        ("timm-vit-to-hf", vit(3), {}),
        ("torchvision-resnet-to-timm", resnet((2, 2, 2, 2), 2), {}),
        ("torchvision-resnet-to-timm", resnet((3, 4, 6, 3), 3), {}),
        ("bert-old-to-new", old_bert(), {}),
    ],
)
@pytest.mark.parametrize("wrapper", ["", "module."])
def test_every_size_goes_there_and_comes_back_whole(
    name: str, state: dict[str, Any], more: dict[str, Any], wrapper: str
) -> None:
    made = converted({wrapper + key: value for key, value in state.items()}, name, **more)
    assert len(made) >= len(state)
    again = converted(made, name, invert=True, **more)
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], value) for key, value in state.items())


def test_rows_of_queries_and_keys_go_where_transformers_turns_them() -> None:
    state = llama()
    made = converted(state, "llama-to-hf", numbers={"heads": 4})
    for theirs, heads in (("q_proj", 4), ("k_proj", 2)):
        own = state[f"layers.1.attention.w{theirs[0]}.weight"].reshape(heads, -1, 2, 32)
        assert torch.equal(
            made[f"model.layers.1.self_attn.{theirs}.weight"].reshape(heads, 2, -1, 32), own.mT.mT.transpose(1, 2)
        )


def test_every_mapping_that_ships_says_what_it_takes_and_gives() -> None:
    found = family_files.shipped()
    assert {one.name for one in found} >= {
        "ldm-unet-to-diffusers", "ldm-vae-to-diffusers", "llama-to-hf", "timm-vit-to-hf", "bert-tf-to-hf",
        "torchvision-resnet-to-timm", "bert-old-to-new",
    }  # fmt: skip
    assert all(one.source and one.target and one.lines for one in found)


def test_a_number_that_is_not_in_the_weights_is_asked_for_or_found_beside_them(tmp_path: Path) -> None:
    torch.save(llama(), tmp_path / "consolidated.00.pth")
    path = str(tmp_path / "consolidated.00.pth")
    with pytest.raises(NotFound, match="needs a number that is not in the weights: heads") as caught:
        apply_mapping(path, "llama-to-hf")
    assert (caught.value.hint or "").startswith("--number heads=N")
    (tmp_path / "config.json").write_text(json.dumps({"n_heads": 4, "dim": 32}))
    (tmp_path / "params.json").write_text("no JSON")  # the other one counts then
    assert len(apply_mapping(path, "llama-to-hf").entries) > 1
    (tmp_path / "params.json").write_text(json.dumps({"dim": 32}))  # and for what the first lacks
    assert len(apply_mapping(path, "llama-to-hf").entries) > 1
    (tmp_path / "config.json").write_text(json.dumps({"n_heads": 8}))
    (tmp_path / "params.json").write_text(json.dumps({"n_heads": 4, "dim": 32}))
    found = apply_mapping(path, "llama-to-hf")
    assert str(found["model.layers.0.self_attn.k_proj.weight"].expr) == (
        "rotary(layers.0.attention.wk.weight, 2, half)"
    )
    with pytest.raises(RuleError, match="has no 5 heads of pairs") as wrong:
        apply_mapping(path, "llama-to-hf", numbers={"heads": 5})
    assert "--number heads=N" in (wrong.value.hint or "")
    with pytest.raises(RuleError, match="has no number 'kv'"):
        apply_mapping(path, "llama-to-hf", numbers={"kv": 5})


def without(state: dict[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(
    ("name", "state", "invert", "said", "hint"),
    [
        ("timm-vit-to-hf", without(vit(2), "blocks.1.norm2.bias"), False, "wants 1 tensor that the file does not", ""),
        (
            "timm-vit-to-hf",
            {**vit(2), "other": torch.ones(1)},
            False,
            "has 1 tensor that timm-vit-to-hf knows",
            "--allow",
        ),
        ("timm-vit-to-hf", bert(), False, "the file does not hold what timm-vit-to-hf takes: a vision", "ckptool mapp"),
        ("timm-vit-to-hf", vit(2), True, "does not hold what timm-vit-to-hf --invert takes: ViTFor", "leave out --inv"),
        (
            "bert-old-to-new",
            {"a.LayerNorm.weight": torch.ones(4)},
            False,
            "hold what bert-old-to-new takes",
            "--invert:",
        ),
        ("bert-tf-to-hf", bert(), True, "does not hold what bert-tf-to-hf --invert takes", "leave out --invert"),
        ("ldm-unet-to-diffusers", bert(), False, "does not hold what ldm-unet-to-diffusers takes", "ckptool mappings"),
        ("ldm-vae-to-diffusers", vit(2), True, "does not hold what ldm-vae-to-diffusers --invert", "ckptool mappings"),
        ("bert-old-to-new", vit(1), False, "does not hold what bert-old-to-new takes", "ckptool mappings"),
        ("llama-to-hf", vit(1), True, "does not hold what llama-to-hf --invert takes", "ckptool mappings"),
    ],
)
def test_a_file_that_is_not_of_the_family_is_refused_in_one_line(
    name: str, state: dict[str, Any], invert: bool, said: str, hint: str
) -> None:
    with pytest.raises(RuleError) as caught:
        apply_mapping(state, name, invert=invert, numbers={"heads": 4} if "llama" in name else None)
    assert said in caught.value.what
    assert "\n" not in caught.value.what
    assert hint in (caught.value.hint or "")


def test_what_the_other_side_takes_the_other_way_round_is_said(tmp_path: Path) -> None:
    made = converted(vit(2), "timm-vit-to-hf")
    with pytest.raises(RuleError) as caught:
        apply_mapping(made, "timm-vit-to-hf")
    assert (caught.value.hint or "").startswith("--invert")


def test_tensors_that_the_family_does_not_know_may_be_left_behind() -> None:
    state = {**vit(2), "other": torch.ones(1)}
    assert apply_mapping(state, "timm-vit-to-hf", leave=True).unused == ("other",)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("numbers:\n  1n: 0..3\nmapping:\n  a: b\n", "line 3: '1n' is not a name of a number"),
        ("numbers:\n  n: 0..3\nmaping:\n  a: b\n", "line 4: 'maping' is not a section"),
        ("numbers:\n  n: 0..3\nmapping:\n  a.{n}: slice(x.{n}, 0)\n", "line 5: a.{n}: slice()"),
        (
            "numbers:\n  n: 0..3\nmapping:\n  a.{m}: x.{m}\n",
            "line 5: 'm' names the number 'm', which it does not define",
        ),
        ("numbers:\n  n: 0..3\nmapping:\n  a.{n +}: x.{n}\n", "line 5: 'n +' is not a sum of numbers"),
        (f"numbers:\n  m: {'9' * 400}\n  n: 0..m\nmapping:\n  a.{{n}}: x.{{n}}\n", "gives a number beyond 2**40"),
        (f"numbers:\n  n: {'1 + ' * 9000}1\nmapping:\n  a.{{n}}: x.{{n}}\n", "line 3: '1 + 1 + 1"),
        (f"numbers:\n  n: 0..3\nmapping:\n  a.{{n}}: x.{{{'1 + ' * 9000}n}}\n", "line 5: '1 + 1 + 1"),
        (
            'numbers:\n  n: 0..count("x.0")\nmapping:\n  a.{n}: x.{n}\n',
            "has a pattern without {} for the number: 'x.0'",
        ),
        (
            'numbers:\n  n: lowest("x.*")\nmapping:\n  a.{n}: x.{n}\n',
            "line 3: 'lowest(\"x.*\")' has a pattern without {}",
        ),
        (
            'numbers:\n  n: 0\nmapping:\n  a.{count("x.0")}: x.{n}\n',
            "line 5: 'count(\"x.0\")' has a pattern without {}",
        ),
        ("numbers:\n  n: 0..open('x')\nmapping:\n  a.{n}: x.{n}\n", "is not a sum of numbers"),
        ("numbers:\n  n: 0..9**9**9\nmapping:\n  a.{n}: x.{n}\n", "is not a sum of numbers"),
        ("numbers:\n  n: 0..m\n  m: m + 1\nmapping:\n  a.{n}: x.{n}\n", "is not a sum of numbers"),
        ("numbers:\n  n: 0..999999999\nmapping:\n  a.{n}: x.{n}\n", "stands for more than 500,000 keys"),
        ("numbers: [n]\nmapping:\n  a: b\n", "'numbers' holds no lines NAME: TEXT"),
        ("beside: a\nmapping:\n  a: b\n", "'beside' holds no list of patterns"),
    ],
)
def test_a_bad_file_for_a_family_is_named_in_one_line(tmp_path: Path, lines: str, said: str) -> None:
    (tmp_path / "m.yaml").write_text(f"ckptool-mapping: 1\n{lines}")
    with pytest.raises((Malformed, RuleError)) as caught:
        apply_mapping({"x.0": torch.ones(2)}, str(tmp_path / "m.yaml"))
    assert said in caught.value.what


def test_a_file_for_a_family_that_somebody_wrote_is_used(tmp_path: Path) -> None:
    text = (
        'ckptool-mapping: 1\nsource: "ours"\ntarget: "theirs"\nnumbers:\n  n: 0..count("h.{}.w") - 1\n'
        "mapping:\n  layers.{2 * n + 1}.weight: transpose(h.{n}.w)\n  layers.{2 * n}.scale: if_there(h.{n}.g)\n"
    )
    (tmp_path / "ours.yaml").write_text(text)
    assert isinstance(family_files.read(tmp_path / "ours.yaml"), Family)
    state = {f"h.{n}.w": torch.randn(2, 3) for n in range(3)} | {"h.1.g": torch.ones(2)}
    made = converted(state, str(tmp_path / "ours.yaml"))
    assert list(made) == ["layers.1.weight", "layers.3.weight", "layers.2.scale", "layers.5.weight"]
    assert torch.equal(made["layers.3.weight"], state["h.1.w"].T)


@pytest.mark.parametrize(("key", "value"), [("model.{...}", "{...}"), ("{...}", "model.{...}")])
def test_a_line_for_any_key_takes_a_file_of_the_side_that_it_names_a_part_of(
    tmp_path: Path, key: str, value: str
) -> None:
    (tmp_path / "m.yaml").write_text(f'ckptool-mapping: 1\nmapping:\n  "{key}": "{value}"\n')
    invert = value == "{...}"
    made = converted({"model.a.w": torch.ones(2)}, str(tmp_path / "m.yaml"), invert=invert)
    assert list(made) == ["a.w"]
    with pytest.raises(RuleError, match=r"does not hold what m.* takes"):
        apply_mapping({"a.w": torch.ones(2)}, str(tmp_path / "m.yaml"), invert=invert)


@pytest.mark.parametrize(
    ("lines", "state", "invert", "said"),
    [
        ("x.{n - n}.w: b.{n}.w", ("b.0.w", "b.1.w"), False, "line 5: x.0.w is made of b.1.w, and of b.0.w as well"),
        ("x.{n - n}.w: b.{n}.w", ("x.0.w",), True, "line 5: x.0.w is made of b.1.w, and of b.0.w as well"),
        ('"{...}": "m.{...}"\n  a.w: b.w', ("m.a.w", "b.w"), False, "line 5: a.w is made of m.a.w, and of b.w as well"),
        ("x.w: scale(b.w, 2)\nback:\n  b.{n - n}w: x.w", ("x.w",), True, "line 7: b.0w is made of x.w, and of x.w as"),
        ("x.0.w: if_there(b.w)\n  x.{0}.w: if_there(c.w)", ("b.w",), False, ""),
        ("x.0.w: if_there(b.w)\n  x.{0}.w: if_there(c.w)", ("b.w", "c.w"), False, "line 6: x.0.w is made of c.w"),
    ],
)
def test_no_key_is_made_twice(tmp_path: Path, lines: str, state: tuple[str, ...], invert: bool, said: str) -> None:
    (tmp_path / "m.yaml").write_text(f"ckptool-mapping: 1\nnumbers:\n  n: 0..1\nmapping:\n  {lines}\n")
    tensors = {key: torch.ones(2) for key in state}
    if not said:
        assert list(apply_mapping(tensors, str(tmp_path / "m.yaml"))) == ["x.0.w"]
        return
    with pytest.raises(RuleError) as caught:
        apply_mapping(tensors, str(tmp_path / "m.yaml"), invert=invert)
    assert said in caught.value.what


def test_matching_consults_no_mapping_that_ships(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a mapping that ships was read")

    monkeypatch.setattr(family_files, "read", refuse)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3))
    assert ckptool.transfer({"l.weight": torch.ones(3, 3), "l.bias": torch.ones(3)}, model).is_sure
    with pytest.raises(CheckpointError, match="no mapping of this name"):
        apply_mapping({"a": torch.ones(1)}, "lama-to-hf")
