"""Where the weights are: the envelopes of the frameworks, what stands beside them, and paths that say which."""

from collections import OrderedDict

import pytest
from effort import calls
from hypothesis import given
from hypothesis import strategies as st

import ckptool
from ckptool import Checkpoint, LazyTensor, Storage
from ckptool.checkpoint import StateDict, around
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.errors import Ambiguous, NotFound
from ckptool.inert.in_memory import from_plain
from ckptool.tree import Dict, Global, List, Object, descend
from ckptool.weights import ENVELOPES, PARTS, is_state_dict, is_training_state


def tensor():
    return LazyTensor(Storage(Buffer(bytes(8)), "cpu", BY_NAME["float32"]), BY_NAME["float32"], (2,), (1,))


T = tensor()
WEIGHTS = {"conv.weight": T, "conv.bias": T}


def weights():
    return dict(WEIGHTS)


def optimizer():
    """An optimizer as torch saves it: dicts of tensors and numbers, by parameter."""
    return {"state": {0: {"step": T, "exp_avg": T, "exp_avg_sq": T}}, "param_groups": [{"lr": 0.1, "params": [0]}]}


def paths(value):
    return [found.path for found in Checkpoint(from_plain(value)).state_dicts()]


def namespace():
    return Object("newobj", Global("argparse", "Namespace"), (), [("state", Dict([("lr", 0.1)]))])


def array():
    """A numpy array as it is pickled."""
    return Object("reduce", Global("numpy._core.multiarray", "_reconstruct"), (), [("state", (1, (2,), b"", False))])


# ------------------------------------------------------------------------------------------------- envelopes

