"""How fast ckptool is, next to a plain copy of the same file and to the way through torch: `python -m benchmarks`."""
