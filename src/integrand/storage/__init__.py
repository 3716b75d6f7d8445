"""Model files, run directories, and what they say about models."""
