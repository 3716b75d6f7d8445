"""Several processes that fit as one: joining them, telling each other, and running programs at the same time."""

from integrand.distributed.ranks import Ranks, join

__all__ = ["Ranks", "join"]
