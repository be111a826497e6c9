"""Mutants of JSON and of safetensors files, whose header is JSON: values, names, offsets, and the text itself."""

import json

from .bytes import BOUNDARIES, anyhow, field, sprinkle

_VALUES = (
    *(
        None,
        True,
        False,
        -1,
        0,
        1,
        0.5,
        1e400,
        10**30,
        "",
        "F32",
        "F64",
        "BOOL",
        "F4",
        "F8_E8M0",
        "x",
        "../x",
        "a/b",
        "\0",
    ),
    *("\ud800", [], {}, [0], [0, 0], [-1], [2**62, 2**62], [2**63], [[]], {"a": 1}, "1", *BOUNDARIES[-10:]),
)
_TEXTS = (
    *(
        b"NaN",
        b"Infinity",
        b"-0",
        b"1e5",
        b"01",
        b"9" * 5000,
        b"[" * 3000,
        b'{"a":' * 3000,
        b'"',
        b"\\ud800",
        b"\\u0000",
    ),
    *(b"\xff", b"\xed\xa0\x80", b"/**/", b",", b"'", b"\xef\xbb\xbf", b" ", b"\0", b"1.0", b"true", b"null"),
)


def places(value, path=()):
    """The paths of all values in VALUE."""
    yield path
    if isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, key))


def changed(rng, root):
    """A value of JSON with one thing in it changed."""
    path = rng.choice(list(places(root)))
    if not path:
        return rng.choice((root, [root], rng.choice(_VALUES)))
    holder = root
    for step in path[:-1]:
        holder = holder[step]
    way = rng.randrange(8)
    if way == 0:
        del holder[path[-1]]
    elif way == 1 and isinstance(holder, dict):
        holder[rng.choice(("w", "", "__metadata__", "dtype", "shape", "a.b", "\ud800", "\0", "x" * 300))] = holder.pop(
            path[-1]
        )
    elif way == 2 and isinstance(holder, dict):
        holder[rng.choice(("new", "__metadata__", "module.w"))] = holder[path[-1]]
    elif way == 3:
        other = root
        for step in rng.choice(list(places(root))):
            other = other[step]
        holder[path[-1]] = json.loads(json.dumps(other))
    elif way == 4 and type(holder[path[-1]]) is int:
        old = holder[path[-1]]
        holder[path[-1]] = rng.choice((old + 1, old - 1, -old, old * 2, old + 4, old - 4, float(old), str(old)))
    elif way == 5 and isinstance(holder[path[-1]], str):
        holder[path[-1]] = holder[path[-1]] + rng.choice(("x", "/", "\0", "\x1b[31m", "\u202e", "é"))
    elif way == 6 and isinstance(holder[path[-1]], str) and holder[path[-1]][:1] == "{":  # JSON within JSON: our note
        holder[path[-1]] = json_text(rng, holder[path[-1]].encode()).decode("utf-8", "replace")
    else:
        holder[path[-1]] = rng.choice(_VALUES)
    return root


def json_text(rng, raw):
    """A text of JSON, changed in what it says or in how it is written."""
    if rng.random() < 0.75:
        try:
            root = json.loads(raw)
            for _ in range(rng.choice((1, 1, 2, 3))):
                root = changed(rng, root)
            raw = json.dumps(root, ensure_ascii=rng.random() < 0.5).encode("utf-8", "surrogatepass")
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            return sprinkle(rng, raw)
    if rng.random() < 0.35:
        at = rng.randrange(len(raw) + 1)
        raw = rng.choice((raw[:at] + rng.choice(_TEXTS) + raw[at:], sprinkle(rng, raw), anyhow(rng, raw)))
    return raw


def safetensors(rng, data):
    """A mutant of a safetensors file."""
    length = int.from_bytes(data[:8], "little")
    header, tensors = data[8 : 8 + length], data[8 + length :]
    way = rng.randrange(12)
    if way < 8:
        header = json_text(rng, header.rstrip())
        if rng.random() < 0.5:
            header += b" " * rng.choice((-len(header) % 8, 1, 300))
        length = len(header)
    if way in (7, 8, 9):
        tensors = anyhow(rng, tensors)
    made = length.to_bytes(8, "little") + header + tensors
    if way in (10, 11) or rng.random() < 0.1:
        made = field(rng, made, 0, 8)
    return anyhow(rng, made) if way == 9 else made
