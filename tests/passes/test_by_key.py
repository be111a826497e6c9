"""Passes on trees built by hand, and on what torch's own wrappers save (the oracle for keys and `_metadata`)."""

import hashlib
from collections import OrderedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckptool
from ckptool import Checkpoint, LazyTensor, Storage
from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.errors import Ambiguous, KeyCollision, NoMatch, NotFound, PartialMatch, RuleError
from ckptool.passes.by_key import add_prefix, drop, rename, select, strip_prefix, unwrap
from ckptool.passes.envelopes import extract, wrap
from ckptool.passes.moving import map_location
from ckptool.tree import Dict, Global, List, Object

# ------------------------------------------------------------------------------------ checkpoints built by hand


def storage(data=bytes(8), location="cpu"):
    return Storage(Buffer(data), location, BY_NAME["float32"])


def tensor(data=bytes(8), location="cpu", *, over=None):
    over = over or storage(data, location)
    return LazyTensor(over, BY_NAME["float32"], (over.nbytes // 4,), (1,))


def state_dict(keys, versions=None, location="cpu"):
    """A state dict with a tensor for each of KEYS and, if VERSIONS are given, `_metadata` of these modules."""
    values = {key: tensor(i.to_bytes(8, "little"), location) for i, key in enumerate(keys)}
    made = Dict(list(values.items()), ordered=True)
    if versions is not None:
        entries = [(module, Dict([("version", version)])) for module, version in versions.items()]
        made.attributes = Dict([("_metadata", Dict(entries, ordered=True))])
    return made


def modules_of(keys):
    """The modules that have KEYS below them and a ReLU in each, as torch lists them: parents before children."""
    found = {"": 1}
    for key in keys:
        parts = key.split(".")
        for depth in range(1, len(parts)):
            found.setdefault(".".join(parts[:depth]), depth)
    return found | {f"{module}.relu".lstrip("."): 7 for module in found}


def described(node):
    """Everything that is below NODE as plain values; tensors that share a storage get the same number."""
    numbers = {}

    def value(node):
        if isinstance(node, Dict):
            return ("dict", node.ordered, [(key, value(item)) for key, item in node.entries], value(node.attributes))
        if isinstance(node, List):
            return ["list", *map(value, node.items)]
        if isinstance(node, LazyTensor):
            return ("tensor", value(node.storage), node.dtype.name, node.shape, node.stride, node.offset)
        if isinstance(node, Storage):
            number = numbers.setdefault(id(node), len(numbers))
            return ("storage", number, bytes(node.source.read(0, node.nbytes)), node.location)
        if isinstance(node, Object):
            return ("object", node.class_name, value(node.args), [(kind, value(item)) for kind, item in node.steps])
        return [value(item) for item in node] if isinstance(node, tuple | list) else node

    return value(node)


def keys_of(ckpt, at=None):
    return list(ckpt.state_dict(at))


def training_checkpoint(keys=("module.conv.weight", "module.fc.weight"), location="cuda:1"):
    """What a training script saves: weights, their optimizer, random number generators, and settings."""
    weights = state_dict(keys, modules_of(keys), location)
    moments = Dict([("step", tensor()), ("exp_avg", tensor(b"moments!", location))])
    group = Dict([("lr", 0.1), ("params", List([0]))])
    optimizer = Dict([("state", Dict([(0, moments)])), ("param_groups", List([group]))])
    args = Object("newobj", Global("argparse", "Namespace"), (), [("state", Dict([("device", "cuda:1")]))])
    root = [("epoch", 3), ("state_dict", weights), ("optimizer", optimizer), ("rng_state", tensor(b"rng!rng!"))]
    return Checkpoint(Dict([*root, ("args", args)]), path=None)


# Few letters, so that keys share components. None of them is the name of a wrapper.
COMPONENTS = st.sampled_from(["a", "b", "fc", "mlp_module", "0", "1"])
KEYS = st.lists(COMPONENTS, min_size=1, max_size=4).map(".".join)
KEY_LISTS = st.lists(KEYS, min_size=1, max_size=12, unique=True)
PREFIXES = st.sampled_from(["module.", "module", "_orig_mod.module.", "a", "a.b."])


@st.composite
def checkpoints(draw):
    """A checkpoint with one state dict, bare or in an envelope, with ties, with or without `_metadata`."""
    keys = draw(KEY_LISTS)
    weights = state_dict(keys, modules_of(keys) if draw(st.booleans()) else None, draw(st.sampled_from(LOCATIONS)))
    if len(keys) > 1 and draw(st.booleans()):
        (_, kept), (other, _) = weights.entries[0], weights.entries[-1]
        weights.entries[-1] = (other, tensor(over=kept.storage))
    if draw(st.booleans()):
        return Checkpoint(weights)
    beside = tensor(location=draw(st.sampled_from(LOCATIONS)))
    return Checkpoint(Dict([("epoch", 1), ("model", weights), ("optimizer", Dict([("state", List([beside]))]))]))


LOCATIONS = ["cpu", "cuda:0", "cuda:1", "mps"]

# -------------------------------------------------------------------------------------------------------- laws


@given(checkpoints(), PREFIXES)
def test_stripping_what_was_added_gives_the_same_checkpoint(ckpt, prefix):
    assert described(strip_prefix(add_prefix(ckpt, prefix), prefix).root) == described(ckpt.root)


@given(checkpoints(), PREFIXES)
def test_adding_what_was_stripped_gives_the_same_checkpoint(ckpt, prefix):
    wrapped = add_prefix(ckpt, prefix)
    assert described(add_prefix(strip_prefix(wrapped, prefix), prefix).root) == described(wrapped.root)


@given(checkpoints(), st.permutations(["a", "b", "fc", "mlp_module", "0", "1"]))
def test_renaming_components_and_back_gives_the_same_checkpoint(ckpt, others):
    names = ["a", "b", "fc", "mlp_module", "0", "1"]
    there = dict(zip(names, others, strict=True))
    back = {new: old for old, new in there.items()}
    done = rename(rename(ckpt, there, missing="ok"), back, missing="ok")
    assert described(done.root) == described(ckpt.root)


@given(checkpoints(), st.lists(KEYS, min_size=1, max_size=3))
def test_select_and_drop_share_out_all_keys_and_all_metadata(ckpt, patterns):
    parts = []
    for pass_ in (select, drop):
        try:
            parts.append(pass_(ckpt, patterns, missing="ok").state_dict())
        except NoMatch:  # no key would be left: then the other part is the whole
            continue
    whole = ckpt.state_dict()
    assert sorted(key for part in parts for key in part) == sorted(whole)
    for part in parts:
        assert list(part) == [key for key in whole if key in part]
        assert (part.metadata is None) == (whole.metadata is None)
        assert list(part.metadata or ()) == [module for module in whole.metadata or () if module in part.metadata]
    assert {module for part in parts for module in part.metadata or ()} == set(whole.metadata or ())


@given(checkpoints(), st.sampled_from(["cpu", "cuda:0", "cuda:*=cpu", "cpu=cuda:3", "cuda:0=mps,mps=cuda:0"]))
def test_map_location_changes_no_byte_no_key_and_no_tie(ckpt, rules):
    done = map_location(ckpt, rules, missing="ok")

    def without_locations(root):
        moved = map_location(Checkpoint(root), "meta", missing="ok")
        return hashlib.sha256(repr(described(moved.root)).encode()).hexdigest()

    assert without_locations(done.root) == without_locations(ckpt.root)
    assert len(done.storages()) == len(ckpt.storages()) > 0


@given(checkpoints())
def test_a_swap_of_two_devices_undoes_itself(ckpt):
    swap = "cuda:0->cuda:1, cuda:1->cuda:0"
    once = map_location(ckpt, swap, missing="ok")
    changed = {"cuda:0": "cuda:1", "cuda:1": "cuda:0"}
    assert [s.location for s in once.storages()] == [changed.get(s.location, s.location) for s in ckpt.storages()]
    assert described(map_location(once, swap, missing="ok").root) == described(ckpt.root)


@given(checkpoints(), st.permutations(["cuda:0", "cuda:1", "mps", "cuda:7"]))
def test_a_one_to_one_remap_there_and_back_gives_the_same_checkpoint(ckpt, others):
    there = dict(zip(["cuda:0", "cuda:1", "mps", "cuda:7"], others, strict=True))
    back = {new: old for old, new in there.items()}
    done = map_location(map_location(ckpt, there, missing="ok"), back, missing="ok")
    assert described(done.root) == described(ckpt.root)


@given(checkpoints())
def test_extracting_what_was_wrapped_gives_the_same_weights(ckpt):
    alone = extract(ckpt)
    assert described(extract(wrap(alone, "net")).root) == described(alone.root)
    assert described(wrap(wrap(ckpt, "net"), "model").root) == described(wrap(ckpt, "model").root)


PASSES = [
    pytest.param(lambda c: strip_prefix(c), id="strip"),
    pytest.param(lambda c: strip_prefix(c, first=True), id="strip first"),
    pytest.param(lambda c: add_prefix(c, "backbone"), id="add"),
    pytest.param(lambda c: unwrap(c), id="unwrap"),
    pytest.param(lambda c: rename(c, "module.fc=module.head"), id="rename"),
    pytest.param(lambda c: rename(c, {"module.fc": "module.conv", "module.conv": "module.fc"}), id="rename swap"),
    pytest.param(lambda c: rename(c, [r"re:weight$=kernel"]), id="rename by expression"),
    pytest.param(lambda c: select(c, "module.fc"), id="select"),
    pytest.param(lambda c: drop(c, ["module.fc"]), id="drop"),
    pytest.param(lambda c: extract(c), id="extract"),
    pytest.param(lambda c: map_location(c, "cpu"), id="map_location"),
    pytest.param(lambda c: wrap(c, "model"), id="wrap"),
]


@pytest.mark.parametrize("pass_", PASSES)
def test_a_pass_leaves_its_input_as_it_was(pass_):
    ckpt = training_checkpoint()
    before, history = described(ckpt.root), ckpt.history
    done = pass_(ckpt)
    assert described(ckpt.root) == before
    assert ckpt.history == history
    assert described(done.root) != before


@pytest.mark.parametrize("pass_", PASSES)
def test_a_pass_says_what_it_did(pass_):
    assert len(pass_(training_checkpoint()).history) >= 1


@pytest.mark.parametrize("pass_", [p for p in PASSES if p.id not in ("extract", "wrap")])
def test_what_is_beside_the_weights_stays_where_it_is(pass_):
    done = pass_(training_checkpoint()).root
    assert [key for key, _ in done.entries] == ["epoch", "state_dict", "optimizer", "rng_state", "args"]
    assert done.get("epoch") == 3


# ------------------------------------------------------------------------------- plain dicts, without a Checkpoint


class Array:
    """What a pass takes for a tensor in memory."""

    shape, dtype = (2,), "float32"


def plain(keys, kind=OrderedDict):
    return kind((key, Array()) for key in keys)


@pytest.mark.parametrize("kind", [dict, OrderedDict])
@pytest.mark.parametrize("envelope", [None, "state_dict", "model"])
def test_a_plain_dict_is_treated_as_a_checkpoint_is(kind, envelope):
    weights = plain(["module.b.w", "module.a.w"], kind)
    given_ = weights if envelope is None else {"epoch": 1, envelope: weights}
    done = strip_prefix(given_)
    inner = done if envelope is None else done[envelope]
    assert type(done) is type(given_)
    assert type(inner) is kind
    assert list(inner.items()) == [("b.w", weights["module.b.w"]), ("a.w", weights["module.a.w"])]
    assert list(weights) == ["module.b.w", "module.a.w"]


@pytest.mark.parametrize("envelope", [None, "state_dict"])
def test_an_ordered_dict_keeps_its_metadata(envelope):
    weights = plain(["module.fc.w"])
    weights._metadata = OrderedDict({"": {"version": 1}, "module": {"version": 2}, "module.fc": {"version": 3}})
    done = strip_prefix(weights if envelope is None else {envelope: weights})
    inner = done if envelope is None else done[envelope]
    assert inner._metadata == OrderedDict({"": {"version": 2}, "fc": {"version": 3}})
    assert list(weights._metadata) == ["", "module", "module.fc"]


def test_values_of_a_plain_dict_are_the_same_objects():
    weights, other = plain(["a.w", "b.w"]), object()
    done = rename({"net": weights, "args": other, "log": [1, {"x": other}]}, "a=c")
    assert done["net"]["c.w"] is weights["a.w"]
    assert done["args"] is other
    assert done["log"] == [1, {"x": other}]


@pytest.mark.parametrize("value", [[1], "file.pth", None, 3])
def test_a_pass_refuses_what_is_neither_checkpoint_nor_dict(value):
    with pytest.raises(TypeError, match="takes a Checkpoint or a dict of tensors, not"):
        strip_prefix(value)


# --------------------------------------------------------------------------------------------- strip and add


@pytest.mark.parametrize(
    ("keys", "options", "expected"),
    [
        (["module.a.w", "module.b"], {}, ["a.w", "b"]),
        (["module.mlp_module.w"], {}, ["mlp_module.w"]),
        (["module.module.w"], {}, ["module.w"]),
        (["module.a"], {"prefix": "module"}, ["a"]),
        (["a.b.c", "a.b.d"], {"prefix": "a.b"}, ["c", "d"]),
        (["x.a", "y.b"], {"first": True}, ["a", "b"]),
        (["module.a"], {"prefix": "net", "missing": "ok"}, ["module.a"]),
    ],
)
def test_strip_prefix(keys, options, expected):
    assert keys_of(strip_prefix(Checkpoint(state_dict(keys)), **options)) == expected


@pytest.mark.parametrize("keys", [["modules.a"], ["a.module.w"], ["module_list.0"], ["module"]])
def test_only_whole_components_at_the_start_are_a_prefix(keys):
    with pytest.raises(NoMatch, match=r"^no key starts with 'module\.'\."):
        strip_prefix(Checkpoint(state_dict(keys)))


def test_a_strip_that_matches_nothing_says_what_keys_start_with_and_which_prefix_they_share():
    with pytest.raises(NoMatch) as raised:
        strip_prefix(Checkpoint(state_dict(["net.a", "net.b"])))
    assert raised.value.evidence == ("the 2 keys start with: 'net' (2)",)
    assert raised.value.hint == "--prefix net."


def test_a_strip_that_fits_only_some_keys_is_refused_with_counts_and_the_rename_that_would_do_it():
    with pytest.raises(PartialMatch) as raised:
        strip_prefix(Checkpoint(state_dict(["module.a", "n_averaged", "module.b", "head.w"])))
    assert raised.value.what == "'module.' fits 2 of 4 keys; these do not have it:"
    assert raised.value.evidence == ("n_averaged", "head.w")
    assert raised.value.hint == (
        "ckptool convert IN in-plain.pth --rename module= --drop n_averaged --drop head   # keeps those that have it, "
        "without it; without --drop the others stay as they are"
    )


def test_the_rename_that_a_partial_match_proposes_does_it():
    ckpt = Checkpoint(state_dict(["net.a", "loss.weight", "net.loss.b", "loss.bias", "net.c"]))
    with pytest.raises(PartialMatch) as raised:
        strip_prefix(ckpt, "net")
    assert raised.value.instead == ("--rename", "net=", "--drop", "loss.weight", "--drop", "loss.bias")
    done = drop(rename(ckpt, "net="), ["loss.weight", "loss.bias"])
    assert keys_of(done) == ["a", "loss.b", "c"]


@pytest.mark.parametrize(
    ("pattern", "hint"), [("norm", "re:norm finds it anywhere"), ("head", "patterns see the names")]
)
def test_a_pattern_that_matches_nothing_says_which_names_it_sees_and_how_to_look_inside(pattern, hint):
    with pytest.raises(NoMatch) as raised:
        drop(Checkpoint(state_dict(["a.norm.weight", "b.weight"])), pattern)
    assert raised.value.hint.startswith("patterns see the names that will be written; ")
    assert hint in raised.value.hint


@pytest.mark.parametrize(("pattern", "said"), [("*norm*", "'re:norm'"), ("a*b", "'re:a.*b'"), ("**", "{} for one")])
def test_a_star_in_a_pattern_names_the_expression(pattern, said):
    with pytest.raises(RuleError) as raised:
        drop(Checkpoint(state_dict(["a.norm.weight"])), pattern)
    assert said in raised.value.hint


def test_long_lists_of_keys_are_cut_and_counted():
    keys = [f"other{i}" for i in range(40)]
    with pytest.raises(PartialMatch) as raised:
        strip_prefix(Checkpoint(state_dict(["module.a", *keys])))
    assert raised.value.evidence == (*keys[:5], "… and 35 more")


def test_strip_first_refuses_keys_of_one_component():
    with pytest.raises(PartialMatch, match="the first component fits 1 of 2 keys"):
        strip_prefix(Checkpoint(state_dict(["a.w", "b"])), first=True)
    with pytest.raises(NoMatch, match="no key has more than one component"):
        strip_prefix(Checkpoint(state_dict(["b"])), first=True)


def test_strip_first_refuses_two_keys_that_would_become_one():
    with pytest.raises(KeyCollision) as raised:
        strip_prefix(Checkpoint(state_dict(["a.w", "b.w"])), first=True)
    assert raised.value.what == "two keys would become 'w':"
    assert raised.value.evidence == ("a.w   (without the first component)", "b.w   (without the first component)")


@pytest.mark.parametrize("pass_", [strip_prefix, add_prefix])
@pytest.mark.parametrize("prefix", ["", "."])
def test_an_empty_prefix_is_refused(pass_, prefix):
    with pytest.raises(RuleError, match="--prefix: the prefix is empty"):
        pass_(Checkpoint(state_dict(["a.w"])), prefix)


@pytest.mark.parametrize("prefix", ["a..b", ".a", "a.."])
def test_a_prefix_that_would_leave_an_empty_component_is_not_added(prefix):
    with pytest.raises(RuleError, match="has an empty component"):
        add_prefix(Checkpoint(state_dict(["a.w"])), prefix)


# ----------------------------------------------------------------------------------- rename, select, drop, unwrap


@pytest.mark.parametrize(
    ("keys", "rules", "expected"),
    [
        (["fc.w", "fc2.w"], "fc=head", ["head.w", "fc2.w"]),
        (["a.w", "b.w"], {"a": "b", "b": "a"}, ["b.w", "a.w"]),
        (["a.w", "b.w"], ["a=b", "b=c"], ["b.w", "c.w"]),
        (["a.w", "b.w"], ["a=b", "re:^[ab]=x"], ["b.w", "x.w"]),
        (["layer1.w", "layer2.w"], "layer{}=blocks.{}", ["blocks.1.w", "blocks.2.w"]),
        (["backbone.w", "head.w"], "backbone=", ["w", "head.w"]),
        (["w"], "=backbone", ["backbone.w"]),
        (["ln.gamma"], "re:gamma$=weight", ["ln.weight"]),
    ],
)
def test_the_first_rule_that_matches_a_key_counts(keys, rules, expected):
    assert keys_of(rename(Checkpoint(state_dict(keys)), rules)) == expected


def test_a_rule_that_matches_nothing_is_named_with_the_keys_that_look_like_it():
    with pytest.raises(NoMatch) as raised:
        rename(Checkpoint(state_dict(["encoder.w", "decoder.w"])), ["decoder=d", "encodr.w=e"])
    assert raised.value.what == "no key matches 'encodr.w=e'"
    assert raised.value.evidence[-1].startswith("did you mean: encoder.w")
    assert raised.value.hint == "--if-present   # lets rules match nothing"
    with pytest.raises(NoMatch) as raised:
        ckptool.rename(Checkpoint(state_dict(["encoder.w", "head.w"])), "w=e")
    hint = raised.value.hint.partition("   # ")[0]
    assert hint == "--rename '{...}.w={...}.e'"
    renamed = ckptool.rename(Checkpoint(state_dict(["encoder.w", "head.w"])), "{...}.w={...}.e")
    assert list(renamed.state_dict()) == ["encoder.e", "head.e"]


def test_expressions_are_shown_as_they_were_typed():
    ckpt = Checkpoint(state_dict(["a.w"]))
    with pytest.raises(NoMatch, match=r"no key matches 're:\\\.gamma\$=x'\."):
        rename(ckpt, r"re:\.gamma$=x")
    for pass_ in (select, drop):
        with pytest.raises(NoMatch, match=r"no key matches 're:\\\.gamma\$'\."):
            pass_(ckpt, r"re:\.gamma$")


def test_two_keys_that_become_one_are_both_named():
    with pytest.raises(KeyCollision) as raised:
        rename(Checkpoint(state_dict(["backbone.w", "w"])), "backbone=")
    assert raised.value.what == "two keys would become 'w':"
    assert raised.value.evidence == ("backbone.w   (renamed)", "w   (unchanged)")
    assert "drop one of them" in raised.value.hint


@pytest.mark.parametrize("pass_", [select, drop])
def test_a_pattern_that_matches_nothing_is_refused(pass_):
    ckpt = Checkpoint(state_dict(["a.w", "b.w"]))
    with pytest.raises(NoMatch, match="no key matches 'c'"):
        pass_(ckpt, ["a", "c"])
    assert len(pass_(ckpt, ["a", "c"], missing="ok").state_dict()) == 1


@pytest.mark.parametrize(("pass_", "patterns"), [(select, "c"), (drop, ["a", "b"])])
def test_an_empty_state_dict_is_never_the_result(pass_, patterns):
    with pytest.raises(NoMatch, match="no key would be left"):
        pass_(Checkpoint(state_dict(["a.w", "b.w"])), patterns, missing="ok")


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["_orig_mod.module.a.w", "_orig_mod.module.b.w"], ["a.w", "b.w"]),
        (["module._orig_mod.a.w"], ["a.w"]),
        (["layers.0._orig_mod.w", "layers.1.w"], ["layers.0.w", "layers.1.w"]),
        (["features.module.0.w", "classifier.w"], ["features.0.w", "classifier.w"]),
        (["_fsdp_wrapped_module.a._fsdp_wrapped_module._checkpoint_wrapped_module.w"], ["a.w"]),
        (["n_averaged", "module.a.w"], ["a.w"]),
        (["_orig_mod.n_averaged", "_orig_mod.module.a.w"], ["a.w"]),
        (["module.n_averaged", "module.module.a.w"], ["a.w"]),
        (["_orig_mod.n_averaged", "_orig_mod.a.w"], ["n_averaged", "a.w"]),
        (["module.n_averaged", "module.a.w"], ["n_averaged", "a.w"]),
    ],
)
def test_unwrap_removes_wrappers_wherever_they_are_and_the_counter_of_an_averaged_model(keys, expected):
    assert keys_of(unwrap(Checkpoint(state_dict(keys)))) == expected


