"""Saves the state of a fit in its run directory while it runs, and reads it back, so that a killed fit can go on."""

import contextlib
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, final

import numpy as np
from jaxtyping import Float

from integrand.data.processes import Processes, SingleProcess
from integrand.errors import InputError
from integrand.infer.base import Chains, Proposals
from integrand.infer.coordinates import Coordinates, TailWarp
from integrand.infer.modes import Mode
from integrand.storage.run_directory import RUN, RunDirectory


class WarmStart(NamedTuple):
    """The ML-II point, Z at the posterior's mode, the bound at the ML-II point, and the candidate Z started from.

    `mode` is φ at that mode (the ML-II point where a method looks for none): where ML-II ran away, an ascent at this Z
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


class FitDescription(Protocol):
    """What determines a fit, as a run directory keeps it."""

    @property
    def processes(self) -> Processes:
        """Those that fit together; the leader writes."""
        ...

    def header(self) -> dict[str, Any]:
        """All but the arrays, as JSON."""
        ...

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays."""
        ...


@final
class NoDirectory:
    """In place of a run directory where there is none: keeps nothing."""

    header: Mapping[str, Any] = {}

    def has(self, name: str) -> bool:
        """Nothing was saved."""
        return False

    def names(self) -> list[str]:
        """Nothing was saved."""
        return []

    def load(self, name: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        """Nothing was saved."""
        return {}, {}

    def save(self, name: str, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any] | None = None) -> None:
        """Keep nothing."""

    def remove(self, name: str) -> None:
        """Nothing was saved."""

    def close(self) -> None:
        """Nothing is open."""


