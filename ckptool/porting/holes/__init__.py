"""What goes into each tensor of the target, matched or not."""
