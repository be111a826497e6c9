"""What trainers leave on the disk when every rank writes files of its own: read as the one checkpoint that they are."""