class RunStore(contextlib.AbstractContextManager):
    """Saves and finds the steps of a fit. Without a directory nothing is kept, and nothing is found."""

    def __init__(self, directory: RunDirectory | NoDirectory | None = None):
        self.directory = directory or NoDirectory()

    @classmethod
    def create(
        cls, path: str | Path | None, fit: FitDescription, record: Mapping[str, Any] | None = None
    ) -> "RunStore":
        """Start a run in a new directory; without a path, and in processes that follow, a store that keeps nothing.

        Parameters
        ----------
        path
            A directory that does not exist yet or is empty.
        fit
            What determines the fit; all of it is kept.
        record
            Anything else that JSON can hold.
        """

        def begin() -> RunDirectory | None:
            if path is None:
                return None
            return _begun(Path(path), fit.header() | {"record": dict(record or {})}, fit.arrays())

        return cls(fit.processes.on_leader(begin))

    @classmethod
    def open(cls, path: str | Path, processes: Processes = SingleProcess()) -> "RunStore":
        """Open the directory of an earlier run; processes that follow need not see it."""
        return cls(processes.on_leader(lambda: RunDirectory.open(Path(path))))

    @property
    def header(self) -> dict[str, Any]:
        """What `create` was given as JSON."""
        return dict(self.directory.header)

    def arrays(self) -> dict[str, np.ndarray]:
        """What `create` was given as arrays."""
        return self.directory.load("data")[0]

    def close(self) -> None:
        """Let another writer in."""
        self.directory.close()

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def keeps(self) -> bool:
        """Whether there is a directory, from which the fit could be resumed."""
        return not isinstance(self.directory, NoDirectory)

    def seconds(self) -> dict[str, float]:
        """Seconds by phase of the fit so far, in all processes that worked on it."""
        return dict(self.directory.load("seconds")[1]) if self.directory.has("seconds") else {}

    def save_seconds(self, seconds: Mapping[str, float]) -> None:
        """Keep the seconds by phase."""
        self.directory.save("seconds", {}, seconds)

    def warm_start(self) -> WarmStart | None:
        """The warm start, if it is done."""
        if not self.directory.has("warm_start"):
            return None
        arrays, meta = self.directory.load("warm_start")
        mode = arrays.get("mode", arrays["phi"])  # runs of earlier versions have none
        return WarmStart(arrays["phi"], arrays["Z"], meta["bound"], meta["candidate"], mode)

    def save_warm_start(self, start: WarmStart) -> None:
        """Keep the warm start."""
        meta = {"bound": float(start.bound), "candidate": start.candidate}
        self.directory.save("warm_start", {"phi": start.phi, "Z": start.Z, "mode": start.mode}, meta)

    def rounds(self) -> list[tuple[Round, Coordinates]]:
        """The rounds that were finished, with the coordinates after each."""
        finished = []
        for name in self._numbered("round"):
            arrays, meta = self.directory.load(name)
            numbers = (meta[k] for k in Round._fields[1:])
            finished.append((Round(arrays["Z"], *numbers), _coordinates(arrays)))
        return finished

    def save_round(self, k: int, result: Round, coordinates: Coordinates) -> None:
        """Keep what round `k` gave."""
        arrays = {"Z": result.Z} | _arrays(coordinates)
        numbers = {k: float(getattr(result, k)) for k in Round._fields[1:]}
        self.directory.save(f"round_{k:03d}", arrays, numbers)

    def scouted(self) -> tuple[Coordinates, Chains] | None:
        """The pilot run: coordinates, and the chains that they are from."""
        arrays = self.state("scouted")
        return None if arrays is None else (_coordinates(arrays), Chains(*(arrays[name] for name in Chains._fields)))

    def save_scouted(self, coordinates: Coordinates, chains: Chains) -> None:
        """Keep the pilot run."""
        self.save_state("scouted", _arrays(coordinates) | chains._asdict())

    def draws(self) -> Chains | None:
        """All final draws so far, block after block."""
        chains: Chains | None = None
        for name in self._numbered("draws"):
            arrays, _ = self.directory.load(name)
            block = Chains(**arrays)
            chains = block if chains is None else chains.then(block)
        return chains

    @property
    def n_blocks(self) -> int:
        """Number of blocks of draws on disk."""
        return len(self._numbered("draws"))

    def save_draws(self, block: int, chains: Chains, evidence: dict[str, float] | None = None) -> None:
        """Keep the draws of a block, replacing earlier ones; those of a nested run with its evidence."""
        if chains.n_draws:
            self.directory.save(f"draws_{block:03d}", chains._asdict(), evidence)

    def proposals(self, before: int | None = None) -> Proposals | None:
        """The independence proposals of all blocks, or of those before one. A run that was killed lacks its last."""
        names = [name for name in self._numbered("proposals") if before is None or name < f"proposals_{before:03d}"]
        blocks = [Proposals(**self.directory.load(name)[0]) for name in names]
        return functools.reduce(Proposals.then, blocks) if blocks else None

    def save_proposals(self, block: int, proposals: Proposals) -> None:
        """Keep the independence proposals of a block."""
        self.save_state(f"proposals_{block:03d}", proposals._asdict())

    def modes(self, name: str) -> tuple[Mode, ...] | None:
        """The modes that a search found."""
        arrays = self.state(name)
        if arrays is None:
            return None
        parts = zip(arrays["centre"], arrays["factor"], arrays["value"], arrays["log_mass"], strict=True)
        return tuple(Mode(Coordinates(c, F), float(v), float(mass)) for c, F, v, mass in parts)

    def save_modes(self, name: str, modes: Sequence[Mode]) -> None:
        """Keep what a search found."""
        if modes:
            columns = {key: np.array([getattr(m.coordinates, key) for m in modes]) for key in ("centre", "factor")}
            numbers = {key: np.array([getattr(m, key) for m in modes]) for key in ("value", "log_mass")}
            self.save_state(name, columns | numbers)

    def state(self, name: str) -> dict[str, np.ndarray] | None:
        """Arrays that were saved under this name."""
        return self.directory.load(name)[0] if self.directory.has(name) else None

    def save_state(self, name: str, arrays: Mapping[str, np.ndarray]) -> None:
        """Keep arrays, such as where an optimiser has got to."""
        self.directory.save(name, arrays)

    def evidence(self) -> dict[str, float] | None:
        """Log evidence, its standard error and the effective number of draws of a finished nested run."""
        blocks = self._numbered("draws")
        meta = self.directory.load(blocks[0])[1] if blocks else {}
        return {name: float(value) for name, value in meta.items()} or None

    def refuse_another_kind(self, nested: bool) -> None:
        """Chains cannot go on from nested draws, nor the other way round."""
        if self.n_blocks and nested != (self.evidence() is not None):
            had = "another sampler" if nested else "nested sampling"
            raise InputError(f"this run has draws of {had}, to which none can be added: use the same, or fit again")

    def _numbered(self, kind: str) -> list[str]:
        return sorted(name for name in self.directory.names() if re.fullmatch(rf"{kind}_\d{{3}}", name))


def _begun(path: Path, header: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> RunDirectory:
    """A new run directory. One that was killed before its data were kept counts as empty."""
    if (path / RUN).exists() and not (path / "data.npz").exists():
        with RunDirectory.open(path):  # refuses if it is being written at this moment
            (path / RUN).unlink(missing_ok=True)
    directory = RunDirectory.create(path, header)
    try:
        directory.save("data", arrays)
    except BaseException:
        directory.close()
        raise
    return directory


def _arrays(coordinates: Coordinates) -> dict[str, np.ndarray]:
    arrays = {"centre": coordinates.centre, "factor": coordinates.factor}
    return arrays if coordinates.warp is None else arrays | coordinates.warp._asdict()


def _coordinates(arrays: Mapping[str, np.ndarray]) -> Coordinates:
    warp = TailWarp(arrays["side"], arrays["knee"]) if "side" in arrays else None
    return Coordinates(arrays["centre"], arrays["factor"], warp)
