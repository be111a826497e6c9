"""Mutants of a pickle: opcodes, their arguments, memo numbers, frames, and calls that must never happen."""

import pickletools
import struct

from .bytes import BOUNDARIES, cut, sprinkle

#: What a hostile pickle calls. Whoever runs it makes the canary, a folder in the working folder.
EVIL = b"cos\nmkdir\nX\x06\0\0\0canary\x85R0"
EVIL_STACK = b"\x8c\x02os\x8c\x05mkdir\x93\x8c\x06canary\x85R0"
NAMES = (
    b"cos\nsystem\n",
    b"cbuiltins\neval\n",
    b"c__builtin__\nset\n",
    b"cbuiltins\nfrozenset\n",
    b"cbuiltins\ngetattr\n",
    b"cbuiltins\nbytearray\n",
    b"ccollections\nOrderedDict\n",
    b"ccollections\nCounter\n",
    b"ccollections\ndefaultdict\n",
    b"c_codecs\nencode\n",
    b"ccopyreg\n_reconstructor\n",
    b"ctorch\nSize\n",
    b"ctorch\ndevice\n",
    b"ctorch\nfloat16\n",
    b"ctorch\nqint8\n",
    b"ctorch\nFloatStorage\n",
    b"ctorch.storage\nUntypedStorage\n",
    b"ctorch.storage\n_load_from_bytes\n",
    b"ctorch._utils\n_rebuild_tensor\n",
    b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ctorch._utils\n_rebuild_tensor_v3\n",
    b"ctorch._utils\n_rebuild_parameter\n",
    b"ctorch._utils\n_rebuild_parameter_with_state\n",
    b"ctorch._utils\n_rebuild_sparse_tensor\n",
    b"ctorch._utils\n_rebuild_qtensor\n",
    b"ctorch._utils\n_rebuild_nested_tensor\n",
    b"ctorch._utils\n_rebuild_meta_tensor_no_storage\n",
    b"ctorch._utils\n_rebuild_device_tensor_from_numpy\n",
    b"ctorch._utils\n_rebuild_wrapper_subclass\n",
    b"ctorch._tensor\n_rebuild_from_type_v2\n",
    b"cnumpy._core.multiarray\n_reconstruct\n",
    b"cnumpy._core.multiarray\nscalar\n",
    b"cnumpy\nndarray\n",
    b"cnumpy\ndtype\n",
    b"cargparse\nNamespace\n",
)
_OPCODES = [ord(one.code) for one in pickletools.opcodes]
_NUMBERS = {"K": "<B", "M": "<H", "J": "<i"}
#: Bytes of the length before the argument of each opcode that has one.
_LENGTHS = {"X": 4, "\x8c": 1, "\x8d": 8, "U": 1, "T": 4, "C": 1, "B": 4, "\x8e": 8, "\x96": 8, "\x8a": 1, "\x8b": 4}
_TEXTS = (
    b"",
    b"storage",
    b"cpu",
    b"cuda:0",
    b"meta",
    b"data/0",
    b"..",
    b"\xff",
    b"a" * 300,
    b"\xed\xa0\x80",
    b"0",
    b"1",
)


def opcodes_of(data):
    """[(code, begin, end)] of the opcodes of a pickle, as far as they can be read."""
    found = []
    try:
        found = [(one.code, at) for one, _, at in pickletools.genops(data)]
    except Exception:  # whatever pickletools makes of a mutant of a mutant
        return []
    ends = [at for _, at in found[1:]] + [found[-1][1] + 1]
    return [(code, at, end) for (code, at), end in zip(found, ends, strict=True)]


def mutated(rng, data, others=()):
    """DATA, one pickle, changed in one to three places. OTHERS are pickles to take parts of."""
    for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
        ops = opcodes_of(data)
        if not ops:
            return sprinkle(rng, data)
        data = rng.choice(_WAYS)(rng, data, ops, others)
    return data


def _with(data, begin, end, new):
    return data[:begin] + new + data[end:]


def _opcode(rng, data, ops, others):
    """Another opcode in place of one, the argument kept."""
    _, at, _ = rng.choice(ops)
    return _with(data, at, at + 1, bytes([rng.choice(_OPCODES)]))