@pytest.mark.parametrize("keys", [["a.w"], ["module.w", "other.w"], ["module_list.w"]])
def test_unwrap_refuses_keys_that_go_through_no_wrapper(keys):
    with pytest.raises(NoMatch, match="no key goes through a wrapper"):
        unwrap(Checkpoint(state_dict(keys)))
    assert keys_of(unwrap(Checkpoint(state_dict(keys)), missing="ok")) == keys


def test_unwrap_refuses_two_keys_that_would_become_one():
    with pytest.raises(KeyCollision, match=r"two keys would become 'b\.w'"):
        unwrap(Checkpoint(state_dict(["b._orig_mod.w", "b.w"])))


# -------------------------------------------------------------------------------------------------- where it works


def test_at_says_which_of_several_state_dicts():
    ckpt = Checkpoint(Dict([("netG", state_dict(["module.a"])), ("netD", state_dict(["module.a"]))]))
    with pytest.raises(Ambiguous):
        strip_prefix(ckpt)
    done = strip_prefix(ckpt, at="netD")
    assert (keys_of(done, "netG"), keys_of(done, "netD")) == (["module.a"], ["a"])
    assert done.history == (
        "note: netG names 1 of the old keys; left as it is",
        "strip 'module.': 1 of 1 key in netD",
    )


