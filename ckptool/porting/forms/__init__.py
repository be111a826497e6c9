"""One form for both sides of a port, whatever way their tensors are kept."""
