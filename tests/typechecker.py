"""The checker of signatures in tests: beartype, with int accepted where float is asked for, as type checkers do."""

from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintPep3119Exception

_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))


def checked(function):
    try:
        return _beartype(function)
    except BeartypeDecorHintPep3119Exception:  # a protocol that cannot be checked at run time
        return function
