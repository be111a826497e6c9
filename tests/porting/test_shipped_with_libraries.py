"""The mappings that come with ckptool, against the libraries: both sides are built, and give the same outputs.

They run where the libraries are: `make test-libraries` (test-mappings). Models are small, but of the libraries' own
code, with random weights; what comes out of ours is loaded strictly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ckptool.porting import apply_mapping


def converted(state: dict[str, Any], name: str, **more: Any) -> dict[str, Any]:
    made = apply_mapping(state, name, **more).apply(state).state_dict().tensors
    return {key: torch.from_numpy(tensor.numpy().copy()) for key, tensor in made.items()}


def back_again(state: dict[str, Any], name: str, wanted: dict[str, Any], prefix: str = "", **more: Any) -> None:
    """The way back gives what was there, bit for bit."""
    again = converted(state, name, invert=True, **more)
    assert again.keys() == {prefix + key for key in wanted}
    assert all(torch.equal(again[prefix + key], value) for key, value in wanted.items())


def close(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=1e-4, atol=1e-5)


@pytest.fixture(autouse=True)
def seeded() -> Iterator[None]:
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def shaken(model: Any) -> Any:
    """The model with values that differ everywhere, also in norms, in eval mode."""
    for value in model.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand_like(value) + 0.5 if value.ndim < 2 else torch.randn_like(value) * 0.1)
    return model.eval()


@pytest.fixture
def torchvision() -> Any:
    """torchvision without its compiled part, which no build for this torch has: its models do not need it."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for _ in range(20):
        try:
            return pytest.importorskip("torchvision")
        except RuntimeError as error:
            name = str(error).partition("torchvision::")[2].split()[0]
            library.define(f"{name}(Tensor x) -> Tensor")
    raise AssertionError("torchvision cannot be imported")


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnext50_32x4d", "wide_resnet50_2"])
def test_resnets_of_torchvision_are_those_of_timm(torchvision: Any, name: str) -> None:
    timm = pytest.importorskip("timm")
    from torchvision import models

    source = shaken(getattr(models, name)(num_classes=7))
    target = timm.create_model(name, num_classes=7).eval()
    state = converted(source.state_dict(), "torchvision-resnet-to-timm")
    target.load_state_dict(state)
    x = torch.rand(1, 3, 64, 64)
    close(target(x), source(x))
    back_again(state, "torchvision-resnet-to-timm", source.state_dict())


@pytest.mark.parametrize(("depth", "classes", "bias"), [(3, 5, True), (2, 0, True), (2, 4, False)])
def test_vision_transformers_of_timm_in_transformers(torchvision: Any, depth: int, classes: int, bias: bool) -> None:
    timm, transformers = pytest.importorskip("timm"), pytest.importorskip("transformers")
    sizes = {"img_size": 32, "patch_size": 8}
    source = shaken(
        timm.models.VisionTransformer(
            **sizes, embed_dim=24, depth=depth, num_heads=3, num_classes=classes, mlp_ratio=2, qkv_bias=bias
        )
    )
    state = converted(source.state_dict(), "timm-vit-to-hf")
    config = transformers.ViTConfig(
        hidden_size=24, num_hidden_layers=depth, num_attention_heads=3, intermediate_size=48, image_size=32,
        patch_size=8, num_labels=classes or 2, qkv_bias=bias, layer_norm_eps=1e-6,
    )  # fmt: skip
    target, told = transformers.ViTForImageClassification.from_pretrained(
        None, config=config, state_dict=state, output_loading_info=True
    )
    assert not told["unexpected_keys"]
    assert not classes or not told["missing_keys"]
    x = torch.rand(2, 3, 32, 32)
    ours = target.eval()(x).logits if classes else target.eval().vit(x).last_hidden_state[:, 0]
    close(ours, source(x))
    back_again(state, "timm-vit-to-hf", source.state_dict())


@pytest.mark.parametrize(("heads", "kv_heads", "layers"), [(4, 4, 2), (4, 2, 3), (8, 1, 1)])
def test_llama_in_transformers(heads: int, kv_heads: int, layers: int) -> None:
    transformers = pytest.importorskip("transformers")
    from small_models import MetaLlama

    source = shaken(MetaLlama(vocabulary=31, width=32, heads=heads, kv_heads=kv_heads, layers=layers, hidden=48))
    state = converted(source.state_dict(), "llama-to-hf", numbers={"heads": heads})
    config = transformers.LlamaConfig(
        vocab_size=31, hidden_size=32, intermediate_size=48, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, rms_norm_eps=1e-5, tie_word_embeddings=False,
    )  # fmt: skip
    target = transformers.LlamaForCausalLM(config).eval()
    target.load_state_dict(state)
    tokens = torch.randint(0, 31, (2, 9))
    close(target(tokens).logits, source(tokens))
    back_again(state, "llama-to-hf", source.state_dict(), numbers={"heads": heads})


def ldm(diffusers: Any, state: dict[str, Any], converter: str, config: Any) -> dict[str, Any]:
    """What diffusers' own converter makes of the names of latent diffusion."""
    from diffusers.loaders import single_file_utils

    return getattr(single_file_utils, converter)(dict(state), config)


