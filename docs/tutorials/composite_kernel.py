"""A composite kernel: a series with a trend, a yearly cycle that changes slowly, and noise.

python docs/tutorials/composite_kernel.py
"""

import numpy as np

import integrand
from integrand import RBF, Gamma, HalfNormal, LogNormal, Periodic

# Forty years of monthly values, made here: growth, a seasonal cycle, measurement noise.
rng = np.random.default_rng(0)
year = np.arange(0.0, 40.0, 1.0 / 12.0)
value = 315.0 + 0.9 * year + 0.012 * year**2 + 3.0 * np.sin(2.0 * np.pi * year) + 0.6 * np.cos(4.0 * np.pi * year)
value += 0.3 * rng.standard_normal(len(year))
past = year < 34.0

# The period is known, so it is a number; everything else has a prior. A prior speaks of standardised data: `sd` is
# what one unit of standardised time is in years.
sd = year[past].std()
trend = RBF(lengthscale=LogNormal(1.0, 1.0), scale=HalfNormal(2.0), name="trend")
season = Periodic(period=1.0 / sd, lengthscale=Gamma(2.0, 1.0), name="cycle") * RBF(
    lengthscale=LogNormal(1.0, 1.0), scale=HalfNormal(1.0), name="drift"
)
kernel = trend + season.named("season")
print(kernel)

posterior = integrand.fit(
    year[past, None], value[past], kernel, columns=["year"], n_inducing=60, noise=HalfNormal(0.2), target_ess=200
)
print(posterior.verdict)
for name, draws in posterior.theta_original.items():
    print(f"{name:<28} {draws.mean():8.3g} ± {draws.std():.2g}")

# Six years ahead: the mixture over draws knows that the trend is uncertain.
ahead = posterior.predict(year[~past, None], include_noise=True)
low, high = ahead.interval(0.9)
inside = np.mean((low < value[~past]) & (value[~past] < high))
print(f"90 % intervals hold {inside:.0%} of the next six years; their width grows from ", end="")
print(f"{high[0] - low[0]:.1f} to {high[-1] - low[-1]:.1f}")