def test_at_a_path_without_a_dict_is_refused():
    with pytest.raises(NotFound, match="nothing is at 'nowhere'"):
        strip_prefix(training_checkpoint(), at="nowhere")


def test_other_places_that_name_the_old_keys_are_noted_and_left():
    named = Dict([("module.fc", Dict([("lr", 0.1)])), ("other", 1)])
    weights = state_dict(["module.fc"])
    done = strip_prefix(Checkpoint(Dict([("model", weights), ("lr_of", named), ("frozen", List(["module.fc"]))])))
    assert done.history == (
        "note: lr_of names 1 of the old keys; left as it is",
        "note: frozen names 1 of the old keys; left as it is",
        "strip 'module.': 1 of 1 key in model",
    )
    assert [key for key, _ in done.root.get("lr_of").entries] == ["module.fc", "other"]


def test_a_state_dict_that_stands_at_two_places_changes_at_both_and_stays_one():
    weights = state_dict(["module.a"])
    done = strip_prefix(Checkpoint(Dict([("model", weights), ("model_best", weights)])))
    assert done.root.get("model") is done.root.get("model_best")
    assert keys_of(done) == ["a"]


def test_extract_makes_the_weights_the_root_and_says_what_it_leaves_behind():
    done = extract(training_checkpoint())
    assert [key for key, _ in done.root.entries] == ["module.conv.weight", "module.fc.weight"]
    assert done.history == (
        "extract state_dict: 2 keys kept; left behind: epoch, optimizer (2 tensors), rng_state (1 tensor), args",
    )
    assert extract(done).history[-1] == "extract: the file already holds only weights"
    assert described(extract(done).root) == described(done.root)


