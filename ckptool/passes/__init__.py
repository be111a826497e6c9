"""What is done to a checkpoint, and gives another one: keys, places, values."""
