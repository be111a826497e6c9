import itertools
import re
from collections import Counter

import pytest
from effort import calls
from hypothesis import given
from hypothesis import strategies as st

from ckptool.errors import RuleError
from ckptool.keys import (
    LONGEST_KEY,
    WRAPPERS,
    Pattern,
    Rename,
    add_prefix,
    closest,
    collapse,
    collapse_modules,
    common_prefix,
    drop_first,
    find_wrappers,
    first_component,
    leading,
    parse_rules,
    strip_prefix,
    unwrap,
)
from ckptool.keys.wrappers import _unwrapped_one_by_one

pytestmark = pytest.mark.same_without_torch

# Few letters, so that keys share components; no name of a wrapper, and no `n_averaged`.
COMPONENTS = st.sampled_from(["a", "b", "fc", "module_list", "mlp_module", "0", "1", "weight"])
KEYS = st.lists(COMPONENTS, min_size=1, max_size=5).map(".".join)
KEY_LISTS = st.lists(KEYS, min_size=1, max_size=25, unique=True)
#: Any text that could be a key in a file, hostile ones included.
WILD_KEYS = st.text(st.sampled_from("ab0.{}=\n_é"), min_size=1, max_size=12)


# ---------------------------------------------------------------------------------------------------- patterns


@pytest.mark.parametrize(
    ("pattern", "key", "expected"),
    [
        ("fc", "fc", True),
        ("fc", "fc.weight", True),
        ("fc", "fc2.weight", False),
        ("fc", "head.fc.weight", False),
        ("fc.", "fc.weight", True),
        ("fc.", "fc2.weight", False),
        ("fc.weight", "fc.weight", True),
        ("fc.weight", "fc", False),
        ("a.b", "axb", False),
        ("fc", "fc\n", False),
        ("layer{}.conv", "layer1.conv.weight", True),
        ("layer{}.conv", "layer.conv.weight", False),
        ("layer{}.conv", "layer1.0.conv.weight", False),
        ("layers.{}.attn", "layers.11.attn.q", True),
        ("layers.{}.attn", "layers.attn.q", False),
        ("{}_{}.w", "a_b.w", True),
        ("{...}.gamma", "bert.layer.0.gamma", True),
        ("{...}.gamma", "gamma", False),
        ("{...}.gamma", "bert.gamma2", False),
        ("a.{...}.w", "a.b.c.w", True),
        ("a.{...}.w", "a.w", False),
        ("", "anything.at.all", True),
        (".", "anything.at.all", True),
        (r"re:\.bias$", "fc.bias", True),
        (r"re:\.bias$", "fc.bias.x", False),
        ("re:bn", "layer1.bn2.weight", True),
        ("re:^bn", "layer1.bn2.weight", False),
    ],
)
def test_a_pattern_matches_whole_components_from_the_start(pattern, key, expected):
    assert Pattern.parse(pattern).matches(key) is expected


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("re:(", "not a valid regular expression"),
        ("re:a{99999999999999999999}", "not a valid regular expression"),
        ("re:", "empty"),
        ("layer{", "do not pair up"),
        ("layer}.x", "do not pair up"),
        ("{{}}", "do not pair up"),
        ("layer{n}.x", "'layer{n}.x' is not a hole"),
        ("layer{1}.x", "is not a hole"),
        ("{..}.x", "is not a hole"),
        ("{}{}.x", "touch"),
        ("{...}{}.x", "touch"),
        ("x{...}.y", "whole components"),
        ("x.{...}y", "whole components"),
    ],
)
def test_a_pattern_that_means_nothing_is_refused(pattern, says):
    with pytest.raises(RuleError, match=re.escape(says)) as e:
        Pattern.parse(pattern)
    assert e.value.where == ""
    assert not e.value.what.endswith(".")


def test_patterns_and_rules_are_values():
    assert Pattern.parse("a.{}") == Pattern.parse("a.{}")
    assert Pattern.parse("a.{}.{...}").holes == ("{}", "{...}")
    assert {Rename("a", "b"), Rename.parse("a=b")} == {Rename("a", "b")}
    assert str(Rename.parse("a=b")) == "a=b"