def _argument(rng, data, ops, others):
    """Another argument of an opcode that has one."""
    code, at, end = rng.choice([one for one in ops if one[2] - one[1] > 1] or ops)
    if code in _NUMBERS:
        form = _NUMBERS[code]
        size = struct.calcsize(form)
        value = rng.choice(BOUNDARIES) % (1 << 8 * size)
        return _with(data, at + 1, end, value.to_bytes(size, "little"))
    if code in ("q", "h"):
        return _with(data, at + 1, end, bytes([rng.choice((0, 1, 2, 255, rng.randrange(256), rng.randrange(30)))]))
    if code in ("r", "j"):
        return _with(data, at + 1, end, struct.pack("<I", rng.choice((0, 1, 300, 2**31, 2**32 - 1, rng.randrange(40)))))
    if code == "\x95":
        return _with(data, at + 1, end, struct.pack("<Q", rng.choice((0, 1, 2**63, len(data), rng.randrange(400)))))
    if code in _LENGTHS:
        width = _LENGTHS[code]
        if rng.random() < 0.5:  # the length alone
            value = rng.choice((*BOUNDARIES, end - at - width, end - at - width - 2))
            return _with(data, at + 1, at + 1 + width, (value % (1 << 8 * width)).to_bytes(width, "little"))
        text = rng.choice((*_TEXTS, sprinkle(rng, data[at + 1 + width : end])))[: (1 << 8 * width) - 1]
        return _with(data, at + 1, end, len(text).to_bytes(width, "little") + text)
    if data[end - 1 : end] == b"\n":
        line = rng.choice(
            (b"", b"-1", b"9" * 30, b"1e400", b"nan", b"00", b"01", b"1L", b"0x1", b"1_0", b"\xff", b"'", b"a")
        )
        return _with(data, at + 1, end, line + b"\n")
    return _with(data, at + 1, end, sprinkle(rng, data[at + 1 : end]))


def _integer(rng, data, ops, others):
    """A number (of a shape, a stride, an offset, a storage) by another of any size."""
    chosen = [one for one in ops if one[0] in "KMJ\x8a\x8b" or one[0] == "I"]
    if not chosen:
        return _argument(rng, data, ops, others)
    _, at, end = rng.choice(chosen)
    value = rng.choice((0, 1, 2, -1, 3, 5, 2**31, 2**40, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30))
    raw = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    other = rng.choice((b"\x8a" + bytes([len(raw)]) + raw, b"N", b"\x88", b"G" + struct.pack(">d", float(value)), b")"))
    return _with(data, at, end, b"\x8a" + bytes([len(raw)]) + raw if rng.random() < 0.7 else other)


def _remove(rng, data, ops, others):
    first = rng.randrange(len(ops))
    last = min(len(ops) - 1, first + rng.choice((0, 0, 0, 1, 3)))
    return _with(data, ops[first][1], ops[last][2], b"")


def _repeat(rng, data, ops, others):
    first = rng.randrange(len(ops))
    last = min(len(ops) - 1, first + rng.choice((0, 0, 1, 5)))
    run = data[ops[first][1] : ops[last][2]]
    at = rng.choice(ops)[1] if rng.random() < 0.3 else ops[last][2]
    return _with(data, at, at, run * rng.choice((1, 1, 2, 20)))


def _swap(rng, data, ops, others):
    one, other = sorted((rng.choice(ops), rng.choice(ops)), key=lambda op: op[1])
    return (
        data[: one[1]] + data[other[1] : other[2]] + data[one[2] : other[1]] + data[one[1] : one[2]] + data[other[2] :]
        if one[2] <= other[1]
        else data
    )


def _insert(rng, data, ops, others):
    """An opcode that no pickler would write there."""
    at = rng.choice(ops)[1]
    new = rng.choice(
        (
            EVIL,
            EVIL_STACK,
            rng.choice(NAMES),
            rng.choice(NAMES) + b")R",
            rng.choice(NAMES) + b"K\x05\x85R",
            rng.choice(NAMES) + b"N}\x92",
            b"N",
            b"0",
            b"1",
            b"2",
            b"(",
            b".",
            b"]",
            b"}",
            b")",
            b"\x85",
            b"\x8f",
            b"\x94",
            b"2\x86",
            b"2s",
            b"2a",
            b"2b",
            b"Q",
            b"R",
            b"b",
            b"o",
            b"e",
            b"u",
            b"\x97",
            b"\x98",
            b"\x82\x01",
            b"\x80\x05",
            b"\x80\x00",
            b"\x95" + struct.pack("<Q", rng.randrange(60)),
            b"P0\n",
            b"q\x00",
            b"h\x00",
            b"r\xff\xff\xff\x7f",
            b"p12345678901234567890\n",
            bytes([rng.choice(_OPCODES)]) + rng.randbytes(rng.choice((0, 1, 4, 8))),
        )
    )
    return _with(data, at, at, new * (1 if rng.random() < 0.9 else rng.choice((2, 50))))


