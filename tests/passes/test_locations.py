"""Words for locations, rules made of them, and the places where devices are written down but not edited."""

import argparse

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptool
from ckptool import Checkpoint, LazyTensor, Storage
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.errors import RuleError
from ckptool.passes.locations import LocationRule, kept_on_cpu, mentions, new_location, parse_rules
from ckptool.passes.moving import map_location
from ckptool.tree import Dict, Global, List, Object

# --------------------------------------------------------------------------------------------------------- words

WORDS = {
    "cpu": "cpu",
    "cpu:0": "cpu",  # torch cannot restore a tag 'cpu:0'
    "cuda": "cuda",
    "cuda:0": "cuda:0",
    "cuda:15": "cuda:15",
    "mps": "mps",
    "mps:0": "mps:0",
    "xpu:1": "xpu:1",
    "hpu": "hpu",
    "mtia:0": "mtia:0",
    "meta": "meta",
    "xla:0": "xla:0",
    "privateuseone:0": "privateuseone:0",
}
#: What torch itself refuses, but people mean unmistakably.
LENIENT = {"CPU": "cpu", "CUDA:1": "cuda:1", " cuda:0 ": "cuda:0", "0": "cuda:0", "cuda:00": "cuda:0", "npu:0": "npu:0"}
REFUSED = [
    "gpu",
    "gpu:0",
    "cuda:",
    "cuda:-1",
    "cuda:x",
    "cuda:1:2",
    "cuda1",
    "cuda :0",
    "cuda:0x1",
    "disk",
    "best",
    "c",
]


@pytest.mark.parametrize(("word", "expected"), (WORDS | LENIENT).items())
def test_a_location_is_written_as_torch_tags_it(word, expected):
    assert parse_rules(word) == [LocationRule(None, expected)]


@pytest.mark.parametrize("word", [*REFUSED, "cuda:*", "*", "None", "cuda:²", "²", "9" * 5000, "cuda:" + "9" * 5000])
def test_a_word_that_is_no_location_is_refused(word):
    with pytest.raises(RuleError, match=r"^--map-location: '.* is not a location; torch's words are cpu, cuda:0, mps"):
        parse_rules(word)


@pytest.mark.parametrize("word", WORDS)
def test_torch_accepts_the_words_that_are_accepted(word):
    torch = pytest.importorskip("torch")
    assert torch.device(word)


@pytest.mark.parametrize("word", [*REFUSED, *LENIENT])
def test_torch_refuses_the_words_that_are_refused_or_read_leniently(word):
    torch = pytest.importorskip("torch")
    with pytest.raises(RuntimeError):
        torch.device(word)


@pytest.mark.parametrize("kind", ["cpu", "cuda", "mps", "xpu", "hpu", "mtia", "meta"])
def test_every_tag_that_torch_writes_is_a_location(kind):
    torch = pytest.importorskip("torch")
    for tag in {kind, str(torch.device(kind, 0)) if kind not in ("cpu", "meta") else kind}:
        assert parse_rules(tag) == [LocationRule(None, tag)]


@given(st.text(max_size=12))
def test_any_text_is_rules_or_a_rule_error(text):
    try:
        shown = [rule.target for rule in parse_rules(text)]
    except RuleError as error:
        shown = str(error).split("\n")
    assert shown
    assert all(line.isprintable() for line in shown)


# --------------------------------------------------------------------------------------------------------- rules

ONE = LocationRule("cuda:1", "cuda:0")
SWAP = [LocationRule("cuda:0", "cuda:1"), LocationRule("cuda:1", "cuda:0")]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("cuda:1->cuda:0", [ONE]),
        ("cuda:1=cuda:0", [ONE]),
        (" cuda:1 -> cuda:0 ", [ONE]),
        ("1->0", [ONE]),
        ({"cuda:1": "cuda:0"}, [ONE]),
        ({1: 0}, [ONE]),
        (["cuda:1=cuda:0"], [ONE]),
        ("cuda:0->cuda:1, cuda:1->cuda:0", SWAP),
        ("cuda:0=cuda:1,cuda:1=cuda:0", SWAP),
        (["cuda:0=cuda:1", "cuda:1=cuda:0"], SWAP),
        (("cuda:0=cuda:1,cuda:1=cuda:0",), SWAP),
        ({"cuda:0": "cuda:1", "cuda:1": "cuda:0"}, SWAP),
        ("cuda:*=cpu", [LocationRule("cuda:*", "cpu")]),
        ("cpu,", [LocationRule(None, "cpu")]),
        (0, [LocationRule(None, "cuda:0")]),
        (["cuda:1=cuda:0", "cpu"], [ONE, LocationRule(None, "cpu")]),
    ],
)
def test_rules_are_written_in_several_ways(rules, expected):
    assert parse_rules(rules) == expected


