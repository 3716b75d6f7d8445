"""NUTS through nutpie on a log density given as a Python function: chains side by side, watched while they run."""

import contextlib
import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float

from integrand.errors import NumericalError
from integrand.infer.chains import Chains, LogDensity, SampledRun, Watch, Watcher
from integrand.infer.metric import Whitening

# Each look at the chains holds Python's lock, for which their threads have to wait: not too often.
_POLL_SECONDS = 0.25


class _Rejected(Exception):
    """Tells nutpie that this point is a rejected proposal, not the end of the run."""

    is_recoverable = True


def sample_nuts(
    log_density: LogDensity,
    starts: Float[np.ndarray, "C P"],
    whitening: Whitening,
    *,
    tune: int,
    draws: int,
    seed: Sequence[int],
    target_accept: float = 0.8,
    max_depth: int = 8,
    parallel: int = 2,
    watch: Watcher | None = None,
) -> SampledRun:
    """Draw from exp(log_density) with NUTS in whitened coordinates, one chain for each row of `starts`.

    Parameters
    ----------
    log_density
        Value and gradient; a value that is not finite rejects the proposal. Called from several threads.
    tune, draws
        Tuning steps (step size and a diagonal metric on top of the whitening) and draws kept, for each chain.
    seed
        Numbers that, with the chain's position, determine the draws.
    parallel
        1 if only one evaluation may run at a time, as when each uses all cores; otherwise chains run side by side.
    watch
        Sees the draws while they come and may end the run; what it keeps depends on the draws alone, so the
        same seed gives the same result however fast the machine is.
    """
    gate = threading.Lock() if parallel == 1 else contextlib.nullcontext()
    errors: list[BaseException] = []
    samplers: list[Any] = []
    began = time.monotonic()
    keep, interrupted = None, False
    try:
        options = (tune, draws, target_accept, max_depth, gate, errors)
        for c, start in enumerate(starts):
            samplers.append(_start_chain(log_density, whitening, start, [*seed, c], *options))
        batches = [s.inspect().get_arrow_trace() for s in samplers]
        while True:
            if errors:
                raise errors[0]
            done = min(b[0][0].num_rows for b in batches)
            chains = _collect(batches, tune, whitening)
            if watch is not None:
                keep = watch(Watch(chains, done, time.monotonic() - began))
            if keep is not None or done >= tune + draws:
                break
            time.sleep(_POLL_SECONDS)
            before, batches = batches, [s.inspect().get_arrow_trace() for s in samplers]
            for sampler, old, new in zip(samplers, before, batches, strict=True):
                if old[0][0].num_rows == new[0][0].num_rows < tune + draws and not errors:
                    _check_alive(sampler, errors)
    except KeyboardInterrupt:
        if len(samplers) < len(starts):
            raise
        interrupted = True
        batches = [s.inspect().get_arrow_trace() for s in samplers]
    finally:
        for sampler in samplers:
            _abort(sampler)
    done, chains = min(b[0][0].num_rows for b in batches), _collect(batches, tune, whitening)
    divergences = sum(int(np.sum(_column(b[1][0], "diverging")[:tune])) for b in batches)
    return SampledRun(chains if keep is None else chains.first(keep), min(done, tune), divergences, interrupted)


def load_engine() -> None:
    """Import nutpie ahead of its use."""
    import nutpie  # noqa: F401


def _start_chain(log_density, whitening, start, seed, tune, draws, target_accept, max_depth, gate, errors):
    """One chain as a nutpie sampler of its own, so that its start and seed are ours to choose."""
    import nutpie
    from nutpie.compiled_pyfunc import from_pyfunc

    n, pulled_back = len(start), whitening.pulled_back(log_density)
    first = whitening.to_eta(start)

    def value_and_gradient(eta):
        if errors:
            raise _Rejected
        try:
            with gate:
                value, gradient = pulled_back(eta)
        except Exception as error:  # an error here must end the run in the caller's thread, not panic in Rust
            errors.append(error)
            raise _Rejected from error
        if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
            raise _Rejected
        return value, gradient

    model = from_pyfunc(
        n,
        lambda: value_and_gradient,
        lambda seed1, seed2, chain: lambda eta: {"eta": eta},
        [np.dtype("float64")],
        [(n,)],
        ["eta"],
        make_initial_point_fn=lambda seed: first,
    )
    value, gradient = pulled_back(first)
    if not (np.isfinite(value) and np.all(np.isfinite(gradient))):
        raise NumericalError(
            "the log density is not finite where a chain should start (without priors that keep it off, the noise of "
            "a constant y runs to zero): try other priors or fewer inducing points"
        )
    if np.any(gradient == 0.0):  # nutpie starts its metric from the gradient and refuses a zero in it
        first = first + 1e-3 * np.random.default_rng(seed).standard_normal(n)
    number = int(np.random.SeedSequence(seed).generate_state(1, np.uint64)[0])
    return nutpie.sample(
        model,
        draws=draws,
        tune=tune,
        chains=1,
        cores=1,
        seed=number,
        progress_bar=False,
        blocking=False,
        return_raw_trace=True,
        target_accept=target_accept,
        maxdepth=max_depth,
    )


def _collect(batches, tune: int, whitening: Whitening) -> Chains:
    """The draws after tuning that every chain has."""
    n = max(0, min(b[0][0].num_rows for b in batches) - tune)

    def stat(name: str, dtype: type) -> np.ndarray:
        return np.array([_column(b[1][0], name)[tune : tune + n] for b in batches]).astype(dtype)

    dimension = len(whitening.centre)
    # A bend changes the level of energies by its log Jacobian: with that of its middle taken out, blocks can be joined.
    level = whitening.log_jacobian(np.zeros(dimension))
    eta = np.array([_column(b[0][0], "eta").reshape(-1, dimension)[tune : tune + n] for b in batches])
    return Chains(
        whitening.to_x(eta.reshape(-1, dimension)).reshape(len(batches), n, dimension),
        stat("logp", float) - whitening.log_jacobian(eta),
        stat("energy", float) + level,
        stat("mean_tree_accept", float),
        stat("n_steps", int),
        stat("depth", int),
        stat("diverging", bool),
        stat("step_size", float),
    )


def _column(batch, name: str) -> np.ndarray:
    import pyarrow

    column = pyarrow.array(batch.column(name))
    return (column.flatten() if hasattr(column, "flatten") else column).to_numpy(zero_copy_only=False)


def _check_alive(sampler, errors: list[BaseException]) -> None:
    """Raise if nutpie gave a chain up: it would never reach its draws. An error in the log density is the reason."""
    try:
        sampler.is_finished  # noqa: B018  (raises what ended the chain, or TimeoutError while it runs)
    except TimeoutError:
        pass
    except RuntimeError as error:
        if errors:
            raise errors[0] from None
        reason = str(error).partition("Stack backtrace")[0]
        raise NumericalError(f"a chain could not go on ({' '.join(reason.split())}): try other priors") from error


def _abort(sampler) -> None:
    try:
        sampler.abort()
    except BaseException as error:  # nutpie reports a finished or failed sampler by a Rust panic
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            raise
