"""What is wrong with a file, and what makes it load (see `ckptool.doctor`)."""
