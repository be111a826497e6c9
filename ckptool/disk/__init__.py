"""Bytes: read from files and URLs, and written to files and folders that are whole or untouched."""
