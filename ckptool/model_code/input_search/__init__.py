"""Find inputs that a model takes by running it: the error of a failed try suggests the next one.

The first guesses come from the names of arguments and from the first layers (`inputs`). A failed try has used some of
the weights before it stopped. The failed operation, the inputs that its tensors come from, and the message suggest
other inputs, and the try that got furthest is continued first. SPEC is the inputs of one try, with an `InputSpec` for
each tensor, ONE is one of these, and STOP says how a try failed.
"""

from __future__ import annotations

from .attempt import Budget
from .search import find_inputs, working_inputs

__all__ = ["Budget", "find_inputs", "working_inputs"]