# ------------------------------------------------------------------------------------------------------ locations


def test_weights_and_moments_move_but_steps_and_generators_stay_on_the_cpu():
    done = map_location(training_checkpoint(), "cuda:0")
    assert {path: t.location for path, t in done.tensors()} == {
        "state_dict/module.conv.weight": "cuda:0",
        "state_dict/module.fc.weight": "cuda:0",
        "optimizer/state/0/step": "cpu",
        "optimizer/state/0/exp_avg": "cuda:0",
        "rng_state": "cpu",
    }
    assert done.history == (
        "map-location cuda:1 -> cuda:0: 3 of 5 storages",
        "note: 2 storages stay on cpu (random number generators, steps of Adam)",
        "note: args/@state/device also names a device (cuda:1); left as it is",
    )


def test_generators_that_are_on_a_gpu_go_to_the_cpu_with_everything_else():
    ckpt = Checkpoint(Dict([("model", state_dict(["a"], location="cuda:0")), ("rng_state", tensor(location="cuda:0"))]))
    assert {t.location for _, t in map_location(ckpt, "cpu").tensors()} == {"cpu"}


def test_a_storage_that_a_weight_shares_with_a_generator_moves():
    shared = storage()
    weights = Dict([("a", tensor(over=shared))])
    ckpt = Checkpoint(Dict([("model", weights), ("rng_state", tensor(over=shared))]))
    assert {t.location for _, t in map_location(ckpt, "cuda:0").tensors()} == {"cuda:0"}


