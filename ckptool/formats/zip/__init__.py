"""Zip archives, as PyTorch writes and reads them."""
