"""Several processes that do one piece of work: how they find each other, divide it, agree, and end together.

Without a launcher there is one process, `None` stands for the group, and nothing here imports torch.
"""

from .division import balance, cut_evenly, divide
from .group import Group, RankFailed
from .launcher import is_launched, say_nothing

__all__ = ["Group", "RankFailed", "balance", "cut_evenly", "divide", "is_launched", "say_nothing"]
