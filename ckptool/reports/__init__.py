"""Reports: what a checkpoint is, as a value, and that value as text."""
