"""Programs that archives carry beside their pickles, and that loaders run."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...errors import CheckpointError
from ...formats.zip.archive import Archive

MACHINE_CODE, SOURCE = "machine code", "source code of Python"
EXPRESSION = "an expression that torch evaluates as Python"
LAMBDA = "a Lambda layer, whose code Keras runs"
#: What a program beside the pickles may be.
PROGRAMS = frozenset([MACHINE_CODE, SOURCE, EXPRESSION, LAMBDA])

_MOST_TEXT = 1 << 28
#: Functions that torch writes into the symbolic sizes of an exported program.
_FUNCTIONS = frozenset(
    """Add Mul Integer Rational Float Symbol
    Max Min Mod Abs Pow FloorDiv CleanDiv CeilDiv CeilToInt FloorToInt TruncToInt TruncToFloat RoundToInt
    RoundDecimal IntTrueDiv FloatTrueDiv PythonMod ModularIndexing Where ToFloat FloatPow PowByNatural LShift RShift
    BitwiseFn_bitwise_and BitwiseFn_bitwise_or BitwiseFn_bitwise_xor Identity And Or Not Eq Ne Lt Le Gt Ge Piecewise
    floor ceiling sqrt OpaqueUnaryFn_sqrt OpaqueUnaryFn_log OpaqueUnaryFn_exp""".split()
)
_EXPRESSION = re.compile(rb'"expr_str"\s*:\s*"((?:[^"\\]|\\.)*)"')
_LAMBDA = re.compile(r'"(?:class_name|registered_name)"\s*:\s*"(?:Lambda|__lambda__)"')
_DERIVED = re.compile(rb'"(?:derived|dims)"\s*:')


def program_in(head: bytes) -> str | None:
    """What machine code begins with HEAD, or None."""
    if head.startswith((b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xce\xfa\xed\xfe", b"\xca\xfe\xba\xbe")):
        return MACHINE_CODE
    if head.startswith(b"MZ") and head[(at := int.from_bytes(head[0x3C:0x40], "little")) : at + 4] == b"PE\0\0":
        return MACHINE_CODE
    return None


def programs_of_keras(metadata: Mapping[str, str]) -> list[tuple[str, str]]:
    """The code in the configuration of a model of Keras: (what it is, where)."""
    return [(LAMBDA, key) for key, text in metadata.items() if key.startswith("keras.") and _LAMBDA.search(text)]


def programs_of_archive(archive: Archive, place: str, kind: str) -> list[tuple[str, str]]:
    """What a loader of this kind of archive runs beside its pickles: (what it is, where)."""
    found = []
    for name in archive.members:
        here = f"{place}/{name}".lstrip("/")
        if kind == "torch.package archive" and name.lower().endswith((".py", ".pyc", ".so", ".pyd")):
            found.append((SOURCE, here))
        elif kind == "exported program" and name.endswith(".json") and _evaluates(archive, name):
            found.append((EXPRESSION, here))
    return found


def _evaluates(archive: Archive, name: str) -> bool:
    """Whether a program has sizes that are more than sums and products of symbols: sympy evaluates what it is given."""
    try:
        text = archive.read(name, _MOST_TEXT)
    except CheckpointError:
        return True
    if _DERIVED.search(text):
        return True
    return not all(_is_arithmetic(match[1].decode("utf-8", "replace")) for match in _EXPRESSION.finditer(text))


def _is_arithmetic(text: str) -> bool:
    text = re.sub(r"'[a-zA-Z][a-zA-Z0-9]*(_[a-zA-Z0-9]+)*'", "name", text)  # Symbol('s0', integer=True)
    if re.search(r"[^\w\s+\-*/(),.<>=&|~%]|__|\)\s*\(|[^\W\d]\s*\.|\.\s*[^\W\d]|\d\s*\(", text):
        return False
    return all(name in _FUNCTIONS for name in re.findall(r"([^\W\d]\w*)\s*\(", text))
