"""Watching the final chains: when they are enough, when the time is up, and what goes to disk meanwhile."""

import time
from collections.abc import Callable

import numpy as np

from integrand.infer.chains import Chains, Watch
from integrand.infer.diagnostics import convergence
from integrand.progress import Progress

FIRST_CHECK, CHECK_EVERY = 100, 25
# Draws are saved so often; more seldom if that would take more than this share of the time, as with many latent values.
SAVE_SECONDS, SAVE_SHARE = 5.0, 0.02


class FinalWatch:
    """Looks at the growing chains at fixed numbers of draws, saves them, and says when they are enough for θ.

    Checks are at 100 draws a chain and every 25 after that (every 50 from 2000, every 75 from 3000, and so on), so
    what is kept depends on the draws alone. Where there are fewer draws than there were, chains were begun anew: those
    on disk are taken from there, and checks begin anew.
    """

    def __init__(
        self,
        before: Chains | None,
        n_theta: int,
        target_ess: float,
        tune: int,
        save: Callable[[Chains], None],
        drop: Callable[[], None],
        over_time: Callable[[], bool],
        progress: Progress,
    ):
        self.before, self.n_theta, self.target_ess, self.tune = before, n_theta, target_ess, tune
        self.save, self.drop, self.over_time, self.progress = save, drop, over_time, progress
        self.n_before = before.n_draws if before else 0
        self.next_check = self.first_check = max(FIRST_CHECK, self.n_before + CHECK_EVERY)
        self.seen = 0  # draws of this block
        self.saved_at, self.save_took = 0.0, 0.0
        self.seconds = 0.0  # when this last looked, since the chains of now began
        self.text = ""

    def __call__(self, w: Watch) -> int | None:
        """How many draws of this block to keep, once it is time to stop."""
        if w.chains.n_draws < self.seen:
            self.drop()
            self.next_check, self.text = self.first_check, ""
        self.seen = w.chains.n_draws
        n = self.n_before + w.chains.n_draws
        while self.next_check <= n:
            here = self.next_check - self.n_before
            x = w.chains.first(here).x
            x = np.concatenate([self.before.x, x], axis=1) if self.before else x
            numbers = convergence(x[:, :, : self.n_theta])
            least = min(numbers.ess_bulk.min(), numbers.ess_tail.min())
            self.text = f", R-hat {numbers.r_hat.max():.3f}, ESS {least:.0f}"
            self.next_check += CHECK_EVERY * max(1, self.next_check // 1000)
            if numbers.reached(self.target_ess):
                return here
        if w.seconds < self.seconds:  # other chains go on where those before ended: their clock began anew
            self.saved_at -= self.seconds
        self.seconds = w.seconds
        if w.chains.n_draws and w.seconds - self.saved_at > max(SAVE_SECONDS, self.save_took / SAVE_SHARE):
            began = time.monotonic()
            self.save(w.chains)
            self.saved_at, self.save_took = w.seconds, time.monotonic() - began
        self._tell(w, n)
        return w.chains.n_draws if self.over_time() else None

    def _tell(self, w: Watch, n: int) -> None:
        divergences = int(w.chains.diverging.sum())
        stray = f", {divergences} diverged" if divergences else ""
        text = f"tuning, {w.done} draws" if w.done < self.tune else f"{n} draws{stray}{self.text}"
        # As far as one can tell: the next check may be the last.
        self.progress.update(self.n_before + w.done, self.n_before + self.tune + self.next_check, text)