def test_rules_may_hold_devices_of_torch():
    torch = pytest.importorskip("torch")
    assert parse_rules(torch.device("cuda", 1)) == [LocationRule(None, "cuda:1")]
    assert parse_rules({torch.device("cuda:1"): torch.device("cuda:0")}) == [ONE]


@pytest.mark.parametrize("empty", ["", " ", ",", [], {}])
def test_no_rule_at_all_is_refused(empty):
    with pytest.raises(RuleError) as raised:
        parse_rules(empty)
    assert str(raised.value) == "--map-location: no location is given.\nHint: --map-location cpu"


@pytest.mark.parametrize(
    ("rules", "named"),
    [
        ("cpu,cuda:0", "every location"),
        ("cuda:1=cpu, cuda:1=cuda:0", "cuda:1"),
        ("cuda:1=cpu,1=cpu", "cuda:1"),
        ({"cuda:0": "cpu", 0: "cuda:1"}, "cuda:0"),
    ],
)
def test_two_rules_for_one_location_are_refused(rules, named):
    with pytest.raises(RuleError, match=f"two rules for {named}; which one is meant"):
        parse_rules(rules)


@pytest.mark.parametrize("rule", ["->cpu", "cuda:1->", "=", "->", "cuda:0->cuda:*", "cuda:1->cuda:0->cpu", "*=cpu"])
def test_half_a_rule_is_refused(rule):
    with pytest.raises(RuleError, match="is not a location"):
        parse_rules(rule)


def test_what_a_shell_leaves_of_an_unquoted_arrow_is_recognised():
    with pytest.raises(RuleError) as raised:
        parse_rules("cuda:1-")
    assert raised.value.where == "--map-location"
    assert raised.value.hint == "quote the rule, or write it with '=': --map-location cuda:1=cuda:0"


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("gpu", "torch calls it cuda"),
        ("gpu:1", "torch calls it cuda:1"),
        ("GPU1", "torch calls it cuda:1"),
        ("gpux", None),
    ],
)
def test_a_gpu_is_called_by_the_name_that_torch_has_for_it(word, hint):
    with pytest.raises(RuleError) as raised:
        parse_rules(word)
    assert raised.value.hint == hint


@pytest.mark.parametrize(
    ("location", "rules", "expected"),
    [
        ("cuda:1", "cpu", "cpu"),
        ("cuda:1", "cuda:1=cuda:0", "cuda:0"),
        ("cuda:2", "cuda:1=cuda:0", None),
        ("cuda", "cuda:*=cpu", "cpu"),
        ("cuda:10", "cuda:*=cpu", "cpu"),
        ("cuda", "cuda:0=cpu", None),
        ("cudax:1", "cuda:*=cpu", None),
        ("cpu", "cuda:*=meta", None),
        ("cuda:1", "cuda:*=cpu,cuda:1=cuda:0", "cuda:0"),
        ("cuda:1", "cuda:1=cuda:0,cuda:*=cpu", "cuda:0"),
        ("cuda:7", "mps,cuda:*=cpu,cuda:1=cuda:0", "cpu"),
        ("xpu:7", "mps,cuda:*=cpu,cuda:1=cuda:0", "mps"),
        ("cuda:1", "cuda:0=cuda:1,cuda:1=cuda:0", "cuda:0"),
        ("anything at all", "cpu", "cpu"),
    ],
)
def test_the_most_exact_rule_counts_and_rules_apply_at_once(location, rules, expected):
    assert new_location(location, parse_rules(rules)) == expected


# --------------------------------------------------------------------------------------- what must stay on the CPU


