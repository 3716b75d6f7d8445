"""NUTS through nutpie, in parallel chains on a log density given as a Python function."""

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from integrand.errors import NumericalError, import_quietly, need
from integrand.infer.base import Callback, Chains, Matrix, Plan, Run, Sampler, Snapshot, Target
from integrand.infer.coordinates import Coordinates

# Reading the draws holds Python's lock, which the chains' threads need: do it a few times a second only.
_POLL_SECONDS = 0.25


class _Rejected(Exception):
    """Tells nutpie that this point is a rejected proposal, not the end of the run."""

    is_recoverable = True


@dataclass(frozen=True)
class NUTS(Sampler):
    """The no-U-turn sampler (Hoffman & Gelman 2014), with a step size and a diagonal metric adapted in warm-up."""

    warps: bool = True

    def run(self, target: Target, starts: Matrix, coordinates: Coordinates, plan: Plan, callback: Callback) -> Run:
        """One nutpie sampler per chain, all at the same time. A density that is not finite rejects the proposal."""
        gate = threading.Lock() if plan.parallel == 1 else contextlib.nullcontext()
        errors: list[BaseException] = []
        samplers: list[Any] = []
        warmup, draws = plan.warmup, plan.draws
        began = time.monotonic()
        keep, interrupted = None, False
        try:
            for c, start in enumerate(starts):
                samplers.append(_start_chain(target, coordinates, start, [*plan.seed, c], plan, gate, errors))
            batches = [s.inspect().get_arrow_trace() for s in samplers]
            while True:
                if errors:
                    raise errors[0]
                done = min(b[0][0].num_rows for b in batches)
                chains = _collect(batches, warmup, coordinates)
                keep = callback(Snapshot(chains, done, time.monotonic() - began))
                if keep is not None or done >= warmup + draws:
                    break
                time.sleep(_POLL_SECONDS)
                before, batches = batches, [s.inspect().get_arrow_trace() for s in samplers]
                for sampler, old, new in zip(samplers, before, batches, strict=True):
                    if old[0][0].num_rows == new[0][0].num_rows < warmup + draws and not errors:
                        _check_alive(sampler, errors)
        except KeyboardInterrupt:
            if len(samplers) < len(starts):
                raise
            interrupted = True
            batches = [s.inspect().get_arrow_trace() for s in samplers]
        finally:
            for sampler in samplers:
                _abort(sampler)
        done, chains = min(b[0][0].num_rows for b in batches), _collect(batches, warmup, coordinates)
        divergences = sum(int(np.sum(_column(b[1][0], "diverging")[:warmup])) for b in batches)
        draws_to_keep = chains if keep is None else chains.first(keep)
        return Run(draws_to_keep, interrupted, warmup=min(done, warmup), warmup_divergences=divergences)


def _start_chain(target: Target, coordinates: Coordinates, start, seed: list[int], plan: Plan, gate, errors):
    """One chain as a nutpie sampler of its own, so that its start and seed are ours to choose."""
    need("nutpie", "samplers", "NUTS")
    nutpie = import_quietly("nutpie")
    from nutpie.compiled_pyfunc import from_pyfunc

    n, log_density = len(start), coordinates.pull_back(target.value_and_gradient)
    first = coordinates.to_eta(start)

    def value_and_gradient(eta):
        if errors:
            raise _Rejected
        try:
            with gate:
                value, gradient = log_density(eta)
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
    with gate:  # chains before this one are on their way
        value, gradient = log_density(first)
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
        draws=plan.draws,
        tune=plan.warmup,
        chains=1,
        cores=1,
        seed=number,
        progress_bar=False,
        blocking=False,
        return_raw_trace=True,
        store_mass_matrix=True,
        target_accept=plan.target_accept,
        maxdepth=plan.max_depth,
    )


def _collect(batches, warmup: int, coordinates: Coordinates) -> Chains:
    """The draws after warm-up that every chain has."""
    n = max(0, min(b[0][0].num_rows for b in batches) - warmup)

    def stat(name: str, dtype: type) -> np.ndarray:
        return np.array([_column(b[1][0], name)[warmup : warmup + n] for b in batches]).astype(dtype)

    dimension = coordinates.dimension
    # A warp shifts energies by its log Jacobian. Without that of its middle, blocks of draws can be joined.
    level = coordinates.log_jacobian(np.zeros(dimension))
    eta = np.array([_column(b[0][0], "eta").reshape(-1, dimension)[warmup : warmup + n] for b in batches])
    return Chains(
        coordinates.to_x(eta.reshape(-1, dimension)).reshape(len(batches), n, dimension),
        stat("logp", float) - coordinates.log_jacobian(eta),
        np.array([_energy(b[1][0])[warmup : warmup + n] for b in batches]) + level,
        stat("mean_tree_accept", float),
        stat("n_steps", int),
        stat("depth", int),
        stat("diverging", bool),
        stat("step_size", float),
    )


def _energy(stats) -> np.ndarray:
    """Minus the log density plus the kinetic energy. From 0.16.9 on, nutpie adds Σ log s of the scales s that it finds.

    It stores them where they change (as `mass_matrix_inv`). After warm-up they change no more.
    """
    import pyarrow

    energy = _column(stats, "energy")
    if "transformation_mu" not in stats.schema.names:
        return energy
    scales = pyarrow.array(stats.column("mass_matrix_inv"))
    stored = np.flatnonzero(scales.is_valid().to_numpy(zero_copy_only=False))
    return energy - np.sum(np.log(scales[int(stored[-1])].as_py())) if len(stored) else energy


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
