"""Lists that two sides count from one end or from opposite ends."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sides import found, pairing, signature, wanted

from ckptool.model_code.signature import Facts, Flow
from ckptool.porting.matching.counting import counted, direction, turned
from ckptool.porting.port import port

Shapes = dict[str, tuple[int, ...]]
NORM, STATISTICS = ("weight", "bias"), ("weight", "bias", "running_mean", "running_var")


@given(st.lists(st.integers(0, 99), min_size=3, max_size=9, unique=True), st.data())
def test_members_that_lie_in_order_are_counted_so_and_one_that_does_not_excludes_it(
    numbers: list[int], data: st.DataObject
) -> None:
    numbers.sort()
    at = data.draw(st.integers(0, len(numbers) - 1))
    rest = numbers[:at] + numbers[at + 1 :]
    assert counted(rest, rest, [(numbers[at], numbers[at])]) == 1
    last = len(numbers) - 1 - at
    other = [n for n in numbers if n != numbers[last]]
    assert counted(rest, other, [(numbers[at], numbers[last])]) == (1 if at == last else -1)


def test_what_is_known_may_exclude_both_ends() -> None:
    assert counted([2, 3], [2, 3], [(0, 1), (1, 0)]) == 0
    assert counted([1, 2, 3], [0, 2, 3], [(0, 1)]) == 0
    assert counted([5], [5, 6], [(1, 1), (2, 2), (3, 1)]) == 0
    assert counted([5], [5, 6], [(1, 1)]) == 1
    assert counted([5], [5, 6], [(1, 3), (2, 2)]) == -1
    assert direction([]) == 0
    assert direction([((1, 5), (2, 4)), ((1, 5), (3, 6))]) == 0


@given(*[st.tuples(st.integers(0, 3), st.integers(0, 3))] * 2)
def test_two_members_show_one_way_of_counting_whichever_comes_first(a: tuple[int, int], b: tuple[int, int]) -> None:
    assert direction([(a, b)]) == direction([(b, a)])
    assert direction([(a, b)]) < 1 or (a < b) == (a[1] < b[1])


def test_contents_show_that_a_list_is_turned_only_where_they_are_not_the_same_both_ways() -> None:
    assert turned({0: "a", 1: "b", 2: "b"}, {5: "b", 6: "b", 7: "a"})
    assert not turned({0: "a", 1: "b", 2: "a"}, {0: "a", 1: "b", 2: "a"})
    assert not turned({0: "a", 1: "b", 2: "c"}, {0: "c", 1: "a", 2: "b"})


def test_lists_within_a_list_are_counted_each_on_its_own() -> None:
    """The coarsest level has the most steps; within a level, the steps come in one order on both sides."""
    source: Shapes = {"base.weight": (8, 3, 1, 1)}
    target: Shapes = {"start.weight": (8, 3, 1, 1)}
    for n, depth in enumerate([3, 2, 1, 1]):
        for i in range(depth):
            source[f"stages.{n}.rows.{i}.mix.weight"] = (8, 8, 3, 3)
            source[f"stages.{n}.rows.{i}.norm.weight"] = (8,)
    for n, depth in ((2, 1), (3, 1), (4, 2), (5, 3)):
        target |= {f"level{n}.convs.{i}.weight": (8, 8, 3, 3) for i in range(depth)}
        target |= {f"level{n}.norms.{i}.weight": (8,) for i in range(depth)}
    used = ["start.weight"] + [
        f"level{n}.{kind}.{i}.weight"
        for n, depth in ((5, 3), (4, 2), (3, 1), (2, 1))
        for i in range(depth)
        for kind in ("convs", "norms")
    ]
    mapping = port(signature(source), wanted(target, used=used))
    for n in (2, 3, 4, 5):
        assert pairing(mapping)[f"level{n}.convs.0.weight"] == f"stages.{5 - n}.rows.0.mix.weight"
        assert pairing(mapping)[f"level{n}.norms.0.weight"] == f"stages.{5 - n}.rows.0.norm.weight"
    assert pairing(mapping)["level5.convs.2.weight"] == "stages.0.rows.2.mix.weight"


def test_equal_names_in_a_list_that_is_counted_from_the_other_end_are_not_equal() -> None:
    def side(order: list[int]) -> Shapes:
        return {
            f"up.{place}.{name}.weight": (4, 6, 3, 3) if name == "a" and n == 0 else (4, 4, 3, 3)
            for place, n in enumerate(order)
            for name in ("a", "b", "c")
        }

    source, target = side([0, 1, 2]), side([2, 1, 0])
    mapping = port(signature(source), wanted(target, used=target))
    for key in target:
        place, inner = key.removeprefix("up.").split(".", 1)
        assert pairing(mapping)[key] == f"up.{2 - int(place)}.{inner}"


def test_a_shorter_list_beside_layers_of_their_own_does_not_keep_the_numbers_of_a_longer_one() -> None:
    """`layers.1` of three is the only one of a list that stands between a first and a last layer."""
    body: Shapes = {f"body.{n}.{part}.weight": (8, 9 + n, 3) for n in range(3) for part in "ab"}
    source: Shapes = {
        f"heads.{h}.layers.{n}.weight": (4 if n == 2 else 8, 8) for h in range(2) for n in range(3)
    } | body
    target: Shapes = {**body}
    for h in range(2):
        target |= {
            f"heads.{h}.enter.weight": (8, 8),
            f"heads.{h}.leave.weight": (4, 8),
            f"heads.{h}.layers.0.weight": (8, 8),
        }
    used = [*body, *(f"heads.{h}.{name}.weight" for h in range(2) for name in ("enter", "layers.0", "leave"))]
    for model in (wanted(target), wanted(target, used=used)):
        mapping = port(signature(source, ordered=False), model)
        assert pairing(mapping)["heads.1.enter.weight"] == "heads.1.layers.0.weight"
        assert pairing(mapping)["heads.1.layers.0.weight"] == "heads.1.layers.1.weight"
    kept = port(
        signature({**source, "extra.weight": (5, 5)}), wanted({k: v for k, v in source.items() if ".2." not in k})
    )
    assert pairing(kept)["heads.1.layers.0.weight"] == "heads.1.layers.0.weight"


def test_a_list_of_sizes_that_all_differ_is_found_whatever_it_is_called() -> None:
    sizes = (6, 12, 18, 24)
    body: Shapes = {f"body.stages.{n}.conv.weight": (size, 3, 1, 1) for n, size in enumerate(sizes)}
    source: Shapes = {**body, **{f"body.norm{n}.weight": (size,) for n, size in enumerate(sizes)}}
    target: Shapes = {**body, **{f"after.level{n + 1}.weight": (size,) for n, size in enumerate(sizes)}}
    target["new.weight"] = (7, 24)
    mapping = port(signature(source, ordered=False), wanted(target))
    for n in range(4):
        assert pairing(mapping)[f"after.level{n + 1}.weight"] == f"body.norm{n}.weight"
    two = {key: shape for key, shape in source.items() if "norm2" not in key and "norm3" not in key}
    fewer = {key: shape for key, shape in target.items() if "level3" not in key and "level4" not in key}
    assert "after.level1.weight" not in pairing(port(signature(two, ordered=False), wanted(fewer)))


def test_places_in_rows_of_layers_of_their_own_are_no_numbers_of_one_kind() -> None:
    """`down.4` and `up.2` are places; that the file has norms 4 and 2 of that size says nothing of which is which."""
    sizes = [(8, 3), (16, 8), (32, 16), (16, 32), (8, 16)]
    source: Shapes = {}
    for n, (width, before) in enumerate(sizes, 1):
        source |= {f"conv{n}.weight": (width, before, 3, 3), f"in{n}.weight": (width,), f"in{n}.bias": (width,)}
    target: Shapes = {}
    for row, members in (("down", range(3)), ("up", range(3, 5))):
        for place, n in enumerate(members):
            width, before = sizes[n]
            first = place * 3 if row == "down" else place * 4 + 1
            target[f"{row}.{first}.weight"] = (width, before, 3, 3)
            target |= {f"{row}.{first + 1}.{leaf}": (width,) for leaf in ("weight", "bias")}
    assert {"down.4.weight", "up.2.weight"} <= set(target)
    mapping = port(signature(source), wanted(target, used=target))
    assert pairing(mapping) == dict(zip(target, source, strict=True))


def test_a_list_of_blocks_is_not_counted_as_the_stages_that_the_other_side_has_them_in() -> None:
    """`res.2` is `layer2.0` and `res.3` is `layer3.0`; `res.1` is `layer1.1` all the same."""
    widths = (6, 6, 6, 12, 24)
    names = [f"layer{stage}.{n}" for stage, depth in ((1, 2), (2, 1), (3, 1)) for n in range(depth)]

    def block(parts: tuple[str, str, str, str], wide: int, width: int) -> Shapes:
        first, norm, second, after = parts
        found: Shapes = {}
        for n, (out, taken) in enumerate(((width, wide), (width, width)), 1):
            found |= {f"{first.format(n)}.weight": (out, taken, 1, 3, 3), f"{norm.format(n)}.weight": (out,)}
            found |= {f"{norm.format(n)}.bias": (out,), f"{second.format(n)}.weight": (out, out, 3, 1, 1)}
            found |= {f"{after.format(n)}.weight": (out,), f"{after.format(n)}.bias": (out,)}
        return found

    source: Shapes = {"stem.0.weight": (6, 3, 1, 7, 7)}
    target: Shapes = {"stem.conv.weight": (6, 3, 1, 7, 7)}
    for at, name in enumerate(names):
        theirs = tuple(f"{name}.conv{{}}.{inner}" for inner in ("0.0", "0.1", "0.3", "1"))
        own = tuple(f"res.{at}.{inner}" for inner in ("st{}.space", "st{}.bn", "st{}.time", "norm{}"))
        source |= block((theirs[0], theirs[1], theirs[2], theirs[3]), widths[at], widths[at + 1])
        target |= block((own[0], own[1], own[2], own[3]), widths[at], widths[at + 1])
    mapping = port(signature(source), wanted(target, used=target))
    assert list(pairing(mapping).items()) == list(zip(target, source, strict=True))
    assert not mapping.having("guessed")


def test_a_list_that_runs_and_fits_only_from_its_end_is_paired_from_its_end_as_a_whole() -> None:
    """Layers of one size would also fit in their own order; then neighbours would change places."""
    source: Shapes = {}
    target: Shapes = {}
    for n in range(6):
        width, other = (14, 20) if n % 2 == 0 else (20, 14)
        source |= {f"flows.{n}.net.0.weight": (width, 4), f"flows.{n}.net.2.weight": (8, width)}
        target |= {f"steps.{n}.fc1.weight": (other, 4), f"steps.{n}.fc2.weight": (8, other)}
    run = [f"steps.{n}.{layer}.weight" for n in reversed(range(6)) for layer in ("fc1", "fc2")]
    made = wanted(target, used=run)
    flows = {key: Facts(Flow(n, (1 << n) - 1)) for n, key in enumerate(run)}
    made = replace(made, entries={key: replace(e, facts=flows[key]) for key, e in made.entries.items()})
    mapping = port(signature(source), made)
    for n in range(6):
        assert pairing(mapping)[f"steps.{n}.fc1.weight"] == f"flows.{5 - n}.net.0.weight"
        assert pairing(mapping)[f"steps.{n}.fc2.weight"] == f"flows.{5 - n}.net.2.weight"
    assert not mapping.having("guessed")


@pytest.mark.parametrize("words", [("One", "Two", "Three"), ("One", "Two", "Thr")])
def test_numbers_in_words_are_numbers_also_if_they_are_cut(words: tuple[str, ...]) -> None:
    source = {f"netScore{word}.weight": (1, 8, 1, 1) for word in words}
    target = {f"score_dsn{number}.weight": (1, 8, 1, 1) for number in (3, 2, 1)}
    mapping = port(signature(source), wanted(target))
    own = {f"score_dsn{number}.weight": f"netScore{word}.weight" for number, word in enumerate(words, 1)}
    assert pairing(mapping) == own


@pytest.mark.parametrize("turned", [True, False])
def test_layers_of_equal_sizes_are_counted_as_the_two_other_series_in_their_list(turned: bool) -> None:
    """A decoder whose levels go from 6 down to 3, or up, in code that counts its steps from 0."""
    ours: Shapes = {}
    own: Shapes = {}
    for step in range(4):
        level = 6 - step if turned else step + 3
        ours |= {f"predict{level}.weight": (2, 10 + step, 3, 3), f"deconv{level}.weight": (10 + step, 4, 4, 4)}
        ours[f"flow{level}_up.weight"] = (2, 2, 4, 4)
        own |= {f"refine.{step}.flow.weight": (2, 10 + step, 3, 3), f"refine.{step}.wider.weight": (2, 2, 4, 4)}
        own[f"refine.{step}.features.weight"] = (10 + step, 4, 4, 4)
    made = pairing(port(signature(ours), wanted(own)))
    expected = [f"flow{6 - step if turned else step + 3}_up.weight" for step in range(4)]
    assert [made[f"refine.{step}.wider.weight"] for step in range(4)] == expected


def test_one_counter_for_all_layers_counts_in_the_order_of_use_through_several_lists() -> None:
    """As Keras counts: the norms of the way down come before those of the way up, whatever their numbers there."""
    source = {f"batch_normalization_{n}.gamma": (8,) for n in range(1, 7)}
    used = [f"{side}.{block}.bn{n}.weight" for side, block in (("down", 1), ("down", 2), ("up", 0)) for n in (1, 2)]
    mapping = port(signature(source, ordered=False), wanted(dict.fromkeys(sorted(used), (8,)), used=used))
    assert [pairing(mapping)[key] for key in used] == [f"batch_normalization_{n}.gamma" for n in range(1, 7)]
    assert {entry.status for entry in mapping.entries} == {"mapped"}


def test_the_first_layer_of_a_kind_which_keras_leaves_without_a_number_is_the_first() -> None:
    source: Shapes = {}
    for name in ("conv2d_transpose", "conv2d_transpose_1", "conv2d_transpose_2"):
        source |= {f"{name}.kernel": (3, 3, 8, 8), f"{name}.bias": (8,)}
    target: Shapes = {}
    for n in range(3):
        target |= {f"up.{n}.deconv.weight": (8, 8, 3, 3), f"up.{n}.deconv.bias": (8,)}
    mapping = port(signature(source, ordered=False), wanted(target, used=target))
    assert {entry.status for entry in mapping.entries} == {"mapped"}
    assert pairing(mapping)["up.0.deconv.bias"] == "conv2d_transpose.bias"


def test_norms_that_a_file_counts_through_go_by_use_also_where_the_model_has_the_same_numbers() -> None:
    """A decoder runs after its encoder, so what is `bn2` in the encoder is number 1, and `bn1` in the decoder 2."""
    sizes = {"encoder.bn1": 4, "encoder.bn2": 8, "decoder.bn1": 8, "decoder.bn2": 4}
    leaves = {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"}
    own = {f"{name}.{leaf}": (size,) for name, size in sizes.items() for leaf in leaves}
    names = ["batch_normalization", *(f"batch_normalization_{n}" for n in (1, 2, 3))]
    source = {
        f"{name}.{leaf}": (size,) for name, size in zip(names, sizes.values(), strict=True) for leaf in leaves.values()
    }
    kernels = {"conv.kernel": (3, 3, 4, 8)}
    target = wanted({"encoder.conv.weight": (8, 4, 3, 3), **own}, used=["encoder.conv.weight", *own])
    mapping = port(signature({**kernels, **source}), target)
    assert {entry.status for entry in mapping.entries} == {"mapped"}
    assert pairing(mapping)["encoder.bn2.weight"] == "batch_normalization_1.gamma"
    assert pairing(mapping)["decoder.bn1.running_var"] == "batch_normalization_2.moving_variance"


@pytest.mark.parametrize("first", ["1", "first", "one"])
def test_a_list_whose_first_number_is_a_word_is_counted_as_one_of_numbers(first: str) -> None:
    source: Shapes = {"stem.0.weight": (8, 7), **{f"layer{n}.weight": (8, 8) for n in (1, 2, 3)}, "out.weight": (3, 8)}
    target: Shapes = {"blocks.0.weight": (8, 7), **{f"conv_{n}.weight": (8, 8) for n in (first, 2, 3)}}
    target |= {"head.weight": (3, 8)}
    for model in (wanted(target), wanted(target, used=target)):
        mapping = port(signature(source), model)
        assert pairing(mapping) == dict(zip(target, source, strict=True))
        assert not mapping.having("guessed")


@pytest.mark.parametrize("norm", ["fc1", "k2", "norm"])
def test_a_list_is_counted_as_pairs_of_that_list_show_and_not_as_one_with_a_number_more(norm: str) -> None:
    """`fc1` is no member of the list of `fc`."""
    roles = {"q": NORM, "fc": NORM, "k": NORM, norm: STATISTICS}
    sizes = dict(enumerate((8, 16, 32, 64), 1))
    source: Shapes = {f"b.{name}s.{n}.{role}": (8,) for name in roles for n in sizes for role in roles[name]}
    target: Shapes = {
        f"up.{size}.blk.{name}.{role}": (8,) for size in sizes.values() for name in roles for role in roles[name]
    }
    made = pairing(port(signature(source), wanted(target)))
    for n, size in sizes.items():
        assert made[f"up.{size}.blk.{norm}.weight"] == f"b.{norm}s.{n}.weight"


@pytest.mark.parametrize(
    ("blocks", "parts"),
    [
        ([f"up.{n}.blk" for n in (8, 16, 32, 64)], {"attn": NORM, "k": STATISTICS, "q": NORM, "norm": STATISTICS}),
        (["first.1", "second.1"], {"attn": STATISTICS, "conv": NORM, "q": STATISTICS}),
    ],
    ids=["sizes", "words"],
)
def test_a_norm_beside_no_layer_with_a_matrix_is_not_known_by_the_one_beside_it_in_silence(
    blocks: list[str], parts: dict[str, tuple[str, ...]]
) -> None:
    """In the file, the last of a list is before the first of the next list; in the model, two parts of a block are."""
    source: Shapes = {f"m.{part}.{n}.{r}": (8,) for part in parts for n in range(len(blocks)) for r in parts[part]}
    target: Shapes = {f"{block}.{part}.{role}": (8,) for block in blocks for part in parts for role in parts[part]}
    mapping = port(signature(source), wanted(target))
    for n, block in enumerate(blocks):
        for part in parts:
            entry = found(mapping, f"{block}.{part}.weight")
            assert entry.status == "guessed" or str(entry.expr) == f"m.{part}.{n}.weight"
