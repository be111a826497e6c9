"""Bring both sides of a port into the common form, however their tensors are stored."""
