"""Adapters (LoRA and its relatives): small tensors that change a base model, and merging them into it."""