def test_bare_storages_in_objects_move_too():
    old = Object("reduce", Global("torch._utils", "_rebuild_sparse_tensor"), (storage(location="cuda:1"),))
    done = map_location(Checkpoint(Dict([("model", state_dict(["a"], location="cuda:1")), ("x", old)])), "cpu")
    assert {s.location for s in done.storages()} == {"cpu"}


def test_tags_that_torch_does_not_know_can_be_mapped_away_and_are_kept_otherwise():
    ckpt = Checkpoint(state_dict(["a"], location="musa:0"))
    assert keys_of(ckpt) == ["a"]
    assert map_location(ckpt, "cpu").storages()[0].location == "cpu"
    assert map_location(ckpt, "cuda:0=cpu", missing="ok").storages()[0].location == "musa:0"


def test_a_rule_for_a_device_that_no_storage_is_on_is_refused_with_those_that_are():
    with pytest.raises(NoMatch) as raised:
        map_location(Checkpoint(state_dict(["a", "b"], location="cuda:3")), "cuda:1=cuda:0")
    assert raised.value.what == "no storage is on cuda:1"
    assert raised.value.evidence == ("cuda:3: 2 storages",)
    assert raised.value.hint == "--map-location cuda:3=cuda:0"


@pytest.mark.parametrize("rules", ["cpu", "cuda:1=cpu", "cuda:*=cpu", {"cuda:0": "cpu"}])
def test_a_target_that_holds_already_is_success(rules):
    ckpt = Checkpoint(state_dict(["a", "b"]))
    done = map_location(ckpt, rules)
    assert described(done.root) == described(ckpt.root)
    assert done.history == ("map-location: 0 of 2 storages changed; all are where they should be",)