# ------------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("rule", "key", "expected"),
    [
        ("backbone=encoder", "backbone.conv.weight", "encoder.conv.weight"),
        ("backbone=encoder", "backbone2.conv.weight", None),
        ("backbone=encoder", "x.backbone.conv.weight", None),
        ("backbone=encoder.body", "backbone.w", "encoder.body.w"),
        ("backbone.=encoder.", "backbone.w", "encoder.w"),
        ("backbone.conv=c", "backbone.conv.w", "c.w"),
        (" backbone = encoder ", "backbone.w", "encoder.w"),
        ("backbone=", "backbone.conv.weight", "conv.weight"),
        ("=backbone", "conv.weight", "backbone.conv.weight"),
        ("=backbone.", "conv.weight", "backbone.conv.weight"),
        ("a=a", "a.w", "a.w"),
        ("=", "a.w", "a.w"),
        ("a=b=c", "a.w", "b=c.w"),
        ("a=b", "a", "b"),
        ("layer{}=blocks.{}", "layer12.conv.w", "blocks.12.conv.w"),
        ("layers.{}.attn=h.{}.attention", "layers.3.attn.q", "h.3.attention.q"),
        ("{}.{}={2}.{1}", "a.b.c", "b.a.c"),
        ("{}.{}.x={2}.y", "a.b.x.w", "b.y.w"),
        ("{}=s.{1}.{1}", "a.w", "s.a.a.w"),
        ("{}=", "whatever.conv.w", "conv.w"),
        ("{...}.gamma={...}.weight", "bert.norm.gamma", "bert.norm.weight"),
        ("{...}.gamma={...}.weight", "a.gamma.gamma", "a.gamma.weight"),
        ("{...}.at.{}={2}.{1}", "a.b.at.0.w", "0.a.b.w"),
        ("a=b", "a..w", "b..w"),
        (r"re:\.gamma$=.weight", "norm.gamma", "norm.weight"),
        (r"re:\.gamma$=.weight", "norm.gamma.x", None),
        (r"re:layer(\d+)\.(\d+)=blocks.\1.\2", "net.layer1.0.w", "net.blocks.1.0.w"),
        (r"re:bn=norm", "bn1.bn2.w", "norm1.norm2.w"),
        (r"re:(?=w$)=x", "a.w", "a.xw"),
        (r"re:^backbone\.=", "backbone.w", "w"),
        (r"re:(?P<n>\d)=<\g<n>>", "a.1", "a.<1>"),
    ],
)
def test_a_rename_replaces_the_matched_head_and_keeps_the_rest(rule, key, expected):
    assert Rename.parse(rule).apply(key) == expected


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("backbone", "has no '='"),
        ("", "has no '='"),
        ("re:backbone", "has no '='"),
        ("re:(=x", "not a valid regular expression"),
        (r"re:a=\1", "cannot replace"),
        (r"re:a=\g<name>", "cannot replace"),
        ("layer{}=blocks", "are not those of"),
        ("layer=blocks.{}", "are not those of"),
        ("={}", "are not those of"),
        ("{}.{...}={...}.{}", "are not those of"),
        ("{}.{}={1}.{}", "numbers some"),
        ("layer{}=blocks.{2}", "'layer{}', which has 1"),
        ("layer{}=blocks.{0}", "is not a hole"),
        ("layer{}=blocks.{n}", "is not a hole"),
        ("layer{}=blocks.{", "do not pair up"),
        ("a=b..c", "empty component"),
        ("a=.b", "empty component"),
        ("a=b..", "empty component"),
    ],
)
def test_a_rule_that_cannot_be_applied_is_refused_when_it_is_read(rule, says):
    with pytest.raises(RuleError, match=re.escape(says)):
        Rename.parse(rule)


def test_a_rule_without_an_equals_sign_is_told_the_form():
    with pytest.raises(RuleError) as e:
        Rename.parse("backbone")
    assert "--rename OLD=NEW" in str(e.value)


@pytest.mark.parametrize("rule", ["a.b=", r"re:.*=", "{...}="])
def test_a_rename_that_leaves_nothing_names_the_key(rule):
    with pytest.raises(RuleError, match=r"leaves nothing of the key 'a\.b'"):
        Rename.parse(rule).apply("a.b")


