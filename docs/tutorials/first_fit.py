"""A first fit: integrate over the hyperparameters of a GP, look at the verdict, predict, save.

python docs/tutorials/first_fit.py
"""

import tempfile
from pathlib import Path

from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

from integrand import SparseGPRegressor

X, y = load_diabetes(return_X_y=True, as_frame=True, scaled=False)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

gp = SparseGPRegressor(n_inducing=50, random_state=0).fit(X_train, y_train)
print(gp.diagnostics_)

# Means and 90 % intervals of new observations, in the units of y.
mean, quantiles = gp.predict(X_test.iloc[:3], quantiles=[0.05, 0.95])
for m, (low, high), seen in zip(mean, quantiles, y_test, strict=False):
    print(f"{m:6.1f}  [{low:6.1f}, {high:6.1f}]  observed {seen:.0f}")

# One lengthscale for each column, here in standard deviations of the column: small ones matter most.
lengthscales = gp.posterior_.theta["lengthscale"].mean(axis=(0, 1))
print({name: round(float(v), 1) for name, v in zip(X.columns, lengthscales, strict=True)})
print(f"mean log density of the test set: {gp.log_density(X_test, y_test).mean():.3f}")

# One file with all that predicting needs, and nothing executable.
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "diabetes.integrand"
    gp.save(path)
    again = SparseGPRegressor.load(path)
    print("loaded:", again.predict(X_test.iloc[:3]).round(1))