def value(rng, depth=3):
    """The opcodes of a value that may or may not make sense where it stands."""
    way = rng.randrange(16 if depth else 9)
    if way < 3:
        number = rng.choice((0, 1, 2, 3, 4, 12, -1, 2**31, 2**62, 2**63, -(2**63)))
        raw = number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)
        return b"\x8a" + bytes([len(raw)]) + raw
    if way < 6:
        return rng.choice((b"N", b"\x88", b"\x89", b")", b"]", b"}", b"G" + struct.pack(">d", 0.5), *NAMES))
    if way < 8:
        return b"h" + bytes([rng.randrange(24)])
    if way == 8:
        text = rng.choice(_TEXTS)
        return rng.choice((b"X", b"T", b"B")) + struct.pack("<I", len(text)) + text
    inner = [value(rng, depth - 1) for _ in range(rng.choice((0, 1, 2, 2, 3, 4, 6)))]
    if way < 12:
        return b"(" + b"".join(inner) + b"t"
    if way == 12:
        return b"](" + b"".join(inner) + b"e"
    if way == 13:
        return b"}(" + b"".join(inner[: len(inner) // 2 * 2]) + b"u"
    return called(rng, depth - 1)


def called(rng, depth=3):
    """A call of a function that torch or numpy knows, with arguments that it may have or not."""
    kind, key = rng.choice((b"Float", b"Long", b"Untyped", b"QInt8", b"Odd")), rng.choice((b"0", b"1", b"2", b"x"))
    size = value(rng, 0) if rng.random() < 0.2 else b"K" + bytes([rng.choice((0, 1, 4, 24))])
    storage = b"(X\7\0\0\0storagectorch\n" + kind + b"Storage\nX\1\0\0\0" + key + b"X\3\0\0\0cpu" + size + b"tQ"
    tensor = (
        storage
        + b"K\0"
        + value(rng, 1)
        + value(rng, 1)
        + b"\x89"
        + rng.choice((b"}", b"ccollections\nOrderedDict\n)R"))
    )
    inner = [value(rng, depth) if depth > 0 else b"N" for _ in range(rng.choice((0, 1, 2, 3, 5, 7)))]
    args = rng.choice((tensor, tensor + b"".join(inner), b"".join(inner), storage + b"".join(inner)))
    return rng.choice(NAMES) + b"(" + args + b"t" + rng.choice((b"R", b"R", b"R", b"\x81", b"R}b", b"R(K\1K\2tb"))


def _call(rng, data, ops, others):
    """A call where a value stands, or beside one."""
    _, at, end = rng.choice(ops)
    return _with(data, at, end if rng.random() < 0.5 else at, called(rng) if rng.random() < 0.7 else value(rng))


def _deep(rng, data, ops, others):
    """Nesting that goes deep, or grows by doubling."""
    at = rng.choice(ops)[1]
    count = rng.choice((10, 60, 3000))
    new = rng.choice(
        (b"\x85", b"2\x86", b"]2a", b"]\x94" * 2 + b"a", b"(", b"l(", b"}N2s", b"\x85\x940h\x00", b"Nq\x002\x86q\x00")
    )
    return _with(data, at, at, b"N" + new * count)


def _take_from_another(rng, data, ops, others):
    if not others:
        return _repeat(rng, data, ops, others)
    other = rng.choice(others)
    theirs = opcodes_of(other)
    if not theirs:
        return data
    first = rng.randrange(len(theirs))
    last = min(len(theirs) - 1, first + rng.choice((1, 5, 40)))
    at = rng.choice(ops)[1]
    return _with(data, at, at, other[theirs[first][1] : theirs[last][2]])


def _name(rng, data, ops, others):
    """Another class or function in place of one."""
    names = [one for one in ops if one[0] in "c\x93"]
    if not names:
        return _insert(rng, data, ops, others)
    code, at, end = rng.choice(names)
    new = rng.choice(NAMES)
    return _with(data, at, end, new if code == "c" else b"00" + new)


def _cut(rng, data, ops, others):
    return data[: rng.choice(ops)[rng.choice((1, 2))]] + rng.choice((b"", b"."))


def _sprinkle(rng, data, ops, others):
    return sprinkle(rng, data)


def _cut_anywhere(rng, data, ops, others):
    return cut(rng, data)


_WAYS = (
    _opcode,
    *(_argument,) * 4,
    *(_integer,) * 4,
    _remove,
    _repeat,
    _swap,
    *(_insert,) * 4,
    *(_call,) * 3,
    _deep,
    _take_from_another,
    *(_name,) * 2,
    _cut,
    *(_sprinkle,) * 2,
    _cut_anywhere,
)