def test_a_regex_that_forgets_the_dot_is_refused_rather_than_giving_a_name_that_starts_with_one():
    with pytest.raises(RuleError, match=r"empty component in 'backbone\.w'.*'\.w'") as e:
        Rename.parse("re:backbone=").apply("backbone.w")
    assert Rename.parse("re:^backbone\\.=").apply("backbone.w") == "w"
    assert "'re:^backbone\\.='" in str(e.value)
    assert Rename.parse("re:a=b").apply("a..w") == "b..w"


def test_errors_do_not_send_control_characters_to_the_terminal():
    with pytest.raises(RuleError) as e:
        Rename.parse("re:.*=").apply("\x1b[31m")
    assert "\x1b" not in str(e.value)


def test_a_rules_file_has_one_rule_a_line_and_comments():
    text = "\ufeff# old names\r\n\r\n  layer{} = blocks.{}  \n#x=y\nre:\\.gamma$=.weight\n"
    assert parse_rules(text, "rules.txt") == [Rename("layer{}", "blocks.{}"), Rename(r"re:\.gamma$", ".weight")]
    assert parse_rules("", "rules.txt") == []


def test_an_error_in_a_rules_file_names_the_line():
    with pytest.raises(RuleError) as e:
        parse_rules("a=b\n\nnonsense\n", "rules.txt")
    assert e.value.where == "rules.txt line 3"
    assert e.value.hint is not None
    assert str(e.value).startswith("rules.txt line 3: the rule 'nonsense' has no '='.")


@given(KEYS, KEYS, KEYS)
def test_renaming_a_prefix_and_back_gives_the_key(key, old, new):
    there = Rename(old, new).apply(f"{old}.{key}")
    assert there == f"{new}.{key}"
    assert Rename(new, old).apply(there) == f"{old}.{key}"


@given(KEYS, KEYS)
def test_removing_and_adding_by_rename_is_what_the_prefix_functions_do(key, prefix):
    assert Rename("", prefix).apply(key) == add_prefix(key, prefix)
    if key != prefix:
        assert Rename(prefix, "").apply(key) == strip_prefix(key, prefix)


RULES = st.lists(st.sampled_from([*"a.{}1=", "{...}", "{}", "{1}", "{2}"]), max_size=10).map("".join)


@given(RULES, WILD_KEYS)
def test_any_rule_is_either_refused_or_gives_a_name(rule, key):
    try:
        renamed = Rename.parse(rule).apply(key)
    except RuleError:
        return
    assert renamed is None or renamed


@pytest.mark.timeout(60)  # a hundredth of a second, or for ever
def test_a_made_up_key_does_not_take_long_to_match():
    assert not Pattern.parse("{...}.x").matches("a." * 100_000 + "b")
    assert not Pattern.parse("{}_x").matches("_" * 100_000)


# ---------------------------------------------------------------------------------------------------- prefixes


@pytest.mark.parametrize(
    ("key", "prefix", "expected"),
    [
        ("module.x", "module.", "x"),
        ("module.x", "module", "x"),
        ("module.x", "mod", None),
        ("module", "module", None),
        ("module", "module.", None),
        ("module.", "module", None),
        ("module.mlp_module.weight", "module.", "mlp_module.weight"),
        ("module.module.w", "module", "module.w"),
        ("module.model.w", "module.model", "w"),
        ("module.models.w", "module.model", None),
        ("x.module.w", "module", None),
        ("x.w", "", "x.w"),
        ("x.w", ".", "x.w"),
    ],
)
def test_stripping_takes_whole_components_from_the_start_only(key, prefix, expected):
    assert strip_prefix(key, prefix) == expected


@given(WILD_KEYS, WILD_KEYS | st.just(""))
def test_stripping_what_was_added_gives_the_key(key, prefix):
    assert strip_prefix(add_prefix(key, prefix), prefix) == key


@pytest.mark.parametrize("prefix", ["module", "module."])
def test_a_prefix_is_the_same_with_and_without_its_dot(prefix):
    assert add_prefix("w", prefix) == "module.w"


