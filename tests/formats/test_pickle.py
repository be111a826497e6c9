"""Reading pickles inertly and writing them again, with Python's own pickler and unpickler as the judges."""

import contextlib
import copyreg
import datetime
import decimal
import enum
import fractions
import io
import pathlib
import pickle
import pickletools
import random
import struct
import subprocess
import sys
import tracemalloc
import uuid
from argparse import Namespace
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from same import graph
from strategies import INTS, TEXTS

from ckptool.disk.files import Buffer
from ckptool.dtypes import BY_NAME
from ckptool.errors import CheckpointError, Malformed, printable
from ckptool.formats.pickle.reader import NeedsMore, Reader
from ckptool.formats.pickle.writer import fit, write_pickle
from ckptool.tensor import LazyTensor, Storage
from ckptool.tree import ABSENT, ByteString, Dict, Global, List, Object, Set

FLOAT32 = BY_NAME["float32"]
PROTOCOLS = range(6)

#: Opcodes that torch's weights_only unpickler takes (torch/_weights_only_unpickler.py, 2.13).
WEIGHTS_ONLY = set(
    """
    PROTO STOP GLOBAL NEWOBJ REDUCE BUILD APPEND APPENDS SETITEM SETITEMS MARK TUPLE TUPLE1 TUPLE2 TUPLE3 NONE NEWTRUE
    NEWFALSE EMPTY_TUPLE EMPTY_LIST EMPTY_DICT EMPTY_SET BININT BININT1 BININT2 BINFLOAT BINUNICODE SHORT_BINSTRING
    BINPERSID BINGET LONG_BINGET BINPUT LONG_BINPUT LONG1
    """.split()
)


def no_storages(pid):
    raise Malformed(f"has a persistent id, which a plain pickle has not: {printable(repr(pid))}")


def read(data, **options):
    return Reader(data, "a test", no_storages, **options).load()


def write(tree):
    return bytes(write_pickle(tree, no_storages))


def rewritten(value, protocol):
    """VALUE after: the standard pickler, our reader, our writer, the standard unpickler."""
    return pickle.loads(write(read(pickle.dumps(value, protocol))))


def opcodes(data):
    return [opcode.name for opcode, _, _ in pickletools.genops(data)]


# --------------------------------------------------------------------------------------------------- plain graphs

FLOATS = st.floats() | st.sampled_from([float("nan"), float("-inf"), -0.0, 1e-320])
SCALARS = st.none() | st.booleans() | INTS | FLOATS | TEXTS | st.binary(max_size=300)
HASHABLE = st.booleans() | INTS | TEXTS | st.binary(max_size=5) | st.tuples(TEXTS, INTS)


@st.composite
def graphs(draw):
    """Lists, dicts, tuples and sets that refer to each other in any way, tuples that hold themselves included."""
    mutable = [
        {"list": list, "dict": dict, "ordered": OrderedDict}[draw(st.sampled_from(["list", "dict", "ordered"]))]()
        for _ in range(draw(st.integers(1, 5)))
    ]
    nodes = list(mutable)
    for _ in range(draw(st.integers(0, 5))):
        child = st.sampled_from(nodes) | SCALARS
        kind = draw(st.sampled_from(["tuple", "set", "frozenset", "bytearray"]))
        if kind == "tuple":
            nodes.append(tuple(draw(st.lists(child, max_size=5))))
        elif kind == "bytearray":
            nodes.append(bytearray(draw(st.binary(max_size=4))))
        else:
            nodes.append({"set": set, "frozenset": frozenset}[kind](draw(st.lists(HASHABLE, max_size=4))))
    child = st.sampled_from(nodes) | SCALARS
    for node in mutable:
        if isinstance(node, list):
            node.extend(draw(st.lists(child, max_size=4)))
        else:
            node.update(draw(st.dictionaries(HASHABLE, child, max_size=4)))
            if isinstance(node, OrderedDict) and draw(st.booleans()):
                node.attribute = draw(child)
    return draw(st.sampled_from(nodes))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(value=graphs())
