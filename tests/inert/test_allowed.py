import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptool.dtypes import BY_STORAGE
from ckptool.formats.pickle.reader import Reader
from ckptool.inert.allowed import HARMLESS, PLAIN, beyond_plain_data, count_objects, is_plain_data, named_globals
from ckptool.tree import Dict, Global, List, Object


def call(name, *args):
    module, _, function = name.rpartition(".")
    return Object("reduce", Global(module, function), args)


def test_what_counts_as_plain_is_what_weights_only_torch_accepts(torch):
    allowed = set(torch._weights_only_unpickler._get_allowed_globals())
    assert PLAIN - allowed == set()


def test_what_counts_as_plain_is_all_that_weights_only_torch_accepts(torch):
    """What a newer torch adds is looked at, and added to the table."""
    assert set(torch._weights_only_unpickler._get_allowed_globals()) - PLAIN == set()


DANGEROUS = """
    os.system posix.system nt.system subprocess.Popen subprocess.check_output builtins.eval builtins.exec
    builtins.compile builtins.__import__ builtins.getattr builtins.open builtins.map builtins.apply __builtin__.eval
    __builtin__.getattr __builtin__.execfile importlib.import_module pip.main runpy.run_path shutil.rmtree
    webbrowser.open operator.attrgetter operator.methodcaller functools.partial types.CodeType types.FunctionType
    marshal.loads pickle.loads torch.load torch.hub.load torch.jit.load torch.ops.load_library torch.save
    torch.serialization.load torch.utils.cpp_extension.load numpy.load numpy.fromfile numpy.memmap numpy.testing.run
    numpy.f2py.crackfortran.myeval pathlib.Path.unlink logging.FileHandler logging.config.dictConfig ctypes.CDLL
    socket.socket torch.UntypedStorage.from_file torch.FloatStorage.from_file torch.storage._load_from_bytes
    collections.OrderedDict.fromkeys torch.nn.Module torch._dynamo.guards.GuardBuilder.get yaml.load builtins.print
""".split()


@pytest.mark.parametrize("name", DANGEROUS)
def test_a_name_that_can_do_more_than_hold_data_is_neither_plain_nor_harmless(name):
    assert name not in PLAIN
    assert name not in HARMLESS
    assert beyond_plain_data(Dict([("x", call(name, 1))])) == {name: 1}


def test_ranges_and_slices_are_data():
    for name in ("builtins.range", "builtins.slice"):
        assert beyond_plain_data(call(name, 1, 9, 2)) == {}


@pytest.mark.parametrize("name", ["builtins.bytes", "builtins.bytearray"])
def test_a_call_that_allocates_what_it_is_told_to_is_no_data(name):
    assert beyond_plain_data(call(name, 1 << 40)) == {"calls of computed functions": 1}
    assert beyond_plain_data(call(name, b"ab")) == {}


def test_a_container_of_a_computed_range_is_no_data():
    root = call("builtins.list", call("builtins.range", 1 << 60))
    assert beyond_plain_data(root) == {"calls of computed functions": 1}


RANGE = call("builtins.range", 1 << 60)


@pytest.mark.parametrize(
    "made",
    [
        call("collections.deque", RANGE),
        call("collections.Counter", RANGE),
        call("builtins.int", call("decimal.Decimal", "1e999999999")),
        call("fractions.Fraction", "1e999999999"),
        call("numpy.ndarray", (1 << 40,)),
        call("numpy._core.multiarray._reconstruct", Global("numpy", "ndarray"), (1 << 40,), b"b"),
        call("torch.FloatStorage", 1 << 40),
        call("torch.Tensor", 1 << 20, 1 << 20),
        call("copyreg._reconstructor", Global("builtins", "bytes"), Global("builtins", "bytes"), 1 << 40),
        call("torch._tensor._rebuild_from_type_v2", Global("builtins", "bytes"), None, (1 << 40,), None),
        Object("newobj_ex", Global("builtins", "bytes"), ((1 << 40,), Dict())),
    ],
)
def test_no_harmless_class_may_take_what_a_file_tells_it_to(made):
    assert "calls of computed functions" in beyond_plain_data(made)


def test_fractions_and_empty_arrays_are_data():
    assert beyond_plain_data(call("fractions.Fraction", "-1/3")) == {}
    assert beyond_plain_data(call("numpy._core.multiarray._reconstruct", Global("numpy", "ndarray"), (0,), b"b")) == {}


TYPES = [
    *("f4", ">i8", "?", "c16", "S5", "U3", "V8", "M8[ns]", "m8[s]", "O"),
    ("f4", (2, 3)),
    ("U3", (2,)),
    ("O", (2,)),
    [("a", "i4"), ("b", "O")],
    [("a", "S3"), ("b", ("f4", (2,)))],
    [("a", [("b", "O"), ("c", "U2")])],
]


