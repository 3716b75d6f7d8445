"""The state of Algorithm 1 on disk: warm start, rounds, and blocks of final draws; nothing without a run directory."""

import re
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from integrand.errors import InputError
from integrand.infer.bend import Bend
from integrand.infer.chains import Chains
from integrand.infer.diagnostics import TOLERANCE_NATS
from integrand.infer.metric import Whitening
from integrand.posterior.storage import RunDirectory


class WarmStart(NamedTuple):
    """The ML-II point, Z at the posterior's mode, the bound at the ML-II point, and the candidate Z started from.

    `mode` is φ at that mode (the ML-II point where a method looks for none): where ML-II ran away, climbing at this Z
    from elsewhere can end in a worse one.
    """

    phi: Float[np.ndarray, " P"]
    Z: Float[np.ndarray, "M D"]
    bound: float
    candidate: str
    mode: Float[np.ndarray, " P"]


class Round(NamedTuple):
    """One pass of Algorithm 1's loop: Z after it, and what moving it gained on the draws that judge."""

    Z: Float[np.ndarray, "M D"]
    gain: float
    error: float  # Monte Carlo standard error of the gain
    bound: float  # averaged bound at the new Z
    bound_error: float
    target_accept: float  # what the sampler aims at from here on

    @property
    def converged(self) -> bool:
        """The gain is within its Monte Carlo noise (two standard errors) of nothing that matters."""
        return self.gain <= TOLERANCE_NATS + 2.0 * self.error


class Checkpoint:
    """Saves and finds the steps of a run. Each method is a no-op, or finds nothing, if there is no directory."""

    def __init__(self, run: RunDirectory | None):
        self.run = run

    def warm_start(self) -> WarmStart | None:
        """What the warm start gave."""
        if self.run is None or not self.run.has("warm_start"):
            return None
        arrays, meta = self.run.load("warm_start")
        mode = arrays.get("mode", arrays["phi"])  # runs of earlier versions have none
        return WarmStart(arrays["phi"], arrays["Z"], meta["bound"], meta["candidate"], mode)

    def save_warm_start(self, start: WarmStart) -> None:
        """Keep what the warm start gave."""
        if self.run is not None:
            meta = {"bound": float(start.bound), "candidate": start.candidate}
            self.run.save("warm_start", {"phi": start.phi, "Z": start.Z, "mode": start.mode}, meta)

    def rounds(self) -> list[tuple[Round, Whitening]]:
        """The rounds that were finished, with the whitening after each."""
        found = []
        for name in self._numbered("round"):
            arrays, meta = self.run.load(name)  # pyright: ignore[reportOptionalMemberAccess]
            numbers = (meta[k] for k in Round._fields[1:])
            found.append((Round(arrays["Z"], *numbers), _whitening(arrays)))
        return found

    def save_round(self, k: int, result: Round, whitening: Whitening) -> None:
        """Keep what round `k` gave."""
        if self.run is not None:
            arrays = {"Z": result.Z} | _arrays(whitening)
            numbers = {k: float(getattr(result, k)) for k in Round._fields[1:]}
            self.run.save(f"round_{k:03d}", arrays, numbers)

    def scouted(self) -> tuple[Whitening, Chains] | None:
        """What scouting gave: a whitening and the chains that it is from."""
        arrays = self.state("scouted")
        return None if arrays is None else (_whitening(arrays), Chains(*(arrays[name] for name in Chains._fields)))

    def save_scouted(self, whitening: Whitening, chains: Chains) -> None:
        """Keep what scouting gave."""
        self.save_state("scouted", _arrays(whitening) | chains._asdict())

    def draws(self) -> Chains | None:
        """All final draws so far, block after block."""
        chains: Chains | None = None
        for name in self._numbered("draws"):
            arrays, _ = self.run.load(name)  # pyright: ignore[reportOptionalMemberAccess]
            block = Chains(**arrays)
            chains = block if chains is None else chains.then(block)
        return chains

    @property
    def n_blocks(self) -> int:
        """Number of blocks of draws on disk."""
        return len(self._numbered("draws"))

    def save_draws(self, block: int, chains: Chains, evidence: dict[str, float] | None = None) -> None:
        """Keep the draws of a block, replacing what was there of it; those of a nested run with its evidence."""
        if self.run is not None and chains.n_draws:
            self.run.save(f"draws_{block:03d}", chains._asdict(), evidence)

    def drop_draws(self, block: int) -> None:
        """Take back the draws of a block, whose chains begin anew."""
        if self.run is not None:
            self.run.remove(f"draws_{block:03d}")

    def state(self, name: str) -> dict[str, np.ndarray] | None:
        """The arrays that a climb goes on from."""
        return None if self.run is None or not self.run.has(name) else self.run.load(name)[0]

    def save_state(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep where a climb has got to."""
        if self.run is not None:
            self.run.save(name, arrays)

    def evidence(self) -> dict[str, float] | None:
        """Log evidence, its standard error, and what the draws are worth, of a finished nested run."""
        blocks = self._numbered("draws")
        meta = self.run.load(blocks[0])[1] if self.run is not None and blocks else {}
        return {name: float(value) for name, value in meta.items()} or None

    def refuse_another_kind(self, nested: bool) -> None:
        """Nested draws are not chains that others could go on from, nor the other way round."""
        if self.n_blocks and nested != (self.evidence() is not None):
            had = "another sampler" if nested else "nested sampling"
            raise InputError(f"this run has draws of {had}, to which none can be added: use the same, or fit anew")

    def _numbered(self, kind: str) -> list[str]:
        if self.run is None:
            return []
        return sorted(name for name in self.run.names() if re.fullmatch(rf"{kind}_\d{{3}}", name))


def _arrays(whitening: Whitening) -> dict[str, np.ndarray]:
    found = {"centre": whitening.centre, "factor": whitening.factor}
    return found if whitening.bend is None else found | whitening.bend._asdict()


def _whitening(arrays: Mapping[str, np.ndarray]) -> Whitening:
    bend = Bend(arrays["side"], arrays["knee"]) if "side" in arrays else None
    return Whitening(arrays["centre"], arrays["factor"], bend)