def test_a_graph_is_read_as_it_was_pickled(protocol, value):
    assert graph(read(pickle.dumps(value, protocol))) == graph(pickle.loads(pickle.dumps(value, protocol)))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@given(value=graphs())
def test_a_graph_is_the_same_after_reading_and_writing(protocol, value):
    assert graph(rewritten(value, protocol)) == graph(pickle.loads(pickle.dumps(value, protocol)))


@given(value=graphs())
def test_what_is_written_does_not_depend_on_the_protocol_that_was_read(value):
    if not any(name in ("BYTEARRAY8", "FROZENSET") for name in opcodes(pickle.dumps(value, 5))):
        assert (
            len({write(read(pickle.dumps(pickle.loads(pickle.dumps(value, 2)), protocol))) for protocol in (2, 3)}) == 1
        )


# ----------------------------------------------------------------------------------------------- objects of classes


class Plain:
    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Slotted:
    __slots__ = ("left", "right")


class SlottedAndDict(Slotted):
    pass


class Stateful:
    def __init__(self, value):
        self.value = value

    def __getstate__(self):
        return ("state", self.value)

    def __setstate__(self, state):
        assert state[0] == "state"
        self.value = state[1]


class Reduced:
    def __init__(self, *args):
        self.args = args

    def __reduce__(self):
        return Reduced, self.args


class Registered:
    def __init__(self, value):
        self.value = value


copyreg.pickle(Registered, lambda made: (Registered, (made.value,)))


class ListWithName(list):
    pass


class DictWithName(dict):
    pass


class OrderedWithName(OrderedDict):
    pass


class Keyworded:
    def __new__(cls, *, value):
        made = super().__new__(cls)
        made.value = value
        return made

    def __getnewargs_ex__(self):
        return (), {"value": self.value}


class Outer:
    class Inner:
        def __init__(self):
            self.value = 1

    @staticmethod
    def function():
        return None


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntFlag):
    LOW = 1
    HIGH = 2


Point = namedtuple("Point", "x y")


@dataclass
class Data:
    name: str
    items: list = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    name: str


def named(kind, *args, **attributes):
    made = kind(*args)
    made.__dict__.update(attributes)
    return made


def slotted(kind, **attributes):
    made = kind()
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def ring():
    made = Plain(name="ring")
    made.itself = [made]
    made.pair = (made, Plain(back=made))
    return made


OBJECTS = {
    "attributes": lambda: Plain(a=1, b=[2]),
    "no attributes": Plain,
    "slots": lambda: slotted(Slotted, left=1, right=[2]),
    "slots and attributes": lambda: slotted(SlottedAndDict, left=1, more=2),
    "__setstate__": lambda: Stateful([1, 2]),
    "__reduce__": lambda: Reduced(1, "two", [3]),
    "copyreg": lambda: Registered({"a": 1}),
    "subclass of list": lambda: named(ListWithName, [1, 2], name="x"),
    "subclass of dict": lambda: named(DictWithName, {"a": 1}, name="x"),
    "subclass of OrderedDict": lambda: named(OrderedWithName, [("b", 1), ("a", 2)], name="x"),
    "keyword arguments to __new__": lambda: Keyworded(value=[1]),
    "nested class": Outer.Inner,
    "enum": lambda: [Colour.RED, Level.LOW | Level.HIGH],
    "namedtuple": lambda: Point(1, [2]),
    "dataclass": lambda: Data("a", [1]),
    "frozen dataclass": lambda: Frozen("a"),
    "defaultdict": lambda: defaultdict(list, {"a": [1]}),
    "deque": lambda: deque([1, 2, 3], maxlen=2),
    "Counter": lambda: Counter("abca"),
    "OrderedDict": lambda: named(OrderedDict, [("b", 1)], _metadata=OrderedDict(a={"version": 1})),
    "Namespace": lambda: Namespace(lr=0.1, device="cuda:1"),
    "SimpleNamespace": lambda: SimpleNamespace(a=1),
    "exception": lambda: ValueError("bad", 3),
    "path": lambda: pathlib.PurePosixPath("/a/b"),
    "date": lambda: datetime.datetime(2020, 1, 2, 3, 4, 5, 6, datetime.timezone.utc),
    "decimal": lambda: decimal.Decimal("1.50"),
    "fraction": lambda: fractions.Fraction(1, 3),
    "uuid": lambda: uuid.UUID(int=5),
    "complex": lambda: complex(1, -2),
    "range and slice": lambda: [range(1, 9, 2), slice(1, None)],
    "functions": lambda: [len, Outer.function, decimal.Decimal.from_float, dict.fromkeys],
    "classes": lambda: [Plain, int, type(None), type(...), OrderedDict],
    "singletons": lambda: [..., NotImplemented],
    "ring": ring,
    "shared": lambda: [one := Plain(a=1), one, {"again": one}],
}