@pytest.mark.parametrize(
    ("path", "stays"),
    [
        ("optimizer/state/0/step", True),
        ("optimizer_states/0/state/3/step", True),
        ("optim/state/layer.weight/step", True),
        ("state/0/step", True),
        ("last_optimizer_state/state/0/step", True),
        ("optimizer/state/0/exp_avg", False),
        ("optimizer/state/0/exp_avg_sq", False),
        ("optimizer/state/0/momentum_buffer", False),
        ("optimizer/state/0/max_exp_avg_sq", False),
        ("state_dict/step", False),
        ("step", False),
        ("rng_state", True),
        ("cuda_rng_state_all/0", True),
        ("rng_states/cuda", True),
        ("random_rng_state", True),
        ("random_state", True),
        ("torch_manual_seed", True),
        ("rng-states/torch", True),
        ("model/strng.weight", False),
        ("model/kerning.weight", False),
        ("state_dict/layers.0.weight", False),
    ],
)
def test_steps_of_optimizers_and_states_of_generators_stay_on_the_cpu(path, stays):
    assert kept_on_cpu(path) is stays


@pytest.fixture
def resumed(tmp_path):
    """A checkpoint as torch saves it in the middle of training with Adam."""
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.Adam(model.parameters(), amsgrad=True)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    saved = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "rng_state": torch.get_rng_state(),
        "rng_states": {"cuda": [torch.get_rng_state()]},
        "args": argparse.Namespace(
            device=torch.device("cuda:1"), gpu="cuda:1", device_ids=[0, 1], name="cuda:1 is full"
        ),
    }
    torch.save(saved, tmp_path / "in.pth")
    return tmp_path / "in.pth"


def test_the_moments_of_a_real_optimizer_move_and_its_steps_and_the_generators_stay(resumed):
    done = map_location(ckptool.open(resumed), "cuda:0")
    on_cpu = {path for path, t in done.tensors() if t.location == "cpu"}
    assert on_cpu == {"optimizer/state/0/step", "optimizer/state/1/step", "rng_state", "rng_states/cuda/0"}
    moved = {path.rpartition("/")[2] for path, t in done.tensors() if t.location == "cuda:0"}
    assert moved == {"weight", "bias", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}


def test_what_names_a_device_is_listed_and_not_edited(resumed, tmp_path):
    done = map_location(ckptool.open(resumed), "cpu=cuda:0")
    notes = [line for line in done.history if "also names a device" in line]
    assert notes == [
        "note: args/@state/device also names a device (torch.device(cuda:1)); left as it is",
        "note: args/@state/gpu also names a device (cuda:1); left as it is",
        "note: args/@state/device_ids also names a device (GPU numbers); left as it is",
    ]
    torch = pytest.importorskip("torch")
    ckptool.save(done, tmp_path / "out.pth")
    with torch.serialization.safe_globals([argparse.Namespace]):
        args = torch.load(tmp_path / "out.pth", map_location="cpu", weights_only=True)["args"]
    assert (args.device, args.gpu, args.device_ids) == (torch.device("cuda:1"), "cuda:1", [0, 1])


# -------------------------------------------------------------------------------------------------------- mentions


def device(*args):
    return Object("reduce", Global("torch", "device"), args)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("cuda", [("x", "cuda")]),
        ("cuda:1", [("x", "cuda:1")]),
        ("mps", [("x", "mps")]),
        ("cpu", []),
        ("use cuda:1", []),
        ("cuda:1\n", []),
        (device("cuda", 1), [("x", "torch.device(cuda:1)")]),
        (device("cuda"), [("x", "torch.device(cuda)")]),
        (device("cpu"), []),
        (List([1, "cuda:0"]), [("x/1", "cuda:0")]),
        (("cuda:0",), [("x/0", "cuda:0")]),
        (Dict([("device_ids", List([0]))]), [("x/device_ids", "GPU numbers")]),
        (Dict([("device_ids", None)]), []),
        (Dict([("output_device", 0)]), [("x/output_device", "GPU numbers")]),
        (device(), []),
        (device(3), []),
        (Object("reduce", Global("torch", "device"), "no tuple"), []),
    ],
)
def test_devices_that_are_written_down(value, expected):
    assert mentions(Dict([("x", value)])) == expected


def test_many_mentions_are_counted_instead_of_listed():
    t = LazyTensor(Storage(Buffer(bytes(4)), "cuda:0", BY_NAME["float32"]), BY_NAME["float32"], (1,), (1,))
    log = List(["cuda:0"] * 20)
    done = map_location(Checkpoint(Dict([("model", Dict([("w", t)])), ("log", log)])), "cpu")
    notes = [line for line in done.history if line.startswith("note:")]
    assert len(notes) == 9
    assert notes[-1] == "note: 12 more places name a device; left as they are"
