"""A prior to copy: chi-squared.

A prior is a function with the names of its arguments below `@register_prior`, which takes the median. The distribution
is NumPyro's of the same name; `distribution=` takes a function of the arguments instead.

    fit(X, y, RBF(lengthscale=Chi2(3)))
    integrand fit table.csv --target y --out model.integrand --import mypriors --kernel "rbf(lengthscale=chi2(3))"
"""

from scipy import special

from integrand import Prior
from integrand.priors import register_prior


@register_prior(median=lambda df: 2.0 * special.gammaincinv(0.5 * df, 0.5))
def Chi2(df: float) -> Prior:
    """Chi-squared with density ∝ x^(df/2 - 1) exp(-x/2)."""
    return Prior("Chi2", (df,))