#: What these protocols of the standard pickler cannot say of a class.
UNSAYABLE = {("slots", 0), ("slots", 1), ("slots and attributes", 0), ("slots and attributes", 1)}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_of_any_class_is_the_same_after_reading_and_writing(kind, protocol):
    if (kind, protocol) in UNSAYABLE:
        pytest.skip("the standard pickler refuses it, too")
    value = OBJECTS[kind]()
    assert graph(rewritten(value, protocol)) == graph(pickle.loads(pickle.dumps(value, protocol)))


def test_an_object_shows_its_class_its_state_and_its_items_without_being_made():
    found = read(pickle.dumps(named(ListWithName, [1, 2], name="x"), 2))
    assert isinstance(found, Object)
    assert found.class_name == f"{__name__}.ListWithName"
    assert found.items == [1, 2]
    assert found.state.get("name") == "x"


def test_a_call_whose_result_is_thrown_away_is_counted():
    reader = Reader(b"\x80\x02cos\nsystem\nX\x02\0\0\0id\x85R0N.", "", no_storages)
    assert reader.load() is None
    assert reader.discarded == 1


# ------------------------------------------------------------------------------------------ strings of Python 2

#: What Python 2.7 wrote for these values: (pickle, expected tree values, as bytes or text).
PYTHON_2 = {
    "protocol 0": (b"(dp0\nS'weight'\np1\nI1\nsV\\u00e9\np2\nF0.5\ns.", [("weight", 1), ("é", 0.5)]),
    "protocol 1": (
        b"}q\x00(U\x06weightq\x01K\x01X\x02\x00\x00\x00\xc3\xa9q\x02G?\xe0\x00\x00\x00\x00\x00\x00u.",
        [("weight", 1), ("é", 0.5)],
    ),
    "protocol 2": (
        b"\x80\x02}q\x00(U\x06weightq\x01\x8a\x05\x00\x00\x00\x00\x01T\x03\x00\x00\x00\xff\xfe\x00q\x02\x88u.",
        [("weight", 1 << 32), ("ÿþ\x00", True)],
    ),
    "escapes": (b"(lp0\nS'a\\n\\x00\\xff\\\\'\np1\naS\"it's\"\np2\na.", ["a\n\x00ÿ\\", "it's"]),
    "long": (b"(lp0\nL12345678901234567890L\naI01\naI00\na.", [12345678901234567890, True, False]),
}


@pytest.mark.parametrize("name", PYTHON_2)
def test_a_pickle_of_python_2_is_read_as_text_and_numbers(name):
    data, expected = PYTHON_2[name]
    found = read(data)
    values = found.entries if isinstance(found, Dict) else found.items
    assert values == expected
    kinds = [type(a) for pair in values if isinstance(pair, tuple) for a in pair] or [type(a) for a in values]
    assert all(kind in (str, ByteString, int, float, bool) for kind in kinds)