@pytest.mark.parametrize(("key", "first", "rest"), [("a.b.c", "a", "b.c"), ("a", "a", None), ("a.", "a", None)])
def test_the_first_component_can_be_told_and_dropped(key, first, rest):
    assert first_component(key) == first
    assert drop_first(key) == rest


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([], ""),
        (["a"], ""),
        (["a.b.c"], "a.b"),
        (["module.a", "module.b"], "module"),
        (["module.net.a", "module.net.b.c"], "module.net"),
        (["module.ab", "module.ac"], "module"),
        (["a.b", "a.b.c"], "a"),
        (["a", "a.b"], ""),
        (["a.x", "b.x"], ""),
        (["modul.x", "module.x"], ""),
        (["a.b.x", "a-c.x", "a.b.y"], ""),
    ],
)
def test_the_common_prefix_is_whole_components_and_never_a_whole_key(keys, expected):
    assert common_prefix(keys) == expected


@given(KEY_LISTS)
def test_every_key_has_the_common_prefix_and_what_is_left_has_none(keys):
    rest = [strip_prefix(key, common_prefix(keys)) for key in keys]
    assert None not in rest
    assert common_prefix(rest) == ""


def test_leading_components_come_with_counts_most_frequent_first():
    assert leading(["a.x", "module.a", "module.b", "b"]) == [("module", 2), ("a", 1), ("b", 1)]


# ---------------------------------------------------------------------------------------------------- wrappers


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        (["module.a.w", "module.b.w"], ["a.w", "b.w"]),
        (["_orig_mod.module.w"], ["w"]),
        (["module._orig_mod.w"], ["w"]),
        (["a.w", "b._orig_mod.weight"], ["a.w", "b.weight"]),
        (["module.module.w"], ["w"]),
        (["module._orig_mod.module._fsdp_wrapped_module.w"], ["w"]),
        (["_fsdp_wrapped_module.a._fsdp_wrapped_module._checkpoint_wrapped_module.w"], ["a.w"]),
        (["_forward_module.model.w", "_forward_module.head.w"], ["model.w", "head.w"]),
        (["_module.w"], ["w"]),
        (["cnn.features.module.0.w", "cnn.fc.w"], ["cnn.features.0.w", "cnn.fc.w"]),
        # names that only look like a wrapper
        (["module.mlp_module.weight"], ["mlp_module.weight"]),
        (["encoder.module_list.0.w", "encoder.module_list.1.w"], None),
        (["model.module.x", "model.other.y"], None),
        (["module.w", "fc.w"], None),
        (["module.w", "_module.w"], None),
        (["module.w", "n_averaged.x"], None),
        (["a._orig_mod.module.x", "a.other.y"], ["a.module.x", "a.other.y"]),
        # the last component is the name of a tensor
        (["module"], None),
        (["_orig_mod", "a._orig_mod", "b.module"], None),
        (["module.module"], ["module"]),
        (["module", "module.w"], None),
        (["features.module", "features.module.w"], None),
        # the counter of AveragedModel
        (["n_averaged", "module.a.w", "module.b.w"], ["n_averaged", "a.w", "b.w"]),
        (["n_averaged", "module.module.a.w"], ["n_averaged", "a.w"]),
        (["_orig_mod.n_averaged", "_orig_mod.module.w"], ["n_averaged", "w"]),
        (["module.n_averaged", "module.module.w"], ["n_averaged", "w"]),
        (["n_averaged"], None),
        ([], None),
        (["", "..", "module..w"], None),
    ],
)
def test_wrappers_go_and_attributes_stay(keys, expected):
    assert unwrap(keys) == dict(zip(keys, keys if expected is None else expected, strict=True))


def test_finding_wrappers_counts_the_keys_that_would_change():
    keys = ["module.module.a.w", "module.module.b._orig_mod.w", "module.module.b._orig_mod.module"]
    assert find_wrappers(keys) == {"module.": 3, "_orig_mod.": 2}
    assert list(find_wrappers(["_orig_mod.a.w", "_orig_mod.b.module.w"])) == ["_orig_mod.", "module."]
    assert find_wrappers(["encoder.module_list.0.w", "model.module.x", "model.other.y"]) == {}


def test_two_keys_that_unwrap_to_one_name_are_both_reported():
    assert unwrap(["b._orig_mod.w", "b.w"]) == {"b._orig_mod.w": "b.w", "b.w": "b.w"}