ONE = {
    "bare": ("", weights()),
    "torch examples": ("state_dict", {"epoch": 1, "arch": "vgg", "state_dict": weights(), "optimizer": optimizer()}),
    "T5X": ("optimizer/target", {"version": T, "optimizer": {"target": weights(), "state": {"step": T}}}),
    "Scenic": ("optimizer/target", {"global_step": 7, "optimizer": {"target": weights()}}),
    "Lightning": (
        "state_dict",
        {
            "epoch": 1,
            "global_step": 2,
            "pytorch-lightning_version": "2.0",
            "state_dict": weights(),
            "loops": {"fit_loop": {"state_dict": {}, "progress": T}},
            "callbacks": {"ModelCheckpoint": {"best_model_score": T, "current_score": T}},
            "optimizer_states": [optimizer()],
            "lr_schedulers": [{"base_lrs": T, "last_lr": T}],
            "hyper_parameters": {"class_weights": {"a": T}},
        },
    ),
    "Lightning DCP": ("model", {"model": weights(), "optimizer_0": {"conv.weight": T, "conv.bias": T}}),
    "timm": ("state_dict", {"state_dict": weights(), "optimizer": optimizer(), "amp_scaler": {"scale": T}}),
    "mmengine": (
        "state_dict",
        {
            "meta": {"seed": 1},
            "message_hub": {"log": T, "loss": T},
            "state_dict": weights(),
            "optimizer": optimizer(),
            "param_schedulers": [{"base_values": [0.1], "x": T}],
        },
    ),
    "fairseq": (
        "model",
        {
            "args": namespace(),
            "cfg": None,
            "model": weights(),
            "criterion": {"w": T},
            "optimizer_history": [{"num_updates": 1}],
            "extra_state": {"train_iterator": {"epoch": 1}, "meters": {"a": T}},
            "last_optimizer_state": optimizer(),
        },
    ),
    "detectron2 zoo": (
        "model",
        {"model": {"a": array(), "b": array()}, "__author__": "x", "matching_heuristics": True},
    ),
    "Detectron": ("blobs", {"blobs": {"conv_w": array(), "conv_b": array()}, "cfg": "text"}),
    "pycls": ("model_state", {"epoch": 1, "model_state": weights(), "optimizer_state": optimizer()}),
    "YOLOX": ("model", {"start_epoch": 1, "model": weights(), "optimizer": optimizer(), "amp": {"loss_scaler0": T}}),
    "BasicSR": ("params", {"params": weights()}),
    "BasicSR averaged": ("params_ema", {"params_ema": weights()}),
    "ESRGAN": ("params-ema", {"params-ema": weights()}),
    "CIFAR": ("net", {"net": weights(), "acc": 93.1, "epoch": 200}),
    "ReID net_dict": ("net_dict", {"net_dict": weights(), "acc": T, "epoch": 1}),
    "weight": ("weight", {"weight": weights(), "epoch": 1}),
    "net_state": ("net_state", {"net_state": weights()}),
    "model_state_dict": (
        "model_state_dict",
        {"model_state_dict": weights(), "loss": T, "optimizer_state_dict": optimizer()},
    ),
    "a list of one": ("model/0", {"model": [weights()], "epoch": 1}),
    "DeepSpeed": (
        "module",
        {
            "module": weights(),
            "buffer_names": ["a"],
            "optimizer": None,
            "param_shapes": [{"conv.weight": (2,)}],
            "ds_version": "0.9",
            "random_ltd": None,
            "lr_scheduler": {"last_batch_iteration": 1},
        },
    ),
    "Megatron": (
        "model",
        {
            "model": weights(),
            "checkpoint_version": 3.0,
            "iteration": 1,
            "args": namespace(),
            "rng_state": [{"torch_rng_state": T, "rng_tracker_states": {"model-parallel-rng": T}}],
            "optimizer": {"fp32_from_fp16_params": [[T]], **optimizer()},
        },
    ),
    "Megatron before 3.0": (
        "model0",
        {
            "model0": weights(),
            "torch_rng_state": T,
            "cuda_rng_state": T,
            "rng_tracker_states": {"model-parallel-rng": T},
        },
    ),
    "torchtune": ("model", {"model": weights(), "optimizer": optimizer(), "seed": 1, "epochs_run": 1}),
    "an adapter": ("adapter", {"adapter": weights(), "adapter_config": {"r": 8, "x": T}}),
    "Stable Diffusion": ("state_dict", {"global_step": 1, "state_dict": {**WEIGHTS, "model_ema.convweight": T}}),
    "StyleGAN": ("g_ema", {"g_ema": weights(), "g_optim": optimizer(), "d_optim": {"a": T}, "latent_avg": T}),
    "an unusual name": ("my_nice_net", {"my_nice_net": weights(), "iteration": 3}),
    "a usual name before others": ("model", {"buffers": {"a": T}, "model": weights(), "stats": {"mean": T, "std": T}}),
    "two deep": ("checkpoint/model", {"checkpoint": {"model": weights(), "epoch": 1}}),
    "a tuple": ("0", (weights(), 17)),
    "averages of other things": ("D", {"D": weights(), "avg_D": {"real": T, "fake": T}}),
    "integer keys": ("model/1", {"model": {1: weights(), "x": 3}}),
}

SEVERAL = {
    "timm with EMA": (
        ["state_dict", "state_dict_ema"],
        {"state_dict": weights(), "state_dict_ema": weights(), "epoch": 1},
    ),
    "timm model_ema": (["model", "model_ema"], {"model": weights(), "model_ema": weights()}),
    "mmengine with EMA": (
        ["state_dict", "ema_state_dict"],
        {"state_dict": weights(), "ema_state_dict": {"module.conv.weight": T, "steps": T}},
    ),
    "SR with both": (["params", "params_ema"], {"params": weights(), "params_ema": weights()}),
    "an average under a name of its own": (["model", "ema_model"], {"model": weights(), "ema_model": weights()}),
    "an average of a class": (["model", "EMAModel"], {"model": weights(), "EMAModel": weights()}),
    "averages two deep": (
        ["runs/netG", "runs/netG_swa", "runs/netD", "runs/averaged_netD"],
        {"runs": {"netG": weights(), "netG_swa": weights(), "netD": weights(), "averaged_netD": weights()}},
    ),
    "a GAN": (["G", "D"], {"G": weights(), "D": weights()}),
    "a GAN by net": (["netG", "netD"], {"netG": weights(), "netD": weights(), "optimizerG": optimizer()}),
    "a list of dicts": (["model/0", "model/1"], {"model": [weights(), weights()], "epoch": 1}),
    "DINO": (["student", "teacher"], {"student": weights(), "teacher": weights(), "dino_loss": {"center": T}}),
    "virtual pipeline": (["model0", "model1"], {"model0": weights(), "model1": weights(), "rng_state": {"a": T}}),
    "an adapter with its base": (["model", "adapter"], {"model": weights(), "adapter": weights()}),
    "parts": (["model/encoder", "model/decoder"], {"model": {"encoder": weights(), "decoder": weights()}}),
}