def read(value):
    data = pickle.dumps(value, 2)
    return Reader(data, "x", lambda pid: None).load()


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_every_type_that_numpy_writes_is_data_and_none_with_other_flags(kind):
    numpy = pytest.importorskip("numpy")
    assert beyond_plain_data(read(numpy.zeros(2, dtype=kind))) == {}
    node = read(numpy.dtype(kind))
    state = node.state
    for flags in {0, 1, 2, 16, 26, 63} - {state[7]} - ({26, 63} if kind == ("O", (2,)) else set()):
        node.steps[0] = ("state", (*state[:7], flags, *state[8:]))
        assert "calls of computed functions" in beyond_plain_data(node)


def test_the_parts_of_a_type_lie_within_it():
    numpy = pytest.importorskip("numpy")
    node = read(numpy.dtype([("a", "i4"), ("b", "f8")]))
    field, _ = node.state[4].entries[1][1]
    node.state[4].entries[1] = ("b", (field, 5))
    assert "calls of computed functions" in beyond_plain_data(node)


def test_types_that_share_their_parts_a_thousandfold_are_looked_at_once():
    node = call("numpy.dtype", "f4")
    for level in range(1, 24):
        size = 4 << level
        fields = Dict([("a", (node, 0)), ("b", (node, size // 2))])
        node = call("numpy.dtype", f"V{size}")
        node.steps.append(("state", (3, "|", None, ("a", "b"), fields, size, 1, 16)))
    assert beyond_plain_data(node) == {}


def test_the_name_of_a_call_is_had_without_spelling_what_is_called():
    made = call("a.b")
    for _ in range(60):
        made = Object("reduce", made, (made, made))
    assert (made.class_name, repr(made)) == ("?", "Object(?)")


def test_names_are_compared_whole():
    for name in ("torch.FloatStorage.from_file", "xtorch.FloatStorage", "torch..FloatStorage", "Torch.FloatStorage"):
        assert beyond_plain_data(call(name)) == {name: 1}
    assert beyond_plain_data(Object("reduce", Global("torch.FloatStorage", "from_file"), ()))


def test_every_storage_class_of_the_table_is_plain():
    assert {f"torch.{name}" for name in BY_STORAGE} <= PLAIN


def test_objects_are_found_wherever_they_hide():
    hidden = call("evil.Class")
    places = [
        Dict([(("key", hidden), 1)]),
        Dict([("a", List([((hidden,),)]))]),
        Dict([("a", 1)], True, Dict([("_metadata", hidden)])),
        call("argparse.Namespace", hidden),
        Object("reduce", Global("argparse", "Namespace"), (), [("state", Dict([("x", hidden)]))]),
        Object("reduce", Global("collections", "deque"), (), [("items", [hidden])]),
        Object("reduce", Global("collections", "defaultdict"), (), [("entries", [(hidden, 1)])]),
    ]
    for place in places:
        assert beyond_plain_data(place) == {"evil.Class": 1}


def test_a_name_that_is_never_called_counts_too():
    assert beyond_plain_data(List([Global("os", "system")])) == {"os.system": 1}


def test_calls_of_what_was_computed_count_as_such():
    computed = Object("reduce", call("argparse.Namespace"), (1,))
    assert beyond_plain_data(computed) == {"calls of computed functions": 1}
    assert beyond_plain_data(call("_codecs.encode", "x", "hex")) == {"calls of computed functions": 1}


def test_names_are_counted_by_their_calls():
    shared = call("a.B")
    counted = named_globals(List([shared, shared, call("a.B"), Global("c", "D")]))
    assert counted == {"a.B": 2, "c.D": 1}


def test_a_listing_leaves_out_how_plain_data_is_spelt():
    root = List([call("torch.Size", (1,)), call("argparse.Namespace"), call("torch._utils._rebuild_qtensor")])
    assert count_objects(root) == {"argparse.Namespace": 1}


ARGUMENTS = st.one_of(
    *(st.just(one) for one in (1, 1 << 40, "1/2", "x" * 9, b"ab", (), (0,), (5, 5), call("os.system"))),
    st.just(call("builtins.range", 9)),
)
NAMES = st.one_of(st.sampled_from(sorted(PLAIN | HARMLESS)), st.sampled_from([*DANGEROUS, "_codecs.encode"]))


@given(st.lists(st.tuples(NAMES, st.lists(ARGUMENTS, max_size=4), st.sampled_from(["reduce", "newobj", "newobj_ex"]))))
def test_a_look_without_the_tree_finds_what_a_walk_through_it_finds(calls):
    made = [Object(how, Global(*name.rsplit(".", 1)), tuple(args)) for name, args, how in calls]
    inner = [one for node in made for one in node.args if isinstance(one, Object)]
    named = [node.callee for node in (*made, *inner)]
    assert is_plain_data(named, [*made, *inner]) == (not beyond_plain_data(List([*made])))


def test_a_call_of_what_a_call_gives_is_no_data_without_the_tree_either():
    assert not is_plain_data([], [Object("reduce", call("torch.Size"), ())])
