"""What is in a checkpoint as lines of text: for git, which shows how the lines of two versions differ, and for grep."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..checkpoint import Checkpoint
from ..errors import printable
from ..tensor import LazyTensor
from .comparing import numbers
from .comparing.contents import contents_of

#: Digits of a digest that are shown: enough to tell one training step from the next.
_DIGITS = 16


def content_lines(ckpt: Checkpoint, progress: Callable[[int], None] | None = None) -> Iterator[str]:
    """The format, and then a line for each tensor and each value, in the order of their names.

    A line depends on what it names and on nothing else: not on the path of the file, the order in it or its format.
    That of a tensor ends with a digest of its type, shape and values. All values are read.

    Args:
        ckpt: an open checkpoint.
        progress: called with the number of bytes that were read, after each tensor.
    """
    found = contents_of(ckpt, ckpt.state_dicts(), by_key=False)
    tensors = {**found.weights, **found.others}

    def line(item: tuple[str, LazyTensor]) -> tuple[str, str, int]:
        name, tensor = item
        digest = numbers.digest(tensor)[:_DIGITS] if tensor.storage.location != "meta" else "no values"
        return name, f"{tensor.dtype.name} {list(tensor.shape)}  {tensor.storage.location}  {digest}", tensor.nbytes

    texts = dict(found.entries)
    for name, text, size in numbers.in_threads(line, tensors.items(), lambda item: item[1].nbytes):
        texts[name] = text
        if progress is not None:
            progress(size)
    yield f"format  {ckpt.format}"
    for name in sorted(texts):
        yield f"{printable(name, 400)}  {texts[name]}"