NONE = {
    "an optimizer": optimizer(),
    "optimizers by many names": {
        "optimizer": {"a": T},
        "optimizer_0": {"a": T},
        "optimizerG": {"a": T},
        "d_optim": {"a": T},
        "optim_state": {"a": T},
        "last_optimizer_state": {"a": T},
        "optimizer_state_dict": {"base_optimizer_state": {"a": T}},
    },
    "generators": {
        "rng": {"a": T},
        "rng_state": T,
        "cuda_rng_state": [T],
        "rng_states": {"torch": T, "cuda": T},
        "random_rng_state": {"a": T},
        "random_state": {"a": T},
        "rng_tracker_states": {"a": T},
    },
    "generators at the root": {"rng_state": T, "cuda_rng_state": T},
    "schedulers": {"lr_scheduler": {"a": T}, "schedulers": [{"a": T}], "scheduler_state_dict": {"a": T}},
    "scalers": {"scaler": {"scale": T}, "amp_scaler": {"scale": T}, "grad_scaler": {"a": T}, "amp": {"a": T}},
    "settings": {"epoch": 1, "args": namespace(), "losses": [T, T]},
    "an empty dict": {},
    "a tensor": T,
    "a list of tensors": [T, T],
    "a number": 3,
    "a pickled module": {"ema": namespace(), "model": namespace(), "updates": 3},
    "an empty state dict": {"state_dict": {}},
}


@pytest.mark.parametrize("case", ONE)
def test_the_weights_of_every_framework_are_found(case):
    expected, value = ONE[case]
    assert paths(value) == [expected]
    assert Checkpoint(from_plain(value)).state_dict().path == expected


@pytest.mark.parametrize("case", SEVERAL)
def test_several_candidates_are_listed_in_the_order_of_the_file_and_none_is_chosen(case):
    expected, value = SEVERAL[case]
    ckpt = Checkpoint(from_plain(value))
    assert paths(value) == expected
    with pytest.raises(Ambiguous) as raised:
        ckpt.state_dict()
    assert raised.value.what == f"holds {len(expected)} state dicts; say which one:"
    assert [line.split()[0] for line in raised.value.evidence] == expected
    assert raised.value.hint == f"--at {expected[0]}"
    for path in expected:
        assert ckpt.state_dict(path).path == path


@pytest.mark.parametrize("case", NONE)
def test_training_state_and_settings_are_never_taken_for_weights(case):
    ckpt = Checkpoint(from_plain(NONE[case]))
    assert paths(NONE[case]) == []
    with pytest.raises(NotFound, match="holds no state dict"):
        ckpt.state_dict()


@pytest.mark.parametrize("key", ["LRScheduler", "GANOptimizer_2", "optimizerG", "d_optim", "cuda_rng_state"])
def test_a_word_of_training_state_is_found_behind_capitals_too(key):
    assert is_training_state(key)


@pytest.mark.parametrize("envelope", sorted(ENVELOPES - PARTS))
def test_every_usual_envelope_is_preferred_to_unusual_names(envelope):
    assert paths({"a_thing": weights(), envelope: weights()}) == [envelope]
    assert not is_training_state(envelope)


@pytest.mark.parametrize("part", sorted(PARTS))
def test_what_stands_beside_the_name_of_a_part_is_another_part(part):
    assert paths({"a_thing": weights(), part: weights(), "optimizer_a": weights()}) == ["a_thing", part]
    assert paths({"statistics": {"mean": T, "std": T}, part: weights()}) == [part]
    assert not is_training_state(part)


