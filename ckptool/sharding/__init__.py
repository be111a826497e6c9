"""Tensors that the ranks of a run share: which part of each a rank holds, and how that part is read."""
