"""When draws are enough: R-hat and ESS of everything that has to mix, looked at twice.

What has to mix are the hyperparameters, the log density, and the directions in which draws are widest and narrowest.
The last two stand for predictions, whose own cost is a factorisation for each draw: a prediction is a smooth function
of the hyperparameters, and what it depends on most is a direction such as the ratio of signal to noise. Where several
modes are known, being in each of them has to mix too: chains that started in different modes then agree on their mass.

Estimates of ESS vary. A rule that is asked time and again is fulfilled too early by luck, so it has to hold once more
after 1.5 times the draws at which it first held.
"""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from integrand.infer.base import Chains
from integrand.infer.convergence import Convergence, convergence
from integrand.infer.modes import Mode, membership

# Convergence is first looked at when there are this many draws per chain, then every 25; and once more after this many
# times the draws at which it first held.
FIRST_CHECK, CHECK_EVERY, AGAIN = 100, 25, 1.5
# A mode whose share of the draws is smaller than this is not counted: R-hat of a few draws says nothing.
_LEAST_SHARE = 0.02


def mixing(chains: Chains, n_theta: int, modes: Sequence[Mode] = ()) -> Float[np.ndarray, "C n Q"]:
    """What has to mix: hyperparameters first, then the log density, two directions, and membership of modes."""
    phi = chains.x[:, :, :n_theta]
    columns = [phi, chains.log_density[:, :, None]]
    flat = phi.reshape(-1, n_theta)
    if n_theta > 1 and len(flat) > n_theta and np.all(np.isfinite(flat)):
        sd = np.maximum(flat.std(axis=0), np.finfo(float).tiny)
        _, directions = np.linalg.eigh(np.cov((flat / sd).T))
        columns.append(phi / sd @ directions[:, [0, -1]])
    if len(modes) > 1 and chains.x.shape[2] == n_theta:
        group = membership(modes, phi)
        inside = [(group == k) + 0.0 for k in range(len(modes))]
        columns += [a[:, :, None] for a in inside if _LEAST_SHARE < a.mean() < 1.0 - _LEAST_SHARE]
    return np.concatenate(columns, axis=2)


class StoppingRule:
    """Looks at draws as they come; how many it wants depends on the draws alone.

    Looks are at 100 draws per chain and every 25 after that (every 50 from 2000, every 75 from 3000, and so on).
    """

    def __init__(self, n_theta: int, target_ess: float, modes: Sequence[Mode] = ()):
        self.n_theta, self.target_ess, self.modes = n_theta, target_ess, modes
        self.next_check, self.confirming = FIRST_CHECK, False
        self.numbers: Convergence | None = None  # of the latest look

    def holds(self, chains: Chains) -> bool:
        """Whether R-hat and ESS are as asked for at this moment."""
        self.numbers = convergence(mixing(chains, self.n_theta, self.modes))
        return self.numbers.reached(self.target_ess)

    def enough(self, n_draws: int, first: Callable[[int], Chains]) -> int | None:
        """How many draws per chain are enough, of the `n_draws` there are; `first(n)` are the first n of them."""
        while self.next_check <= n_draws:
            current = self.next_check
            holds = self.holds(first(current))
            if holds and self.confirming:
                return current
            self.confirming = holds
            self.next_check = (
                int(np.ceil(AGAIN * current)) if holds else current + CHECK_EVERY * max(1, current // 1000)
            )
        return None
