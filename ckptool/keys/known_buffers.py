"""The table of buffers that are known by their names: what they are called in any library, and what is in them.

Dropping and filling buffers, optimizers, tracing, matching and applying mappings all know them from here.
A name is the last component of a key. The causal mask of GPT-2 is called `bias` as many parameters are; only its sizes
tell, so that it has no row.
"""

from __future__ import annotations

from enum import Enum


class Holds(Enum):
    """What is in a buffer."""

    STATISTIC = "what a norm has measured in training; only the file has it"
    COUNTER = "how often something was used; 0 where nothing is known"
    FREQUENCIES = "frequencies of rotary embeddings"
    PLACES = "places and positions, counted by code"
    MASK = "what an attention may see"
    TRACE = "what a tool counted and left in a module"


#: Name -> what is in it.
BUFFERS: dict[str, Holds] = {
    "running_mean": Holds.STATISTIC,
    "running_var": Holds.STATISTIC,
    "num_batches_tracked": Holds.COUNTER,  # of batch norms; torch since 0.4.1
    "position_ids": Holds.PLACES,  # transformers before 4.31
    "relative_position_index": Holds.PLACES,  # Swin, BEiT
    "relative_coords_table": Holds.PLACES,  # the second Swin
    "inv_freq": Holds.FREQUENCIES,  # transformers
    "freqs_cis": Holds.FREQUENCIES,  # Llama
    "freqs_cos": Holds.FREQUENCIES,  # llama2.c, beside freqs_sin
    "freqs_sin": Holds.FREQUENCIES,
    "attn_mask": Holds.MASK,
    "causal_mask": Holds.MASK,
    "tril": Holds.MASK,  # the GPT that lectures write
    "masked_bias": Holds.MASK,  # what GPT-2 writes where its mask is 0
    "total_ops": Holds.TRACE,  # thop
    "total_params": Holds.TRACE,
}


def named(*contents: Holds) -> frozenset[str]:
    """The names of the buffers that hold one of these."""
    return frozenset(name for name, holds in BUFFERS.items() if holds in contents)


#: What models compute themselves: a file without them has lost nothing.
COMPUTED = named(*(set(Holds) - {Holds.STATISTIC}))
STATISTICS = named(Holds.STATISTIC)
FREQUENCIES = named(Holds.FREQUENCIES)
COUNTERS = named(Holds.COUNTER)


def holds(key: str) -> Holds | None:
    """What is in the tensor of a KEY, if it is a known buffer."""
    return BUFFERS.get(key.rpartition(".")[2])


def is_counter(key: str) -> bool:
    """Whether it counts, so that 0 stands for it where nothing is known."""
    return holds(key) is Holds.COUNTER


__all__ = ["BUFFERS", "COMPUTED", "COUNTERS", "FREQUENCIES", "STATISTICS", "Holds", "holds", "is_counter", "named"]
