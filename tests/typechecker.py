"""The checker of signatures in tests: beartype, with int accepted where float is asked for, as type checkers do."""

import functools
from types import FunctionType

import jaxtyping
from beartype import BeartypeConf, beartype
from beartype.roar import BeartypeDecorHintPep3119Exception

_beartype = beartype(conf=BeartypeConf(is_pep484_tower=True))
_always = jaxtyping.jaxtyped
# A fit calls the same function thousands of times with the same shapes: of each only so many calls a test are checked.
_CALLS = 4
_test = 0


def checked(function):
    try:
        return _beartype(function)
    except BeartypeDecorHintPep3119Exception:  # a protocol that cannot be checked at run time
        return function


def next_test() -> None:
    """Check the first calls anew."""
    global _test
    _test += 1


def often_enough(*, typechecker):
    """In place of `jaxtyping.jaxtyped`: functions within functions, which are made at every call, are left alone."""

    def decorated(thing):
        if not isinstance(thing, FunctionType):
            return _always(thing, typechecker=typechecker)
        if "<locals>" in thing.__qualname__:
            return thing
        careful = _always(thing, typechecker=typechecker)
        calls, test = 0, _test

        @functools.wraps(thing)
        def first_calls(*args, **kwargs):
            nonlocal calls, test
            if test != _test:
                calls, test = 0, _test
            calls += 1
            return (careful if calls <= _CALLS else thing)(*args, **kwargs)

        return first_calls

    return decorated
