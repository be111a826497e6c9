"""Pair the units of two sides."""
