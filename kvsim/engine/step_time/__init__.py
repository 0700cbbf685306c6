"""Step-time models, one a file."""