def test_torch_tensors_that_are_where_they_should_be_stay_the_same_objects():
    torch = pytest.importorskip("torch")
    weights = torch.nn.Linear(2, 2).state_dict()
    done = map_location({"model": weights, "epoch": 1, "log": [weights["bias"], "x"]}, "cuda:7=cpu")
    assert done["model"]["weight"] is weights["weight"]
    assert done["log"][0] is weights["bias"]
    assert done["model"]._metadata == weights._metadata
    assert (done["epoch"], type(done["model"])) == (1, OrderedDict)


def test_torch_tensors_move_between_cpu_and_gpu_and_stay_tied():
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a GPU")
    weights = torch.nn.Linear(2, 2).state_dict()
    weights["tied"] = weights["weight"].t()
    there = map_location({"model": weights}, "cpu=cuda:0")["model"]
    back = map_location(there, "cuda:0->cpu")
    assert {str(t.device) for t in there.values()} == {"cuda:0"}
    assert {str(t.device) for t in back.values()} == {str(t.device) for t in weights.values()} == {"cpu"}
    for moved in (there, back):
        assert moved["tied"].stride() == (1, 2)
        assert moved["tied"].untyped_storage()._cdata == moved["weight"].untyped_storage()._cdata
        assert moved._metadata == weights._metadata
    assert all(back[key].equal(weights[key]) for key in weights)


# ----------------------------------------------------------------- keys and `_metadata`, checked against torch itself


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def _conv_bn_relu(nn):
    return nn.Sequential(OrderedDict(conv=nn.Conv2d(1, 2, 3), bn=nn.BatchNorm2d(2), relu=nn.ReLU(), fc=nn.Linear(2, 2)))


def _nested(nn):
    inner = nn.Sequential(nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    return nn.Sequential(nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU()), nn.ReLU(), inner)


