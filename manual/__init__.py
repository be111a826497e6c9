"""What is made of the package for readers: the documentation site, the man page, pictures and drawings of formats."""
