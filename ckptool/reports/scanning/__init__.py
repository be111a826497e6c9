"""What unpickling a file would do (see `ckptool.scan`)."""