UNETS = {
    "two levels": {"block_out_channels": (32, 64), "down": (True, False), "layers_per_block": 2},
    "four levels": {"block_out_channels": (32, 32, 64, 64), "down": (True, True, True, False), "layers_per_block": 2},
    "one block": {"block_out_channels": (32, 64, 64), "down": (False, True, True), "layers_per_block": 1},
    "deep": {
        "block_out_channels": (32, 64, 64),
        "down": (False, True, True),
        "layers_per_block": 2,
        "depth": (1, 2, 3),
    },
    "with text embeddings": {
        "block_out_channels": (32, 64),
        "down": (False, True),
        "layers_per_block": 2,
        "sdxl": True,
    },
}


def unet(
    diffusers: Any, block_out_channels: Any, down: Any, layers_per_block: int, depth: Any = 1, sdxl: bool = False
) -> Any:
    more = {} if not sdxl else {
        "addition_embed_type": "text_time", "addition_time_embed_dim": 8, "projection_class_embeddings_input_dim": 64,
        "use_linear_projection": True,
    }  # fmt: skip
    return diffusers.UNet2DConditionModel(
        block_out_channels=block_out_channels,
        down_block_types=[f"{'CrossAttn' if attends else ''}DownBlock2D" for attends in down],
        up_block_types=[f"{'CrossAttn' if attends else ''}UpBlock2D" for attends in reversed(down)],
        layers_per_block=layers_per_block,
        transformer_layers_per_block=depth,
        cross_attention_dim=16,
        attention_head_dim=8,
        norm_num_groups=8,
        **more,
    )


@pytest.mark.parametrize("kind", UNETS)
def test_the_unet_of_diffusers_and_of_latent_diffusion(kind: str) -> None:
    """Its converter reads what our way back writes: the names of latent diffusion are those that diffusers takes."""
    diffusers = pytest.importorskip("diffusers")
    model = unet(diffusers, **UNETS[kind])
    state = model.state_dict()
    theirs = converted(state, "ldm-unet-to-diffusers", invert=True)
    assert all(key.startswith("model.diffusion_model.") for key in theirs)
    config = {**model.config, "class_embed_type": None}
    again = ldm(diffusers, theirs, "convert_ldm_unet_checkpoint", config)
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], value) for key, value in state.items())
    for prefix in ("model.diffusion_model.", ""):
        ours = converted(
            {prefix + key.removeprefix("model.diffusion_model."): value for key, value in theirs.items()},
            "ldm-unet-to-diffusers",
        )
        assert ours.keys() == state.keys()
        assert all(torch.equal(ours[key], value) for key, value in state.items())


@pytest.mark.parametrize(("channels", "layers"), [((16, 32), 1), ((8, 16, 32, 32), 2)])
def test_the_autoencoder_of_diffusers_and_of_latent_diffusion(channels: Any, layers: int) -> None:
    diffusers = pytest.importorskip("diffusers")
    model = diffusers.AutoencoderKL(
        block_out_channels=channels, layers_per_block=layers, norm_num_groups=8,
        down_block_types=["DownEncoderBlock2D"] * len(channels), up_block_types=["UpDecoderBlock2D"] * len(channels),
    )  # fmt: skip
    state = model.state_dict()
    theirs = converted(state, "ldm-vae-to-diffusers", invert=True)
    again = ldm(diffusers, theirs, "convert_ldm_vae_checkpoint", model.config)
    assert again.keys() == state.keys()
    assert all(torch.equal(again[key], value) for key, value in state.items())
    ours = converted(theirs, "ldm-vae-to-diffusers")
    assert all(torch.equal(ours[key], value) for key, value in state.items())
    assert ours.keys() == state.keys()


def test_bert_under_the_names_of_tensorflow_in_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    from small_models import TensorFlowBert

    source = TensorFlowBert(vocabulary=29, width=24, heads=3, layers=2, hidden=40, positions=16)
    state = converted({**source.weights, "global_step": torch.tensor(3)}, "bert-tf-to-hf")
    config = transformers.BertConfig(
        vocab_size=29, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40,
        max_position_embeddings=16, hidden_act="gelu",
    )  # fmt: skip
    target, told = transformers.BertForPreTraining.from_pretrained(
        None, config=config, state_dict=state, output_loading_info=True
    )
    assert not told["unexpected_keys"]
    assert not told["missing_keys"]
    tokens, segments = torch.randint(0, 29, (2, 7)), torch.randint(0, 2, (2, 7))
    ours = target.eval()(input_ids=tokens, token_type_ids=segments)
    words, order = source(tokens, segments)
    close(ours.prediction_logits, words)
    close(ours.seq_relationship_logits, order)
    back_again(state, "bert-tf-to-hf", source.weights)


def test_bert_of_2019_in_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=29, hidden_size=24, num_hidden_layers=2, num_attention_heads=3, intermediate_size=40
    )
    model = shaken(transformers.BertModel(config))
    old = {
        key.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for key, value in model.state_dict().items()
    }
    made = converted(old, "bert-old-to-new")
    assert all(torch.equal(made[key], value) for key, value in model.state_dict().items())
    back_again(made, "bert-old-to-new", old)
