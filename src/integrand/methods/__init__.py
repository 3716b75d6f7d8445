"""Each method is a short file: a target, an algorithm, and the conditional it predicts with."""
