"""Inputs that a model takes, found by running it: where a try stops says what the next one is.

A first guess is made from the names of arguments and the first layers (`inputs`). A try that fails has used some of the
weights before; the operation that could not be done, what its tensors were made of, and what the message says lead to
others, of which the one that gets furthest is taken up first.
"""

from __future__ import annotations

from .attempt import Budget, flat
from .search import find_inputs, working_inputs

__all__ = ["Budget", "find_inputs", "flat", "working_inputs"]
