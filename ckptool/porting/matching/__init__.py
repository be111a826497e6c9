"""Which module of one side is which of the other."""
