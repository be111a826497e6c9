"""Changes that need no knowledge of a format, and the numbers that programs trip over."""

BOUNDARIES = (
    *(0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 127, 128, 129, 254, 255, 256, 257, 4095, 4096, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF),
    *(0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFE, 0xFFFFFFFF, 2**32, 2**40, 2**53, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
)


def sprinkle(rng, data):
    """A few bits or bytes changed."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 8)) if made else 0):
        at = rng.randrange(len(made))
        if rng.random() < 0.5:
            made[at] ^= 1 << rng.randrange(8)
        else:
            made[at] = rng.choice((0, 1, 0x28, 0x2E, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(made)


def cut(rng, data):
    """The end lost, or something behind it."""
    if rng.random() < 0.6:
        return data[: rng.randrange(len(data) + 1)]
    return data + rng.choice((b"\0", b"\n", b"}", data[-64:], rng.randbytes(rng.choice((1, 8, 512)))))


def shuffle(rng, data):
    """A run of bytes removed, repeated, moved or zeroed."""
    begin, end = sorted((rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)))
    end = min(end, begin + rng.choice((1, 4, 8, 64, 4096)))
    run = data[begin:end]
    other = rng.randrange(len(data) + 1)
    return rng.choice(
        (
            data[:begin] + data[end:],
            data[:end] + run + data[end:],
            data[:begin] + bytes(len(run)) + data[end:],
            data[:other] + run + data[other:],
            data[:begin] + rng.randbytes(len(run)) + data[end:],
        )
    )


def field(rng, data, at, size, order="little"):
    """The number of SIZE bytes at AT by another: near to what it was, or on a boundary."""
    old = int.from_bytes(data[at : at + size], order)
    new = rng.choice((old + 1, old - 1, old * 2, old ^ 1 << rng.randrange(8 * size), len(data), len(data) - at))
    new = rng.choice((new, rng.choice(BOUNDARIES), old + rng.choice((4, 8, 16, 64, -4, -8, -16, -64))))
    return data[:at] + (new % (1 << 8 * size)).to_bytes(size, order) + data[at + size :]


def anyhow(rng, data):
    """One of the above."""
    return rng.choice((sprinkle, sprinkle, cut, shuffle))(rng, data)
