import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from same import graph
from strategies import checkpoints, tensor_of

from ckptool.tree import (
    ABSENT,
    NODES,
    ByteString,
    Dict,
    Global,
    List,
    Object,
    Pairs,
    Set,
    address,
    children,
    component_text,
    descend,
    key_column,
    rebuild,
    value_column,
    walk,
)

pytestmark = pytest.mark.same_without_torch

TEXTS = st.text(st.sampled_from('ab/~"#@01-é\n'), max_size=5)
LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | TEXTS | st.binary(max_size=3)


@st.composite
def trees(draw):
    """Nodes of every kind that refer to each other in any way: shared, and in circles."""
    makers = {
        "list": List,
        "dict": Dict,
        "set": Set,
        "object": lambda: Object("reduce", Global("m", "C"), ()),
    }
    holders = [makers[draw(st.sampled_from(sorted(makers)))]() for _ in range(draw(st.integers(1, 6)))]
    nodes = [*holders, tensor_of("int8"), Global("m", "f")]
    for _ in range(draw(st.integers(0, 4))):
        nodes.append(tuple(draw(st.lists(st.sampled_from(nodes) | LEAVES, max_size=4))))
    child = st.sampled_from(nodes) | LEAVES
    for holder in holders:
        if isinstance(holder, List | Set):
            holder.items = draw(st.lists(child, max_size=4))
        elif isinstance(holder, Dict):
            entries = draw(
                st.dictionaries(TEXTS | st.integers(-3, 3) | st.none() | st.tuples(TEXTS), child, max_size=4)
            )
            holder.entries, holder.ordered = list(entries.items()), draw(st.booleans())
            if holder.ordered and draw(st.booleans()):
                holder.attributes = draw(child)
        else:
            holder.args = (draw(child),)
            if draw(st.booleans()):
                holder.steps.append(("items", draw(st.lists(child, max_size=3))))
            elif draw(st.booleans()):
                holder.steps.append(("entries", list(draw(st.dictionaries(TEXTS, child, max_size=2)).items())))
            if draw(st.booleans()):
                holder.steps.append(("state", draw(child)))
    return draw(st.sampled_from(nodes))


def containers_of(root):
    return [node for _, node in walk(root) if isinstance(node, NODES)]


# ------------------------------------------------------------------------------------------------------- rebuild


@given(root=trees())
def test_a_rebuilt_tree_has_the_same_values_the_same_sharing_and_the_same_circles(root):
    assert graph(rebuild(root)) == graph(root)


@given(root=trees())
@example(root=Dict([("w", tensor_of("int8"))]))
def test_a_rebuilt_tree_shares_no_container_with_the_old_one(root):
    before = graph(root)
    old = {id(node) for node in containers_of(root)}
    copy = rebuild(root)
    for node in containers_of(copy):
        assert id(node) not in old
        if isinstance(node, Dict):
            node.entries.clear()
        elif isinstance(node, List):
            node.items.clear()
    assert graph(root) == before


@given(ckpt=checkpoints())
def test_a_leaf_is_replaced_once_wherever_it_stands(ckpt):
    seen = []

    def leaf(tensor):
        seen.append(id(tensor))
        return tensor_of("int8", (1,), b"\7")

    copy = rebuild(ckpt.root, leaf=leaf)
    assert len(seen) == len(set(seen)) == len({id(tensor) for _, tensor in ckpt.tensors()})
    values = [node for _, node in walk(copy) if type(node).__name__ == "LazyTensor"]
    assert {bytes(tensor.storage.source.data) for tensor in values} == {b"\7"}
    assert graph(ckpt.root) != graph(copy)


def test_what_stands_instead_of_a_node_is_copied_with_what_is_below_it():
    inner = List([1])
    node = Dict([("old", inner)])
    instead = Dict([("new", inner), ("again", inner)])
    root = List([node, node, inner])
    copy = rebuild(root, instead={id(node): instead})
    assert copy.items[0] is copy.items[1]
    assert [key for key, _ in copy.items[0].entries] == ["new", "again"]
    assert copy.items[0].get("new") is copy.items[2] is not inner
    assert node.entries == [("old", inner)]


def test_tuples_that_hold_themselves_through_a_list_are_rebuilt():
    items = List()
    pair = (items, 1)
    items.items.append(pair)
    copy = rebuild(pair)
    assert copy[0].items[0] is copy is not pair


@pytest.mark.parametrize("leaf", [True, 1, 2.5, "x", b"x", None, Global("a", "b"), ByteString(b"\xff")], ids=repr)
def test_scalars_are_kept_as_they_are(leaf):
    assert rebuild((leaf, List([leaf]))).__class__ is tuple
    assert rebuild((leaf,))[0] is leaf


# ---------------------------------------------------------------------------------------------- walk and addresses


@given(root=trees())
def test_a_walk_ends_and_shows_parents_before_their_children(root):
    shown = [node for _, node in walk(root)]
    assert shown[0] is root
    first = {}
    for number, node in enumerate(shown):
        first.setdefault(id(node), number)
    for node in shown:
        for _, child in children(node) if isinstance(node, (tuple, *NODES)) else ():
            assert id(child) in first or not isinstance(child, (tuple, *NODES))


@given(root=trees())
def test_every_container_is_expanded_once_in_a_walk(root):
    expanded = [id(node) for _, node in walk(root) if isinstance(node, (*NODES, tuple)) and node != ()]
    assert len(expanded) == len(set(expanded))


@given(root=trees())
def test_an_address_leads_back_to_its_node(root):
    for trail, node in walk(root):
        found = descend(root, address(trail))
        assert found is node or (found == node and not isinstance(node, NODES))


