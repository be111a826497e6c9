"""How files of torch and safetensors begin, for those who look at a file without opening it as a checkpoint."""

from __future__ import annotations

import re

#: The number that a file of torch before 1.6 begins with, pickled.
LEGACY_MAGIC = 0x1950A86A20F9469CFC6C
#: Bytes of the header of a safetensors file, as the reference limits them.
LARGEST_HEADER = 100_000_000
_LEGACY_BYTES = LEGACY_MAGIC.to_bytes(10, "little")


def is_legacy(head: bytes) -> bool:
    """Whether HEAD begins with the pickled magic number of torch-legacy, in any pickle protocol that can hold it."""
    return _LEGACY_BYTES in head[:24] or head.startswith(b"L%dL\n" % LEGACY_MAGIC)


def is_safetensors(head: bytes) -> bool:
    """Whether HEAD may be the beginning of a safetensors file: a header length that makes sense, then `{`."""
    return len(head) > 8 and head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= LARGEST_HEADER


def is_tar(head: bytes) -> bool:
    """Whether HEAD begins with a tar header whose checksum holds; torch.load believes it before anything else."""
    checksum = head[148:156].split(b"\0")[0]
    if len(head) < 512 or not (
        checksum[:1] in (b"\x80", b"\xff") or re.search(rb"[0-7]", checksum) or _sums_to_zero(head)
    ):
        return False  # which spares most files the import
    import tarfile

    try:
        tarfile.TarInfo.frombuf(head[:512], "utf-8", "surrogateescape")
    except (tarfile.HeaderError, ValueError):
        return False
    return True


def _sums_to_zero(head: bytes) -> bool:
    """Whether a header without a checksum fits it: some readers add the bytes as signed numbers."""
    rest = head[:148] + head[156:512]
    return 256 + sum(rest) - 256 * sum(byte > 127 for byte in rest) == 0