def test_beside_a_part_with_a_dict_for_each_module_all_modules_count():
    """A tree of flax: one model, of which only some parts have a usual name."""
    layer = {"kernel": T}
    tree = {"token_embedder": dict(layer), "encoder": {"layers_0": {"wi": dict(layer)}, "norm": dict(layer)}}
    assert paths({"target": tree, "state": {"step": 3}}) == [
        "target/token_embedder",
        "target/encoder/layers_0/wi",
        "target/encoder/norm",
    ]


@pytest.mark.parametrize("beside", ["optimizer", "rng_state", "scheduler", "optimizerD", "loops"])
def test_training_state_is_not_searched_at_any_depth(beside):
    assert paths({beside: {"inner": {"model": weights()}}, "x": {"net": weights()}}) == ["x/net"]


@pytest.mark.parametrize("name", ["normalizer", "optimal_net", "strng", "wrongly", "camp", "resampler"])
def test_names_that_only_contain_such_a_word_are_searched(name):
    assert paths({name: weights()}) == [name]


# ---------------------------------------------------------------------------------------- what is a state dict


@pytest.mark.parametrize(
    ("entries", "expected"),
    [
        ({"a": T}, True),
        ({"a": T, "b": T, "version": 3}, True),
        ({"a": T, "b": None, "c": T}, True),
        ({"a": T, "b": T, "x._extra_state": Dict([("k", Dict([]))])}, True),
        ({"_extra_state": T}, True),
        ({"a": T, "b": 1, "c": "text"}, False),
        ({"a": T, "b": Dict([])}, False),
        ({"a": T, 0: T}, False),
        ({}, False),
        ({"a": 1}, False),
    ],
)
def test_a_state_dict_is_names_and_tensors_with_a_few_scalars_between(entries, expected):
    assert is_state_dict(Dict(list(entries.items()))) is expected


def test_a_quantized_model_saves_a_state_dict():
    torch = pytest.importorskip("torch")
    if "fbgemm" not in torch.backends.quantized.supported_engines:
        pytest.skip("this torch cannot quantize")
    # what torch.ao.quantization.quantize_dynamic makes of a Linear, without its deprecation warnings
    packed = ("0._packed_params._packed_params", (T, None)), ("0._packed_params.dtype", Global("torch", "qint8"))
    assert is_state_dict(Dict([("0.scale", T), ("0.zero_point", T), *packed]))


# ------------------------------------------------------------------------------------------------------ paths


def numbered():
    return Dict(
        [
            (0, from_plain({"int": T})),
            ("0", from_plain({"text": T})),
            ("a/b", from_plain({"slash": T})),
            ("a~b", from_plain({"tilde": T})),
            ("a~1b", from_plain({"both": T})),
            ("", from_plain({"empty": T})),
            ("@state", from_plain({"at": T})),
            ("list", from_plain([{"first": T}, {"second": T}])),
            (-1, from_plain({"negative": T})),
        ]
    )


@pytest.mark.parametrize(
    ("at", "expected"),
    [
        ("0", "int"),
        ('"0"', "text"),
        ("a~1b", "slash"),
        ("a~0b", "tilde"),
        ("a~01b", "both"),
        ('""', "empty"),
        ('"@state"', "at"),
        ("list/0", "first"),
        ("list/1", "second"),
        ("-1", "negative"),
    ],
)
def test_a_path_reaches_keys_of_every_kind(at, expected):
    ckpt = Checkpoint(numbered())
    assert list(ckpt.state_dict(at)) == [expected]
    assert at in [found.path for found in ckpt.state_dicts()]


@given(st.lists(st.text(max_size=6) | st.integers(-5, 5), min_size=1, max_size=4))
def test_the_path_that_a_state_dict_has_finds_it_again(components):
    node = state_dict = from_plain({"w": T})
    for component in reversed(components):
        node = Dict([("decoy", 1), (component, node)])
    ckpt = Checkpoint(node)
    found = ckpt.state_dicts()
    for one in found:
        assert descend(ckpt.root, one.path) is one.node is state_dict
        assert ckpt.state_dict(one.path).path == one.path
    assert found or any(map(is_training_state, components))