@given(KEY_LISTS, st.data())
def test_a_wrapper_put_around_any_module_is_removed(keys, data):
    parents = {""} | {key[:i] for key in keys for i, c in enumerate(key) if c == "."}
    component = st.sampled_from([w.component for w in WRAPPERS])
    around = st.lists(component, max_size=3)
    wrapped = data.draw(st.fixed_dictionaries(dict.fromkeys(sorted(parents), around)))

    def insert(key):
        parts = key.split(".")
        return ".".join(c for i, part in enumerate(parts) for c in [*wrapped[".".join(parts[:i])], part])

    named = {insert(key): key for key in keys}
    assert unwrap(named) == named
    assert set(find_wrappers(named)) == {
        f"{c}."
        for key in keys
        for parent in parents
        if f".{key}".startswith(f".{parent}." if parent else ".")
        for c in wrapped[parent]
    }


@given(
    st.lists(
        st.lists(
            st.sampled_from(["a", "w", "module", "_orig_mod", "_module", "n_averaged", ""]), min_size=1, max_size=5
        ).map(".".join),
        unique=True,
        max_size=12,
    )
)
def test_unwrapping_twice_changes_nothing_more(keys):
    once = unwrap(keys)
    assert list(once) == keys
    assert all(old == new for old, new in unwrap(once.values()).items())
    assert [k.rpartition(".")[2] for k in once] == [k.rpartition(".")[2] for k in once.values()]
    assert bool(find_wrappers(keys)) is any(old != new for old, new in once.items())


@given(
    st.lists(
        st.text(st.sampled_from("a01.\n"), max_size=4).flatmap(
            lambda end: st.sampled_from(["module.", "_orig_mod.module.", "module.module.", ""]).map(
                lambda head: f"{head}x{end}"
            )
        ),
        min_size=1,
        unique=True,
        max_size=4,
    )
)
def test_wrappers_around_all_keys_are_removed_as_they_are_from_each(keys):
    each = list(_unwrapped_one_by_one(keys))
    assert unwrap(keys) == {key: new for key, new, _ in each}
    assert find_wrappers(keys) == Counter(f"{component}." for _, _, removed in each for component in removed)


def test_unwrapping_does_not_recurse():
    deep = "module." * 20_000 + "w"
    assert unwrap([deep]) == {deep: "w"}


@pytest.mark.timeout(300)  # a second; what is quadratic without calling anything takes minutes
def test_unwrapping_and_collapsing_fifty_thousand_keys_costs_five_times_as_much_as_ten_thousand():
    def cost(layers):
        keys = [f"module.a.b.module.layers.{i}.experts.{j}._orig_mod.w" for i in range(layers) for j in range(100)]
        return calls(lambda: (unwrap(keys), found.append(collapse((key, 0) for key in keys))))

    found = []
    assert cost(500) < 6 * cost(100)
    assert [one.pattern for one in found[0]] == ["module.a.b.module.layers.{0..499}.experts.{0..99}._orig_mod.w"]


# -------------------------------------------------------------------------------------------------- for people


def lines(*keys):
    return [c.pattern for c in collapse((key, None) for key in keys)]


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ([], []),
        (["a.w"], ["a.w"]),
        (["layers.0.w"], ["layers.0.w"]),
        ([f"layers.{i}.w" for i in range(32)], ["layers.{0..31}.w"]),
        (["a.0", "a.1"], ["a.{0,1}"]),
        ([f"a.{i}.w" for i in (7, 0, 6, 2, 5)], ["a.{0,2,5..7}.w"]),
        (["a.0.w", "a.0.b", "a.1.w", "a.1.b"], ["a.{0,1}.w", "a.{0,1}.b"]),
        (
            [f"layers.{i}.experts.{j}.w" for i in range(4) for j in range(8)],
            ["layers.{0..3}.experts.{0..7}.w"],
        ),
        (
            [f"l.{i}.e.{j}.w" for i in range(4) for j in range(2 if i == 1 else 3)],
            ["l.{0,2,3}.e.{0..2}.w", "l.1.e.{0,1}.w"],
        ),
        (["a.0.0", "a.1.1"], ["a.0.0", "a.1.1"]),
        (["layer1.w", "layer2.w"], ["layer1.w", "layer2.w"]),
        (["a.7.w", "a.007.w", "a.8.w", "a.²"], ["a.{7,8}.w", "a.007.w", "a.²"]),
        (["a.1.x", "b.1.x"], ["a.1.x", "b.1.x"]),
        (["a..0", "a...0"], ["a..0", "a...0"]),
    ],
)
def test_numbered_siblings_fold(keys, expected):
    assert lines(*keys) == expected


