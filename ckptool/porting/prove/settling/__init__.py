"""Settle doubts by equal outputs: the result of a proof as a mapping, with its account."""