@given(root=trees())
def test_no_two_places_have_the_same_address(root):
    shown = [address(trail) for trail, node in walk(root)]
    assert len(shown) == len(set(shown))


def test_of_equal_keys_the_last_has_the_address():
    root = Dict([("a", 1), ("b", 2), ("a", 3)])
    assert descend(root, "a") == root.get("a") == 3


@pytest.mark.parametrize(
    ("component", "text"),
    [
        ("weight", "weight"),
        ("a/b", "a~1b"),
        ("a~b", "a~0b"),
        ("~1", "~01"),
        (3, "3"),
        (-3, "-3"),
        ("3", '"3"'),
        ("-3", '"-3"'),
        ("03", '"03"'),
        ("", '""'),
        ("#1", '"#1"'),
        ("@state", '"@state"'),
        ('"x"', '""x""'),
        ("3a", "3a"),
        ("layers.0.weight", "layers.0.weight"),
    ],
)
def test_a_component_is_spelt_so_that_it_can_be_told_from_any_other(component, text):
    assert component_text(component) == text
    assert descend(Dict([(component, "found")]), text) == "found"


@given(texts=st.lists(TEXTS | st.integers(-20, 20), min_size=2, max_size=6, unique_by=lambda part: (type(part), part)))
def test_components_that_differ_are_spelt_differently(texts):
    assert len({component_text(part) for part in texts}) == len(texts)


def test_the_root_has_the_empty_address():
    root = Dict([("", 1)])
    assert descend(root, "") is root
    assert descend(root, '""') == 1


@pytest.mark.parametrize("path", ["nowhere", "a/b/c", "a/0/1", "/", "a/", "0"])
def test_there_is_nothing_at_an_address_that_leads_nowhere(path):
    assert descend(Dict([("a", List([5]))]), path) is ABSENT


def test_a_tuple_that_doubles_a_hundred_times_is_walked_in_no_time():
    node = (1,)
    for _ in range(100):
        node = (node, node)
    assert sum(1 for _ in walk(node)) == 102
    copy = rebuild(node)
    assert copy[0] is copy[1]
    assert sum(1 for _ in walk(copy)) == 102


def test_depth_does_not_matter():
    for wrap in (lambda node: (node,), lambda node: List([node]), lambda node: Dict([("k", node)])):
        node = 0
        for _ in range(20_000):
            node = wrap(node)
        assert sum(1 for _ in walk(rebuild(node))) >= 20_001
        while node:  # taken apart by hand, since freeing it recursively is Python's affair
            node = (
                node[0]
                if isinstance(node, tuple)
                else node.items.pop()
                if isinstance(node, List)
                else node.entries.pop()[1]
            )


# ------------------------------------------------------------------------------------------------------- nodes


def test_the_last_of_two_equal_keys_counts_as_in_python():
    node = Dict([("a", 1), ("b", 2), ("a", 3)])
    assert node.get("a") == 3
    assert "b" in node
    assert "c" not in node
    assert node.get("c", 7) == 7


def test_a_key_is_compared_with_texts_only():
    node = Dict([(1, "int"), (True, "bool"), (None, "none")])
    assert "1" not in node
    assert node.get("None") is None


@pytest.mark.parametrize(("raw", "text"), [(b"abc", "abc"), ("é".encode(), "é"), (b"\xff\xfe", "ÿþ"), (b"", "")])
def test_a_byte_string_is_a_text_that_remembers_its_bytes(raw, text):
    found = ByteString(raw)
    assert found == text
    assert hash(found) == hash(text)
    assert found.raw == raw


def test_an_object_shows_what_would_have_been_done_to_it():
    made = Object(
        "reduce", Global("m", "C"), (1,), [("items", [1, 2]), ("state", None), ("entries", [("a", 1)]), ("items", [3])]
    )
    assert (made.class_name, made.items, made.entries, made.state) == ("m.C", [1, 2, 3], [("a", 1)], None)
    assert Object("reduce", Global("m", "C"), ()).state is ABSENT
    assert Object("reduce", Global("copyreg", "_reconstructor"), (Global("a", "B"),)).class_name == "a.B"
    assert Object("reduce", made, ()).class_name == "?"
    assert not ABSENT


@pytest.mark.parametrize("kind", [List, Set, Dict])
def test_containers_are_compared_by_identity(kind):
    assert kind() != kind()
    assert len({kind(), kind()}) == 2


@given(st.lists(st.tuples(st.text(max_size=3), st.integers()), max_size=8), st.data())
def test_pairs_in_columns_are_a_sequence_as_a_list_of_pairs_is(entries, data):
    pairs = Pairs([key for key, _ in entries], [value for _, value in entries])
    assert (len(pairs), bool(pairs), list(pairs)) == (len(entries), bool(entries), entries)
    assert list(reversed(pairs)) == entries[::-1]
    assert pairs == entries
    assert pairs != [*entries, ("x", 0)]
    assert dict(pairs) == dict(entries)
    part = slice(*data.draw(st.tuples(*[st.none() | st.integers(-9, 9)] * 2)))
    assert pairs[part] == entries[part]
    for index in range(-len(entries), len(entries)):
        assert pairs[index] == entries[index]


@given(st.lists(st.integers(0, 100), max_size=5))
def test_a_dict_that_is_read_in_parts_has_the_entries_of_all(sizes):
    node, expected = Dict(), []
    for size in sizes:
        keys = [f"k{len(expected) + n}" for n in range(size)]
        node.extend(keys, list(range(size)))
        expected += zip(keys, range(size), strict=True)
    assert node.entries == expected
    assert (key_column(node.entries), value_column(node.entries)) == (
        [k for k, _ in expected],
        [v for _, v in expected],
    )
