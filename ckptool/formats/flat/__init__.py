"""Flat sets of tensors under their names: safetensors files, and folders of shards with an index."""
