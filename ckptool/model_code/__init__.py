"""Import, build and trace the models that a user names in code."""