@pytest.mark.parametrize("name", PYTHON_2)
def test_strings_of_python_2_are_written_back_as_the_bytes_that_they_were(name):
    data = PYTHON_2[name][0]
    written = write(read(data))
    assert graph(pickle.loads(written, encoding="bytes")) == graph(pickle.loads(data, encoding="bytes"))
    assert graph(pickle.loads(written, encoding="latin-1")) == graph(pickle.loads(data, encoding="latin-1"))


def test_an_ordered_dict_of_python_2_is_a_dict():
    data = b"\x80\x02ccollections\nOrderedDict\nq\x00]q\x01]q\x02(U\x01aq\x03K\x01ea\x85q\x04Rq\x05."
    found = read(data)
    assert (found.ordered, found.entries) == (True, [("a", 1)])
    assert pickle.loads(write(found)) == OrderedDict(a=1) == pickle.loads(data)


def test_old_style_instances_are_read_and_written():
    data = b"(i__main__\nOld\np0\n(dp1\nS'x'\np2\nI1\nsb."
    found = read(data)
    assert (found.class_name, found.state.get("x")) == ("__main__.Old", 1)
    again = read(write(found))
    assert graph(again) == graph(found)


RENAMED = [
    ("__builtin__", "xrange", "builtins.range"),
    ("__builtin__", "unicode", "builtins.str"),
    ("copy_reg", "_reconstructor", "copyreg._reconstructor"),
    ("exceptions", "ValueError", "builtins.ValueError"),
    ("UserDict", "IterableUserDict", "collections.UserDict"),
    ("torch", "FloatStorage", "torch.FloatStorage"),
]


@pytest.mark.parametrize(("module", "name", "expected"), RENAMED)
def test_a_class_that_python_3_renamed_has_the_name_that_unpicklers_look_for(module, name, expected):
    spelt = f"c{module}\n{name}\n".encode()
    assert str(read(b"\x80\x02" + spelt + b".")) == expected
    assert str(read(spelt + b".")) == expected
    assert str(read(b"\x80\x04" + spelt + b".")) == f"{module}.{name}"  # from protocol 3 on names are what they are


def test_of_several_protocols_the_last_decides_on_names():
    named = b"c__builtin__\nset\n"
    assert str(read(b"\x80\x04\x80\x02" + named + b".")) == "builtins.set"
    assert pickle.loads(b"\x80\x04\x80\x02" + named + b".") is set
    assert str(read(b"\x80\x02\x80\x04" + named + b".")) == "__builtin__.set"


@pytest.mark.parametrize(("module", "name", "expected"), RENAMED)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_class_keeps_its_name_through_writing(module, name, expected, protocol):
    found = read(bytes([0x80, protocol]) + f"c{module}\n{name}\n.".encode())
    assert read(write(found)) == found


# ---------------------------------------------------------------------------------------------- what is written


@given(value=graphs())
def test_plain_graphs_are_written_in_the_opcodes_that_weights_only_takes(value):
    names = opcodes(pickle.dumps(value, 5))
    allowed = WEIGHTS_ONLY
    if any(name == "LONG4" for name in opcodes(pickle.dumps(value, 2))):
        allowed = allowed | {"LONG4"}
    written = write(read(pickle.dumps(value, 2)))
    if "POP" not in opcodes(pickle.dumps(value, 2)) and "POP_MARK" not in opcodes(pickle.dumps(value, 1)):
        assert set(opcodes(written)) <= allowed, names
    assert written[:2] == b"\x80\x02"


@pytest.mark.parametrize("kind", OBJECTS)
def test_what_is_written_is_a_sound_pickle(kind):
    for protocol in (2, 4):
        written = write(read(pickle.dumps(OBJECTS[kind](), protocol)))
        pickletools.dis(written, out=io.StringIO())  # checks the stack and the memo


