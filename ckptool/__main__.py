"""`python -m ckptool` is `ckptool`."""

from .cli import main

main()