def test_keys_with_different_signatures_do_not_fold_together():
    items = [("l.0.w", ("F32", (4, 4))), ("l.1.w", ("F32", (4, 4))), ("l.2.w", ("F32", (4, 8))), ("x", None)]
    found = collapse(items)
    assert [(c.pattern, c.signature) for c in found] == [
        ("l.{0,1}.w", ("F32", (4, 4))),
        ("l.2.w", ("F32", (4, 8))),
        ("x", None),
    ]
    assert found[0].keys == ("l.0.w", "l.1.w")


@given(st.lists(st.tuples(KEYS | WILD_KEYS, st.sampled_from("xy")), max_size=30, unique_by=lambda item: item[0]))
def test_every_key_is_in_exactly_one_line_of_its_own_signature(items):
    found = collapse(items)
    signatures = dict(items)
    order = list(signatures)
    assert sorted(key for c in found for key in c.keys) == sorted(signatures)
    assert all(signatures[key] == c.signature for c in found for key in c.keys)
    assert [c.keys[0] for c in found] == sorted((c.keys[0] for c in found), key=order.index)
    assert all(list(c.keys) == sorted(c.keys, key=order.index) for c in found)
    assert all(c.pattern == c.keys[0] for c in found if len(c.keys) == 1)


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), min_size=1, unique=True))
def test_a_line_stands_for_exactly_its_keys(points):
    def spelled(pattern):
        names = [""]
        for part in re.split(r"(\{[^}]*\})", pattern):
            choices = [part]
            if part.startswith("{"):
                ends = [run.split("..") for run in part[1:-1].split(",")]
                choices = [str(n) for end in ends for n in range(int(end[0]), int(end[-1]) + 1)]
            names = [name + choice for name in names for choice in choices]
        return names

    for c in collapse((f"a.{x}.b.{y}.{z}.w", None) for x, y, z in points):
        assert sorted(spelled(c.pattern)) == sorted(c.keys)


@given(st.lists(KEYS | WILD_KEYS | st.text("01.\n\0\\'\"", max_size=30), max_size=6, unique=True))
def test_keys_fold_together_as_if_each_were_taken_apart_by_itself(keys):
    number = re.compile(r"(?<![^.])(0|[1-9][0-9]{0,8})(?![^.])")
    apart = {key: tuple(number.split(key, 8)[::2]) for key in keys}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ckptool.keys.listing._AT_ONCE", 2)
        together = {key: one.keys for one in collapse((key, None) for key in keys) for key in one.keys}
    for one, other in itertools.combinations(keys, 2):
        if together[one] == together[other]:
            assert apart[one] == apart[other]
        elif len(apart[one]) == 2:  # with one number, all that differ in it alone are folded
            assert apart[one] != apart[other]


TENSORS_OF_MODULES = st.lists(
    st.tuples(
        st.sampled_from(["a.{}", "a.{}.b.{}", "{}", "a.x{}", "", "a..{}", "{}."]), st.integers(0, 2), st.integers(0, 1)
    ),
    unique=True,
)


@given(TENSORS_OF_MODULES, st.sets(st.sampled_from(["w", "b", "0", "1", "w.0", ".w", ".0", ""]), min_size=1), st.data())
def test_modules_fold_as_if_the_tensors_of_each_were_looked_at_by_itself(modules, leaves, data):
    keys = dict.fromkeys(
        f"{pattern.format(x, y)}.{leaf}" if pattern else leaf for pattern, x, y in modules for leaf in sorted(leaves)
    )
    kept = [key for key in keys if data.draw(st.integers(0, 9))]
    kinds = [data.draw(st.sampled_from("kkkkkkkkl")) for _ in kept]
    tensors = {}
    for key, kind in zip(kept, kinds, strict=True):
        module, _, leaf = key.rpartition(".")
        tensors.setdefault(module, []).append((leaf if module else key, kind))
    by_module = [
        (one.pattern, len(one.keys), one.signature)
        for one in collapse((module, tuple(held)) for module, held in tensors.items())
    ]
    folded = collapse_modules(kept, kinds)
    assert [(one.pattern, one.count, one.leaves) for one in folded] == by_module
    assert sorted(key for one in folded for key in one.keys) == sorted(kept)
    for one in folded:
        if one.count == 1:
            assert [f"{one.pattern}.{leaf}" if one.pattern else leaf for leaf, _ in one.leaves] == list(one.keys)
    assert [len(one.keys) for one in folded] == [one.count * len(one.leaves) for one in folded]


