"""Pickles: read, written and followed, and never run."""
