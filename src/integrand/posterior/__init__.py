"""The result of a fit: draws of the hyperparameters and what they predict."""
