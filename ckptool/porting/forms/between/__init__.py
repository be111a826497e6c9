"""Bring tensors of other frameworks into torch's form, as their files state it, before names are compared."""