def _no_parameters_first(nn):
    return nn.Sequential(OrderedDict(a=nn.ReLU(), b=nn.Sequential(nn.ReLU(), nn.Dropout()), c=nn.Linear(1, 1)))


def _only_one_branch(nn):
    return nn.Sequential(nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.ReLU())))


def _named_like_wrappers(nn):
    return nn.ModuleDict({"module": nn.Linear(2, 2), "module_list": nn.ModuleList([nn.ReLU(), nn.Linear(1, 1)])})


def _own_parameter(nn):
    made = nn.Sequential(nn.ReLU(), nn.Linear(1, 1))
    made.scale = nn.Parameter(nn.Linear(1, 1).bias.detach())
    return made


def _tied(nn):
    made = nn.ModuleDict({"embed": nn.Embedding(3, 2), "head": nn.Linear(2, 3, bias=False)})
    made["head"].weight = made["embed"].weight
    return made


def _weight_norm(nn):
    return nn.Sequential(nn.utils.weight_norm(nn.Linear(2, 2)), nn.utils.parametrizations.weight_norm(nn.Linear(2, 2)))


MODELS = {
    "conv, bn, relu": _conv_bn_relu,
    "nested": _nested,
    "no parameters first": _no_parameters_first,
    "only one branch": _only_one_branch,
    "named like wrappers": _named_like_wrappers,
    "parameter of its own": _own_parameter,
    "tied": _tied,
    "weight norm": _weight_norm,
    "attention": lambda nn: nn.TransformerEncoderLayer(4, 2),
    "lstm": lambda nn: nn.LSTM(2, 2),
    "one layer": lambda nn: nn.Linear(2, 2),
}


@pytest.fixture(params=MODELS)
def model(request, torch):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the old weight_norm, which checkpoints still hold, is deprecated
        return MODELS[request.param](torch.nn)


def compiled(torch, model):
    return torch.compile(model, backend="eager")


WRAPPED = {
    "DataParallel": (lambda t, m: t.nn.DataParallel(m), "module."),
    "compile": (compiled, "_orig_mod."),
    "DataParallel of compile": (lambda t, m: t.nn.DataParallel(compiled(t, m)), "module._orig_mod"),
    "compile of DataParallel": (lambda t, m: compiled(t, t.nn.DataParallel(m)), "_orig_mod.module"),
    "DataParallel twice": (lambda t, m: t.nn.DataParallel(t.nn.DataParallel(m)), "module.module"),
}


def assert_same_state_dict(one, other):
    assert list(one) == list(other)
    assert all(one[key] is other[key] or one[key].equal(other[key]) for key in one)
    assert list(one._metadata.items()) == list(other._metadata.items())
    assert type(one) is type(other)


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_a_stripped_wrapper_is_what_the_plain_model_saves(torch, model, wrapped):
    wrap, prefix = WRAPPED[wrapped]
    assert_same_state_dict(strip_prefix(wrap(torch, model).state_dict(), prefix), model.state_dict())


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_an_unwrapped_wrapper_is_what_the_plain_model_saves(torch, model, wrapped):
    assert_same_state_dict(unwrap(WRAPPED[wrapped][0](torch, model).state_dict()), model.state_dict())


@pytest.mark.parametrize("wrapped", WRAPPED)
def test_an_added_prefix_is_what_the_wrapped_model_saves(torch, model, wrapped):
    wrap, prefix = WRAPPED[wrapped]
    assert_same_state_dict(add_prefix(model.state_dict(), prefix), wrap(torch, model).state_dict())


@pytest.mark.parametrize("name", [name for name in MODELS if name != "weight norm"])
@pytest.mark.parametrize("outer", [None, "compile", "DataParallel"])
@pytest.mark.parametrize("inner", [None, "compile", "DataParallel"])
def test_an_unwrapped_averaged_model_is_what_the_plain_model_saves(torch, name, outer, inner):
    model = MODELS[name](torch.nn)
    averaged = torch.optim.swa_utils.AveragedModel(WRAPPED[inner][0](torch, model) if inner else model)
    saved = (WRAPPED[outer][0](torch, averaged) if outer else averaged).state_dict()
    assert_same_state_dict(unwrap(saved), model.state_dict())


@pytest.mark.parametrize("at", ["features", "head", "both"])
@pytest.mark.parametrize("wrapped", ["DataParallel", "compile", "compile of DataParallel"])
def test_wrapped_parts_of_a_model_are_unwrapped_in_the_middle_of_keys(torch, at, wrapped):
    features, head = _nested(torch.nn), _conv_bn_relu(torch.nn)
    part = {"features": features, "act": torch.nn.ReLU(), "head": head}
    plain_model = torch.nn.Sequential(OrderedDict(part))
    for name in part:
        if at in (name, "both") and name != "act":
            part[name] = WRAPPED[wrapped][0](torch, part[name])
    wrapped_model = torch.nn.Sequential(OrderedDict(part))
    assert_same_state_dict(unwrap(wrapped_model.state_dict()), plain_model.state_dict())
    assert_same_state_dict(unwrap(torch.nn.DataParallel(wrapped_model).state_dict()), plain_model.state_dict())


