"""Tags of devices, as torch writes them: `cpu`, `cuda:1`.

Those that it can restore are in `torch.serialization` of 2.13.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

_DEVICES = ("cuda", "mps", "xpu", "hpu", "mtia", "meta", "npu", "xla", "privateuseone")
#: A tag, in two groups: the kind, and the number, for which rules may say `*`.
TAG = re.compile(rf"(cpu|{'|'.join(_DEVICES)})(?::([0-9]{{1,4}}|\*))?\Z")


def is_device(args: Sequence[Any]) -> bool:
    """Whether `torch.device(*args)` can be made: a tag of torch's, or a kind and a number."""
    if not 1 <= len(args) <= 2 or not isinstance(args[0], str):
        return False
    match = TAG.match(args[0])
    if match is None or match[2] == "*":
        return False
    return len(args) == 1 or (match[2] is None and type(args[1]) is int and 0 <= args[1] < 128)
