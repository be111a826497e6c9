"""Models in code: importing, building and tracing what a user names."""