@pytest.mark.parametrize(
    ("at", "message"),
    [
        ("nowhere", "nothing is at 'nowhere'"),
        ("list/2", "nothing is at 'list/2'"),
        ("list/0/first", "there is no dict at 'list/0/first'"),
        ("list", "there is no dict at 'list'"),
        ("list/", "nothing is at 'list/'"),
        ("a/b", "nothing is at 'a/b'"),
    ],
)
def test_a_path_that_leads_to_no_dict_is_refused_with_what_is_there(at, message):
    with pytest.raises(NotFound) as raised:
        Checkpoint(numbered()).state_dict(at)
    assert raised.value.what == message
    assert raised.value.evidence[0].startswith('at the root: 0, "0", a~1b, a~0b')


def test_a_dict_that_is_no_usual_state_dict_can_still_be_named():
    ckpt = Checkpoint(from_plain({"optimizer": {"a": T}, "model": weights()}))
    assert list(ckpt.state_dict("optimizer")) == ["a"]
    assert list(ckpt.state_dict("")) == ["optimizer", "model"]


@pytest.mark.parametrize(
    ("root", "evidence"),
    [
        (namespace(), "the root is an object of class argparse.Namespace"),
        (from_plain([1, 2]), "the root is a list"),
        (3, "the root is a int"),
        (from_plain({f"k{i}": i for i in range(9)}), "at the root: k0, k1, k2, k3, k4, k5, k6, k7, …"),
    ],
)
def test_what_holds_no_state_dict_says_what_it_holds(root, evidence):
    with pytest.raises(NotFound) as raised:
        Checkpoint(root).state_dict()
    assert raised.value.evidence == (evidence,)


def test_candidates_are_listed_with_sizes_and_a_long_list_is_cut():
    with pytest.raises(Ambiguous) as raised:
        Checkpoint(from_plain({"model": [weights() for _ in range(10)]})).state_dict()
    assert raised.value.what == "holds 10 state dicts; say which one:"
    assert raised.value.evidence[0] == "model/0   2 keys   2 parameters"  # both are one tensor
    assert raised.value.evidence[-1] == "…"
    assert len(raised.value.evidence) == 9


def test_the_path_in_a_hint_is_one_word_of_a_shell():
    with pytest.raises(Ambiguous) as raised:
        Checkpoint(from_plain({"a b": weights(), "$(c)": weights()})).state_dict()
    assert raised.value.hint == "--at 'a b'"


def test_a_tree_that_contains_itself_is_searched_once():
    root = from_plain({"model": {"inner": {"w": T}}})
    root.entries.append(("again", root))
    assert [found.path for found in Checkpoint(root).state_dicts()] == ["model/inner"]


# ------------------------------------------------------------------------------------- files that torch has made


def test_the_weights_of_a_real_training_checkpoint_are_found(tmp_path):
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    optim = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optim.step()
    torch.save(
        {
            "net": OrderedDict(model.state_dict()),
            "optimizer": optim.state_dict(),
            "scheduler": torch.optim.lr_scheduler.StepLR(optim, 1).state_dict(),
            "rng_state": torch.get_rng_state(),
            "best": 0.5,
        },
        tmp_path / "in.pth",
    )
    found = ckptool.open(tmp_path / "in.pth").state_dicts()
    assert [(one.path, list(one), one.parameters) for one in found] == [("net", ["weight", "bias"], 6)]


# ---------------------------------------------------------------------------------------- what stands around them


def test_what_stands_around_deep_weights_is_listed_with_an_effort_that_grows_with_the_file():
    def effort(depth):
        node = from_plain({"state_dict": weights()})
        for number in range(depth):
            node = Dict([("epoch", number), ("deeper", node)])
        ckpt = Checkpoint(node)
        found = ckpt.state_dicts()[0]
        needed = calls(lambda: around(ckpt, found))
        listed = around(ckpt, found)
        assert len(listed) == depth
        assert listed[1] == "deeper/epoch"
        return needed

    assert effort(2000) < 2.5 * effort(1000)


def test_weights_that_are_there_twice_over_are_reached_once():
    node = held = from_plain(weights())
    for number in range(60):
        node = List([node, number, node])
    ckpt = Checkpoint(Dict([("twice", node)]))
    found = StateDict(held, "twice")
    assert len(around(ckpt, found)) == 60
    assert around(ckpt, found)[-2:] == ["twice/0/1", "twice/1"]
