import jax.numpy as jnp
import pytest
from jaxtyping import Float, TypeCheckError

import typechecker
from integrand.linalg import cholesky


def test_signatures_of_the_library_are_checked():
    with pytest.raises(TypeCheckError):
        cholesky(jnp.ones((2, 3)))


def test_of_each_function_only_the_first_calls_in_a_test_are_checked():
    def total(x: Float[jnp.ndarray, "N N"]) -> float:
        return float(x.sum())

    total.__qualname__ = "total"  # as if it stood at the top of a file
    total = typechecker.often_enough(typechecker=typechecker.checked)(total)
    wrong = jnp.ones((2, 3))
    for _ in range(typechecker._CALLS):
        with pytest.raises(TypeCheckError):
            total(wrong)
    assert total(wrong) == 6.0
    typechecker.next_test()
    with pytest.raises(TypeCheckError):
        total(wrong)
