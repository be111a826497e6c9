"""Which ranks share the experts of a mixture under ZeRO, and what their experts are called in the whole model.

A group of parameters that `partition_count` says was divided among fewer ranks than there are holds experts. Ranks are
then in teams of that size: each team has experts of its own, divided among its ranks. Every rank numbers the experts
that it has from 0; in the files of experts they are numbered through, those of the first team first.

    4 ranks, ep_size 2                                   team 0     team 1
    as a rule                                            0, 2       1, 3
    "use_data_before_expert_parallelism": true           0, 1       2, 3

Source: deepspeed/utils/groups.py (`_create_expert_and_data_parallel`) and engine.py (`_save_moe_checkpoint`) of 0.19.8.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ...errors import CannotCarry, printable
from .pickled import entries_of

_EXPERT = re.compile(
    r"(?P<before>.*\bdeepspeed_moe\.experts\.deepspeed_experts\.)(?P<number>\d{1,9})(?P<rest>\..*)", re.ASCII
)
_DATA_FIRST = "use_data_before_expert_parallelism"


def teams_of(world: int, size: int, config: Any) -> list[range]:
    """The ranks of each team of SIZE out of WORLD, by the settings of DeepSpeed (`ds_config`).

    Raises:
        CannotCarry: there are no teams of that size.
    """
    if world % size:
        raise CannotCarry(f"divides parameters among {size:,} of {world:,} ranks, which are no teams of one size")
    count = world // size
    if entries_of(config).get(_DATA_FIRST) is True:
        return [range(first, first + size) for first in range(0, world, size)]
    return [range(first, world, count) for first in range(count)]


def names_in_model(names: Iterable[str], team: int, teams: int) -> dict[str, str]:
    """Name on a rank of a team -> name in the whole model.

    Raises:
        CannotCarry: one is no expert's, so that nothing says what it is called there.
    """
    if teams == 1:
        return {name: name for name in names}
    found = {name: _EXPERT.fullmatch(name) for name in names}
    held: dict[str, int] = {}
    for name, match in found.items():
        if match is None:
            raise CannotCarry(
                f"divides {printable(repr(name), 80)} among fewer ranks than others, and it is no expert's by its name"
            )
        held[match["before"]] = max(held.get(match["before"], 0), int(match["number"]) + 1)
    return {
        name: f"{match['before']}{team * held[match['before']] + int(match['number'])}{match['rest']}"
        for name, match in found.items()
        if match is not None
    }