@pytest.mark.parametrize("wrap", [compiled, lambda t, m: t.nn.DataParallel(m)], ids=["compile", "DataParallel"])
def test_a_model_whose_every_block_is_wrapped_is_unwrapped(torch, wrap):
    """As is done with the layers of a transformer: no key stays as it was, and yet the root is no wrapper."""
    nn = torch.nn

    class Model(nn.Module):
        _version = 5

        def __init__(self, wrap):
            super().__init__()
            self.act = nn.ReLU()
            self.blocks = nn.ModuleList([wrap(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))) for _ in range(3)])
            self.norm = wrap(nn.BatchNorm1d(2))

    plain_model = Model(lambda block: block).state_dict()
    wrapped = Model(lambda block: wrap(torch, block))
    wrapped.load_state_dict(dict(zip(wrapped.state_dict(), plain_model.values(), strict=True)))
    assert plain_model._metadata[""] == {"version": 5}
    assert_same_state_dict(unwrap(wrapped.state_dict()), plain_model)
    assert_same_state_dict(unwrap(wrap(torch, wrapped).state_dict()), plain_model)


@pytest.mark.parametrize(
    "names",
    [
        {"bn": "norm"},
        {"conv": "fc", "fc": "conv"},
        {"conv": "stem", "bn": "norm", "fc": "head"},
    ],
)
def test_metadata_follows_renamed_modules(torch, names):
    model = _conv_bn_relu(torch.nn)
    renamed = OrderedDict((names.get(name, name), child) for name, child in model.named_children())
    assert_same_state_dict(rename(model.state_dict(), names), torch.nn.Sequential(renamed).state_dict())


def test_metadata_follows_modules_into_a_new_one(torch):
    layers = {"stem": torch.nn.Conv2d(1, 2, 3), "norm": torch.nn.BatchNorm2d(2)}
    flat, deep = torch.nn.Sequential(OrderedDict(layers)), torch.nn.ModuleDict({"body": torch.nn.ModuleDict(layers)})
    head = torch.nn.Linear(2, 2)
    flat.head = deep.head = head
    done = rename(flat.state_dict(), {"stem": "body.stem", "norm": "body.norm"})
    # `body` was no module when this was saved, so nothing is known of its version
    expected = {module: version for module, version in deep.state_dict()._metadata.items() if module != "body"}
    assert list(done) == list(deep.state_dict())
    assert list(done._metadata.items()) == list(expected.items())


def test_metadata_of_what_is_dropped_goes_with_it(torch):
    done = drop(_conv_bn_relu(torch.nn).state_dict(), "bn")
    assert list(done._metadata) == ["", "conv", "relu", "fc"]


def test_a_stripped_file_loads_strictly_with_the_versions_that_were_saved(torch, tmp_path):
    model = _conv_bn_relu(torch.nn)
    torch.save({"epoch": 1, "state_dict": torch.nn.DataParallel(model).state_dict()}, tmp_path / "in.pth")
    ckptool.save(strip_prefix(ckptool.open(tmp_path / "in.pth")), tmp_path / "out.pth")
    saved = torch.load(tmp_path / "out.pth", weights_only=True)["state_dict"]
    assert_same_state_dict(saved, model.state_dict())
    assert saved._metadata["bn"] == {"version": 2}
    assert str(_conv_bn_relu(torch.nn).load_state_dict(saved)) == "<All keys matched successfully>"


FILE_PASSES = [p for p in PASSES if p.id != "map_location"]


@pytest.mark.parametrize("new", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("bare", [True, False], ids=["bare", "envelope"])
@pytest.mark.parametrize("pass_", FILE_PASSES)
def test_a_pass_gives_the_same_for_a_file_as_for_what_torch_loads_from_it(torch, tmp_path, pass_, bare, new):
    parts = OrderedDict(conv=torch.nn.Conv2d(1, 2, 3), relu=torch.nn.ReLU(), fc=torch.nn.Linear(2, 2))
    weights = torch.nn.DataParallel(torch.nn.Sequential(parts)).state_dict()
    torch.save(weights if bare else {"epoch": 1, "model": weights}, tmp_path / "in", _use_new_zipfile_serialization=new)
    ckptool.save(pass_(ckptool.open(tmp_path / "in")), tmp_path / "out.pth")
    saved = torch.load(tmp_path / "out.pth", weights_only=True)
    expected = pass_(torch.load(tmp_path / "in", weights_only=True))
    assert list(saved) == list(expected)
    if "model" in saved:
        assert saved.get("epoch") == expected.get("epoch")
        saved, expected = saved["model"], expected["model"]
    assert_same_state_dict(saved, expected)


def test_the_rows_of_ties_that_torch_made_are_still_ties_in_the_output(torch, tmp_path):
    torch.save(torch.nn.DataParallel(_tied(torch.nn)).state_dict(), tmp_path / "in.pth")
    done = strip_prefix(ckptool.open(tmp_path / "in.pth"))
    assert done.state_dict().ties() == [["embed.weight", "head.weight"]]
    ckptool.save(done, tmp_path / "out.pth")
    saved = torch.load(tmp_path / "out.pth", weights_only=True)
    assert saved["embed.weight"].data_ptr() == saved["head.weight"].data_ptr()
