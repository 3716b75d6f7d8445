"""The picture of the two kinds of moves: run on a two-dimensional density that stands for a posterior of θ.

python docs/images/make_sampler.py        (writes sampler.svg beside this file)
"""

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

plt.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "integrand", "font.family": "sans-serif"})
BLUE, RED = "#0072b2", "#d55e00"


def log_density(x):
    """A curved ridge, as between noise and scale of a small data set."""
    return -0.5 * (x[..., 0] ** 2 + (x[..., 1] - 0.4 * x[..., 0] ** 2 + 0.4) ** 2 / 0.45)


def gradient(x):
    """Of `log_density`."""
    bend = (x[1] - 0.4 * x[0] ** 2 + 0.4) / 0.45
    return np.array([-x[0] + 0.8 * x[0] * bend, -bend])


def log_proposal(x, factor):
    """A Gaussian, up to a constant."""
    return -0.5 * np.sum(np.linalg.solve(factor, x.T) ** 2, axis=0)


def independence_moves(rng, n):
    """Proposals of a Gaussian fitted to the density, and whether the Metropolis-Hastings rule takes each."""
    factor = np.linalg.cholesky(np.array([[1.0, 0.0], [0.0, 0.8]]))
    proposals = rng.standard_normal((n, 2)) @ factor.T
    weight = log_density(proposals) - log_proposal(proposals, factor)
    accepted, current = np.zeros(n, bool), weight[0]
    for i in range(n):
        accepted[i] = np.log(rng.uniform()) < weight[i] - current
        current = weight[i] if accepted[i] else current
    return proposals, accepted


def trajectory(rng, x, steps=4, size=0.3):
    """A leapfrog trajectory of a fresh momentum."""
    p, path = rng.standard_normal(2), [x]
    for _ in range(steps):
        p = p + 0.5 * size * gradient(x)
        x = x + size * p
        p = p + 0.5 * size * gradient(x)
        path.append(x)
    return np.array(path)


rng = np.random.default_rng(4)
grid = np.stack(np.meshgrid(np.linspace(-3, 3, 200), np.linspace(-2.4, 2.8, 200)), axis=-1)
figure, axes = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained", sharex=True, sharey=True)
for ax in axes:
    ax.contour(grid[..., 0], grid[..., 1], np.exp(log_density(grid)), levels=5, colors="#bbbbbb", linewidths=1)
    ax.set(xlabel="first coordinate of θ", xticks=[], yticks=[])
axes[0].set_ylabel("second coordinate of θ")

proposals, accepted = independence_moves(rng, 60)
axes[0].plot(*proposals[~accepted].T, "x", color=RED, ms=5, label="rejected")
axes[0].plot(*proposals[accepted].T, "o", color=BLUE, ms=5, label="accepted")
axes[0].set_title("independence proposals:\nanywhere, one value of the bound each", fontsize=10)
axes[0].legend(loc="upper center", ncols=2, frameon=False)

for start in proposals[accepted][:6]:
    path = trajectory(rng, start)
    axes[1].plot(*path.T, "-", color=BLUE, lw=1.2)
    axes[1].plot(*path[0], "o", color="white", mec=BLUE, ms=5)
    axes[1].plot(*path[-1], "o", color=BLUE, ms=5)
axes[1].set_title("HMC transitions:\nnearby, a gradient for each step", fontsize=10)
figure.savefig(Path(__file__).with_name("sampler.svg"), metadata={"Date": None})