def test_nested_names_and_keyword_arguments_are_written_in_protocol_4():
    assert write(read(pickle.dumps(Outer.Inner(), 4)))[:2] == b"\x80\x04"
    assert write(read(pickle.dumps(Keyworded(value=1), 4)))[:2] == b"\x80\x04"
    assert write(read(pickle.dumps(Plain(), 4)))[:2] == b"\x80\x02"


def test_only_what_is_fetched_again_is_put_into_the_memo():
    shared = ["x"]
    written = opcodes(write(read(pickle.dumps([shared, "once", {"k": shared}, "twice", "twice"], 2))))
    assert sum(name == "BINPUT" for name in written) == 2
    assert "LONG_BINPUT" not in written


def test_more_than_256_shared_values_are_told_apart():
    values = [[n] for n in range(700)]
    assert graph(rewritten([values, values[::-1]], 2)) == graph(pickle.loads(pickle.dumps([values, values[::-1]], 2)))


@pytest.mark.parametrize("name", ["evil\nname", "a\n"])
def test_a_class_name_with_a_line_break_is_not_written(name):
    with pytest.raises(CheckpointError, match="no pickle should carry it"):
        write(Object("reduce", Global("module", name), ()))


# ------------------------------------------------------------------------------------------------- filling up

SAMPLE = write(Dict([("a", 1), ("b", List([1, 2])), ("c", List())]))


def filled_up(pickle, length):
    """A copy of PICKLE made LENGTH bytes long, or None where it cannot be and stays as it was."""
    copy = bytearray(pickle)
    if fit(copy, length):
        return bytes(copy)
    assert copy == pickle
    return None


@given(extra=st.one_of(st.integers(0, 3000), st.integers(5 << 16, 11 << 16)))
def test_a_pickle_can_be_filled_up_to_any_length_but_one_and_three_more(extra):
    filled = filled_up(SAMPLE, len(SAMPLE) + extra)
    if extra in (1, 3):
        assert filled is None
        return
    assert len(filled) == len(SAMPLE) + extra
    assert pickle.loads(filled) == pickle.loads(SAMPLE)
    assert graph(read(filled)) == graph(read(SAMPLE))
    assert set(opcodes(filled)) <= WEIGHTS_ONLY
    assert filled.index(b".", len(SAMPLE) - 1) == len(filled) - 1 or filled.endswith(b".")


@given(less=st.integers(1, 100))
def test_a_pickle_cannot_be_filled_up_to_less_than_it_has(less):
    assert filled_up(SAMPLE, len(SAMPLE) - less) is None


@given(value=graphs(), extra=st.integers(4, 40))
def test_filling_up_changes_nothing_whatever_the_pickle(value, extra):
    written = write(read(pickle.dumps(value, 2)))
    filled = filled_up(written, len(written) + extra)
    assert graph(pickle.loads(filled)) == graph(pickle.loads(written))


# -------------------------------------------------------------------------------------------------- hostile ones


def pack(code, layout, number, payload=b""):
    return code + struct.pack(layout, number) + payload


HUGE = {
    "text": pack(b"X", "<I", 0xFFFFFFFF),
    "long text": pack(b"\x8d", "<Q", 1 << 62),
    "bytes": pack(b"B", "<I", 0xFFFFFFFF),
    "long bytes": pack(b"\x8e", "<Q", (1 << 64) - 1),
    "bytearray": pack(b"\x96", "<Q", 1 << 40),
    "string": pack(b"T", "<I", 0x7FFFFFFF),
    "negative string": pack(b"T", "<i", -1),
    "integer": pack(b"\x8b", "<I", 1 << 31, b"\1" * 2000),
    "negative integer": pack(b"\x8b", "<i", -5, b"\1" * 20),
    "long decimal": b"L" + b"9" * 5000 + b"L\n",
    "decimal without end": b"I" + b"9" * (1 << 21),
    "frame": pack(b"\x95", "<Q", 1 << 60),
    "memo": b"Nr\xff\xff\xff\xff0j\xfe\xff\xff\xff",
}


