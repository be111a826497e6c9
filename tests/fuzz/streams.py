"""Mutants of what is read from front to back: legacy files, and the tar archives of torch 0.1."""

import io
import pickletools
import tarfile

from . import pickles
from .bytes import anyhow, cut, field, shuffle, sprinkle


def pickles_in(data, most=8):
    """[(begin, end)] of the pickles that follow one another from the start of DATA."""
    found, stream = [], io.BytesIO(data)
    while len(found) < most:
        begin = stream.tell()
        try:
            for _ in pickletools.genops(stream):
                pass
        except Exception:  # no pickle begins here
            break
        found.append((begin, stream.tell()))
    return found


def _inner(rng, data, others):
    """A stream with one of its pickles changed."""
    found = pickles_in(data)
    if not found:
        return anyhow(rng, data)
    begin, end = rng.choice(found)
    return data[:begin] + pickles.mutated(rng, data[begin:end], others) + data[end:]


def legacy(rng, data, others=()):
    """A mutant of what torch.save wrote before 1.6: five pickles, then storages, each behind its number of elements."""
    way = rng.random()
    if way < 0.6:
        return _inner(rng, data, others)
    ends = [end for _, end in pickles_in(data, 5)]
    behind = ends[-1] if ends else 0
    if way < 0.8 and len(data) - behind >= 8:  # a number of elements, or the numbers themselves
        at = rng.choice((behind, behind, rng.randrange(behind, len(data) - 7)))
        return field(rng, data, at, 8)
    if way < 0.9:
        return data[:behind] + rng.choice((shuffle, cut, sprinkle))(rng, data[behind:])
    return anyhow(rng, data)


#: (offset, size) of the fields of a tar header.
_FIELDS = ((0, 100), (100, 8), (124, 12), (136, 12), (148, 8), (156, 1), (157, 100), (257, 6), (263, 2), (345, 155))
_TEXTS = (
    *(
        b"",
        b"\0",
        b" ",
        b"0",
        b"-1",
        b"777777777777",
        b"\x80\0\0\0\0\0\0\0\0\0\0\x08",
        b"\xff" * 12,
        b"\xff" * 10 + b"\xfe\0",
        b"0x10",
        b"1_0",
        b"9",
    ),
    *(b"pickle", b"storages", b"tensors", b"sys_info", b"../x", b"/etc/x", b"x", b"g", b"L", b"5", b"2", b"\x7f" * 100),
)
_PAX = (
    b"11 size=100\n",
    b"9 path=x\n",
    b"30 path=pickle\n",
    b"x size=1\n",
    b"13 size=99999\n",
    b"0 a=b\n",
    b"12 size=-1\n",
)


def _summed(block):
    """A header with the checksum that fits it."""
    total = sum(block[:148]) + 8 * 32 + sum(block[156:])
    return block[:148] + b"%06o\0 " % total + block[156:]


def tar(rng, data, others=()):
    """A mutant of an archive of torch 0.1: a member with a header that fits it, or a header that is wrong."""
    way = rng.random()
    if way < 0.55:
        return _member(rng, data, others)
    headers = [at for at in range(0, len(data) - 511, 512) if data[at + 257 : at + 262] == b"ustar"]
    if way < 0.9 and headers:
        at = rng.choice(headers)
        block = data[at : at + 512]
        begin, size = rng.choice(_FIELDS)
        text = rng.choice((*_TEXTS, sprinkle(rng, block[begin : begin + size])))[:size]
        block = block[:begin] + text.ljust(size, rng.choice((b"\0", b" ", b"0"))) + block[begin + size :]
        if rng.random() < 0.2:  # an extended header, for which the next block is the text
            block = block[:156] + rng.choice((b"x", b"g", b"L")) + block[157:]
            data = data[: at + 512] + rng.choice(_PAX).ljust(512, b"\0") + data[at + 1024 :]
        return data[:at] + (_summed(block) if rng.random() < 0.8 else block) + data[at + 512 :]
    return anyhow(rng, data)


def _member(rng, data, others):
    """The archive with one member changed, and as long as its header says."""
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = [[member.name, archive.extractfile(member).read()] for member in archive]
    chosen = rng.choice(members)
    name, raw = chosen
    behind = pickles_in(raw, 1)
    if rng.random() < 0.75 or not behind:
        chosen[1] = _inner(rng, raw, others)
    elif len(raw) - behind[0][1] >= 8 and rng.random() < 0.7:
        chosen[1] = field(rng, raw, rng.randrange(behind[0][1], len(raw) - 7), rng.choice((4, 8)))
    else:
        chosen[1] = anyhow(rng, raw)
    if rng.random() < 0.1:
        members.remove(chosen)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=rng.randrange(3)) as archive:
        for name, raw in members:
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return out.getvalue()
