"""Names that Python 2 and 3 spell differently. Protocols 0 to 2 use those of Python 2 (`__builtin__.set`), later not.

A tree holds the names of Python 3, whatever it was read from, so that a class has one name. The tables are those of the
standard pickler.
"""

from __future__ import annotations

from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING, REVERSE_IMPORT_MAPPING, REVERSE_NAME_MAPPING


def python3_name(module: str, name: str) -> tuple[str, str]:
    """How Python 3 calls what a pickle of protocol 2 or less names."""
    if (module, name) in NAME_MAPPING:
        return NAME_MAPPING[module, name]
    return IMPORT_MAPPING.get(module, module), name


def python2_name(module: str, name: str) -> tuple[str, str]:
    """How a pickle of protocol 2 or less names what Python 3 calls so."""
    if (module, name) in REVERSE_NAME_MAPPING:
        return REVERSE_NAME_MAPPING[module, name]
    return REVERSE_IMPORT_MAPPING.get(module, module), name
