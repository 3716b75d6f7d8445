"""Likelihoods p(y | f): how an observation scatters around the latent function, at one number f or at a Gaussian f.

The first half of each class is for training: JAX, elementwise, differentiable, good to about 1e-7. The second is for
prediction: NumPy, elementwise, good to about 1e-10. Gauss–Hermite rules lose all digits where the Gaussian is wide
against the likelihood; so integrals are closed where they can be, or run over the scale of a Gaussian (Student-t and
logistic are scale mixtures), or over a grid that is as fine as the integrand itself is narrow.
"""

from integrand.likelihoods.base import (
    LIKELIHOODS,
    Likelihood,
    Numbers,
    Value,
    describe_likelihood,
    likelihood_named,
    register_likelihood,
    registered_likelihoods,
    restore_likelihood,
)
from integrand.likelihoods.bernoulli import Bernoulli
from integrand.likelihoods.gaussian import Gaussian
from integrand.likelihoods.poisson import Poisson
from integrand.likelihoods.student_t import StudentT

__all__ = [
    "LIKELIHOODS",
    "Bernoulli",
    "Gaussian",
    "Likelihood",
    "Numbers",
    "Poisson",
    "StudentT",
    "Value",
    "describe_likelihood",
    "likelihood_named",
    "register_likelihood",
    "registered_likelihoods",
    "restore_likelihood",
]