@pytest.mark.parametrize("name", HUGE)
def test_a_length_that_cannot_be_is_refused_without_making_room_for_it(name):
    with pytest.raises(Malformed):
        read(b"\x80\x04" + HUGE[name] + b".")


REFUSED = {
    "empty": b"",
    "no stop": b"\x80\x02N",
    "unknown opcode": b"\x80\x02\xff.",
    "protocol 6": b"\x80\x06N.",
    "empty stack": b".",
    "pop of nothing": b"0.",
    "append to nothing": b"K\x01a.",
    "append to a number": b"K\x01K\x02a.",
    "append to a global": b"cos\nsystem\nK\x01a.",
    "set items of a list": b"](K\x01K\x02u.",
    "key without value": b"}(K\x01u.",
    "no mark": b"]K\x01e.",
    "tuple of too few": b"K\x01\x87.",
    "get of what was never put": b"h\x05.",
    "build of a number": b"K\x01}b.",
    "build of a global": b"cos\nenviron\n}b.",
    "build of a dict": b"}}b.",
    "stack global of numbers": b"K\x01K\x02\x93.",
    "object of no class": b"(o.",
    "text that is not UTF-8": b"X\x01\0\0\0\xff.",
    "string without quotes": b"Sabc\n.",
    "number that is none": b"Iabc\n.",
    "float that is none": b"Fabc\n.",
    "wrong escape": b"V\\u12\n.",
    "frame in a frame": b"\x80\x04\x95\x0a\0\0\0\0\0\0\0\x95\x01\0\0\0\0\0\0\0N" + b"0" * 5 + b".",
    "opcode that straddles a frame": b"\x80\x04\x95\x02\0\0\0\0\0\0\0X\x01\0\0\0a.",
    "line that straddles a frame": b"\x80\x04\x95\x03\0\0\0\0\0\0\0I12\n.",
    "memo of nothing": b"q\0.",
    "list as a key": b"}]K\x01s.",
    "call of a number": b"K\x01)R.",
    "call with a list": b"cos\nsystem\n]R.",
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_pickle_that_contradicts_itself_is_refused(name):
    with pytest.raises(Malformed) as caught:
        read(REFUSED[name])
    assert str(caught.value) == printable(str(caught.value), 10_000) or "\n" in str(caught.value)


@given(data=st.binary(max_size=200))
def test_arbitrary_bytes_are_read_or_refused(data):
    for start in (b"", b"\x80\x02", b"\x80\x04}("):
        with contextlib.suppress(CheckpointError):
            write(read(start + data))


@given(seed=st.integers(0, 1 << 32), value=graphs(), protocol=st.sampled_from(PROTOCOLS))
def test_damaged_pickles_are_read_or_refused(seed, value, protocol):
    chance = random.Random(seed)
    whole = pickle.dumps([value, ring()], protocol)
    for _ in range(20):
        damaged = bytearray(whole)
        for _ in range(chance.choice([1, 1, 2, 5])):
            at = chance.randrange(len(damaged))
            damaged[at : at + chance.choice([0, 1, 1, 3])] = bytes(
                chance.randrange(256) for _ in range(chance.choice([0, 1, 1, 4]))
            )
            damaged = damaged or bytearray(b".")
        with contextlib.suppress(CheckpointError):
            write(read(bytes(damaged)))


@given(value=graphs(), protocol=st.sampled_from(PROTOCOLS))
def test_a_pickle_that_is_cut_short_asks_for_more_or_is_refused(value, protocol):
    whole = pickle.dumps(value, protocol)
    for length in range(len(whole)):
        with pytest.raises(Malformed):
            read(whole[:length])
        with pytest.raises(NeedsMore):
            read(whole[:length], complete=False)


def test_a_pickle_may_start_anywhere_and_ends_where_it_says():
    reader = Reader(b"junk" + pickle.dumps([1], 2) + b"more", "", no_storages, start=4)
    assert reader.load().items == [1]
    assert reader.data[reader.position :] == b"more"


#: Far more than what the stack of Python, or of C in `hash` and `repr`, can hold.
DEPTH = 50_000
DEEP = {
    "tuples": b"\x80\x02)" + b"\x85" * DEPTH + b".",
    "lists": b"\x80\x02" + b"]" * DEPTH + b"a" * (DEPTH - 1) + b".",
    "dicts": b"\x80\x02" + b"}K\x01" * DEPTH + b"N" + b"s" * DEPTH + b".",
    "calls": b"\x80\x02ca\nb\n" + b")R" * DEPTH + b".",
    "states": b"\x80\x02" + b"ca\nb\n)\x81" * DEPTH + b"b" * (DEPTH - 1) + b".",
}


@pytest.mark.parametrize("name", DEEP)
def test_nesting_of_any_depth_is_read_walked_and_written_without_recursion(name, in_new_python, tmp_path):
    (tmp_path / "deep.pkl").write_bytes(DEEP[name])
    program = """
import sys
from ckptool.errors import Malformed
from ckptool.formats.pickle.reader import Reader
from ckptool.formats.pickle.writer import write_pickle
from ckptool.tree import rebuild, walk
data = open(sys.argv[1], "rb").read()
try:
    tree = Reader(data, "deep", None).load()
    print(sum(1 for _ in walk(tree)) > 0)
    assert Reader(bytes(write_pickle(rebuild(tree), None)), "deep", None).load() is not None
except Malformed:
    print(True)
"""
    assert in_new_python(program, tmp_path / "deep.pkl") == "True"


def test_a_deep_tuple_as_a_key_is_refused():
    with pytest.raises(Malformed, match="key"):
        read(b"\x80\x02}N" + b"\x85" * DEPTH + b"Ns.")


def test_a_tuple_that_doubles_sixty_times_is_read_in_no_time_and_refused_as_a_key():
    doubled = b"N" + b"2\x86" * 60
    found = read(b"\x80\x02" + doubled + b".")
    assert len(write(found)) < 1000
    with pytest.raises(Malformed, match="key"):
        read(b"\x80\x02}" + doubled + b"Ns.")


def test_nested_encodings_do_not_multiply_memory():
    data = b"\x80\x02c_codecs\nencode\nq\0X\x04\0\0\0aaaaX\x03\0\0\0hex\x86R"
    data = b"\x80\x02" + b"c_codecs\nencode\n" * 40 + b"X\x04\0\0\0aaaa" + b"X\x03\0\0\0hex\x86R" * 40 + b"."
    assert isinstance(read(data), Object)


def test_one_text_encoded_many_times_takes_memory_once():
    text = "x" * 1_000_000
    head = (
        b"\x80\x02(c_codecs\nencode\nq\0" + pack(b"X", "<I", len(text), text.encode()) + b"q\1X\6\0\0\0latin1q\2\x86R"
    )
    found = read(head + b"h\0h\1h\2\x86R" * 1000 + b"t.")
    assert len({id(part) for part in found}) == 1


# ------------------------------------------------------------------------------------------------- nothing runs

PAYLOADS = {
    "os.system": b"\x80\x02cos\nsystem\nX%s\x85R.",
    "posix.system": b"\x80\x02cposix\nsystem\nX%s\x85R.",
    "exec": b"\x80\x02c__builtin__\nexec\nX%s\x85R.",
    "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93X%s\x85R.",
    "inst": b"(X%sios\nsystem\n.",
    "obj": b"(cos\nsystem\nX%so.",
    "thrown away": b"\x80\x02cos\nsystem\nX%s\x85R0N.",
    "within a state": b"\x80\x02carbitrary_module\nThing\n)\x81cos\nsystem\nX%s\x85Rb.",
    "getattr": b"\x80\x02c__builtin__\ngetattr\ncos\nenviron\nX\x03\0\0\0get\x86RX%s\x85R.",
}

AUDITED = """
import sys
watched = []
sys.addaudithook(lambda event, args: watched.append((event, str(args[:1]))) if event in {
    "pickle.find_class", "os.system", "os.exec", "exec", "compile", "subprocess.Popen", "os.posix_spawn", "os.fork",
} else None)
import ckptool, ckptool.formats, ckptool.passes.by_key, ckptool.weights
from ckptool.formats.pickle.reader import Reader
from ckptool.formats.pickle.writer import write_pickle
from ckptool.tree import walk
modules = set(sys.modules)
watched.clear()
for path in sys.argv[1:]:
    tree = Reader(open(path, "rb").read(), path, None).load()
    list(walk(tree))
    repr(tree)
    write_pickle(tree, None)
print(watched, sorted(set(sys.modules) - modules))
"""


def test_nothing_that_a_pickle_names_is_imported_or_run(tmp_path, in_new_python):
    paths = []
    marker = tmp_path / "executed"
    command = f"touch {marker}".encode()
    for number, payload in enumerate(PAYLOADS.values()):
        path = tmp_path / f"{number}.pkl"
        path.write_bytes(payload.replace(b"%s", struct.pack("<I", len(command)) + command))
        paths.append(path)
    assert in_new_python(AUDITED, *paths) == "[] []"
    assert not marker.exists()


def test_the_payloads_of_these_tests_would_run_in_the_standard_unpickler(tmp_path):
    marker = tmp_path / "executed"
    command = f"touch {marker}".encode()
    data = PAYLOADS["os.system"].replace(b"%s", struct.pack("<I", len(command)) + command)
    subprocess.run([sys.executable, "-c", "import pickle, sys; pickle.load(sys.stdin.buffer)"], input=data, check=True)
    assert marker.exists()


# ------------------------------------------------------------------------------------------------------- the rest


def test_sets_keep_the_order_of_the_file_and_are_not_hashed():
    found = read(b"\x80\x04\x8f(K\x03K\x01K\x02\x90.")
    assert isinstance(found, Set)
    assert found.items == [3, 1, 2]


def test_a_container_that_no_one_sets_attributes_on_has_none():
    assert read(b"\x80\x02}.").attributes is ABSENT


@pytest.mark.timeout(60)  # a tenth of a second, or minutes
def test_a_large_tuple_that_is_a_key_many_times_is_looked_at_once():
    keys = b"\x80\x02(" + b"N" * 9000 + b"tq\x000}(" + b"h\0\x85N" * 30_000 + b"u."
    assert len(Reader(keys, "x", lambda pid: None).load().entries) == 30_000


def test_a_tuple_that_grows_by_doubling_is_no_key():
    with pytest.raises(Malformed, match="too large"):
        Reader(b"\x80\x02})" + b"2\x86" * 60 + b"Ns.", "x", lambda pid: None).load()


def test_writing_many_tensors_takes_little_memory_for_each():
    count = 5000
    entries = [
        (f"layers.{n}.weight", LazyTensor(Storage(Buffer(bytes(16)), "cpu", FLOAT32, str(n)), FLOAT32, (2, 2), (2, 1)))
        for n in range(count)
    ]
    tracemalloc.start()
    try:
        written = write_pickle(Dict(entries), lambda storage: storage.key)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (peak - len(written)) / count < 300


def test_a_tensor_in_two_places_is_written_once():
    tensor = LazyTensor(Storage(Buffer(bytes(16)), "cpu", FLOAT32, "0"), FLOAT32, (2, 2), (2, 1))
    other = LazyTensor(Storage(Buffer(bytes(16)), "cpu", FLOAT32, "1"), FLOAT32, (2, 2), (2, 1))
    asked = []

    def name_of(storage):
        asked.append(storage.key)
        return storage.key

    write_pickle(Dict([("a", tensor), ("b", other), ("c", List([tensor, (tensor,)])), ("d", other)]), name_of)
    assert asked == ["0", "1"]
