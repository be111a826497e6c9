"""From another framework to torch: what the readers of its files state of their tensors decides before names do."""
