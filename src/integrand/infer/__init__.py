"""Optimisers and samplers of log densities: nothing here knows what a GP is."""
