"""Draws, what they predict, and how they are kept."""
