"""The first use of a parameter or buffer in a forward pass, and the facts that the rest of the pass shows about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..signature import Facts


@dataclass(slots=True)
class Use:
    """The first use of a parameter or buffer in a forward pass. Making a view of it (`w.t()`) is none; what takes the
    view uses it.

    Attributes:
        index: how many other tensors of the state dict were used before it.
        how: the function that took it ("linear"). For a member of a stack (`w[i]`), the product that took the member.
        facts: what the rest of the pass shows about it.
    """

    index: int
    how: str
    facts: Facts = field(default_factory=Facts)


#: Key of a parameter or buffer -> its first use, in the order of these. All notes about a pass share one such dict.
Uses = dict[str, Use]