@pytest.mark.parametrize("odd", [".".join("123456789"), "x\n"])
def test_keys_fold_with_those_that_are_taken_apart_later(monkeypatch, odd):
    monkeypatch.setattr("ckptool.keys.listing._AT_ONCE", 2)
    assert lines(odd, *(f"layers.{n}.w" for n in range(6)))[1:] == ["layers.{0..5}.w"]


def test_a_name_made_of_numbers_does_not_take_long_to_collapse():
    keys = [".".join(str((i * j) % 7) for j in range(2000)) for i in range(100)]
    assert calls(lambda: collapse((key, None) for key in keys)) < 10 * 100 * 2000


@pytest.mark.parametrize(
    ("name", "expected"),
    [("backbon", ["backbone"]), ("layers.0.atn.weight", ["layers.0.attn.weight"]), ("zzz", [])],
)
def test_did_you_mean(name, expected):
    names = ["backbone", "head", "layers.0.attn.weight", *(f"other.{i}" for i in range(5000))]
    assert closest(name, names) == expected


def test_did_you_mean_finds_the_right_one_among_very_many_and_gives_at_most_n():
    names = [f"layers.{i}.attn.{x}.weight" for i in range(2000) for x in "qkv"]
    assert closest("layers.1999.attn.k.weigth", names, 1) == ["layers.1999.attn.k.weight"]
    assert len(closest("layers.1999.attn.k.weigth", names)) == 3


@pytest.mark.timeout(60)  # half a second, or hours
def test_did_you_mean_is_not_slow_for_names_made_to_be_slow():
    closest("a" * 10**6, ["a" * (200 - i % 7) + "b" * (i % 7) for i in range(1000)] + ["a" * 10**6] * 10)
    closest("a" * 199, ["a" * (199 - i % 7) + "b" * (i % 7) for i in range(1000)])


def test_a_star_at_the_end_means_all_below_and_is_refused_elsewhere():
    assert Pattern.parse("fc.*").matches("fc.weight")
    assert not Pattern.parse("fc.*").matches("fc2.weight")
    assert Pattern.parse("*").matches("anything.at.all")
    for text in ("fc*", "*.weight", "a.*.b"):
        with pytest.raises(RuleError, match="is not at its end"):
            Pattern.parse(text)
    with pytest.raises(RuleError, match="puts a '\\*' into keys"):
        Rename.parse("a.*=b.*")


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        (r"re:^(.*)$=\1\1", "x" * LONGEST_KEY),
        (r"re:(?=(.*))=" + r"\1" * 2000, "x" * 4096),
        ("re:()=" + "y" * 4000, "x" * 4096),
    ],
)
def test_an_expression_does_not_fill_the_memory(rule, key):
    with pytest.raises(RuleError, match="makes keys too long"):
        Rename.parse(rule).apply(key)


def test_a_new_name_has_limits():
    with pytest.raises(RuleError, match="has more than 4,096 characters"):
        Rename("re:a", "b" * 4097)
    with pytest.raises(RuleError, match="has more than 100 holes"):
        Rename("{}", ".".join(["{1}"] * 101))
    assert Rename("{}", ".".join(["{1}"] * 100)).apply("a") == ".".join("a" * 100)


def test_a_range_is_no_hole_however_long_it_is():
    for text in ("a.{0..999999}", "a.{0..9}", "{0..9}"):
        with pytest.raises(RuleError, match="is not a hole"):
            Pattern.parse(text)


def test_a_rules_file_has_so_many_rules():
    lines = "".join(f"a{n}=b{n}\n" for n in range(10_000))
    assert len(parse_rules(lines, "rules.txt")) == 10_000
    with pytest.raises(RuleError, match="has more than 10,000 rules"):
        parse_rules(lines + "a=b\n", "rules.txt")
