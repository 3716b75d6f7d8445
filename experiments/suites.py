"""The suites: for each table or figure of the paper its data sets, arms (methods with settings) and splits."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from integrand.errors import InputError
from integrand.gp import BOUNDS
from integrand.priors import DEFAULT, PRESETS

UCI = ("boston", "boston_as_published", "concrete", "energy", "winered", "yacht")
PROTOCOLS = ("default", "paper")
TEN = tuple(range(10))
# Limits in minutes for methods whose draws are expensive. A fit that a limit ended says so in its verdict.
EXACT_MINUTES, JOINT_MINUTES, FBGP_MINUTES = 20.0, 3.0, 6.0
PRIORS_MINUTES, ELEVATORS_MINUTES, RUNTIME_MINUTES = 3.0, 20.0, 2.0


@dataclass(frozen=True)
class Arm:
    """A column of a table: a method with its priors and settings.

    Two arms with the same method, priors and settings share their results, also between suites.
    """

    name: str
    method: str
    priors: str = DEFAULT
    n_inducing: int = 100
    settings: Mapping[str, Any] = field(default_factory=dict)
    paper: str = ""  # its column in the paper's tables
    bound: str = ""  # the collapsed bound, where it is compared; everywhere else it is the paper's

    @property
    def key(self) -> str:
        """Name of the directory of its results."""
        parts = [self.method, f"m{self.n_inducing}", self.priors]
        parts += [f"{name}{value:g}" for name, value in sorted(self.settings.items()) if name != "max_minutes"]
        parts += [self.bound] if self.bound else []
        return "-".join(parts)


@dataclass(frozen=True)
class Suite:
    """A table or figure."""

    name: str
    about: str
    datasets: tuple[str, ...]
    arms: tuple[Arm, ...]
    splits: tuple[int, ...]
    kind: str = "regression"  # which function of `work.py` runs a task
    fresh: bool = False  # each task in a process of its own, one after the other: its seconds are the result
    paper_arms: tuple[str, ...] = ()  # those that the paper's protocol has


def protocol_arm(arm: Arm, protocol: str) -> Arm:
    """The arm under a protocol: the paper's has its schedule, its priors and one start."""
    if protocol == "default":
        return arm
    return replace(arm, priors="paper", settings={})


_ML2 = Arm("SGPR", "ml2", "paper", settings={"restarts": 5}, paper="sgpr")  # its bound has no prior
_HMC = Arm("SGPR + HMC", "sgpr-hmc", paper="sgpr-hmc")
_FIXED = Arm("SGPR + HMC, fixed Z", "sgpr-hmc-fixed-z", paper="sgpr-hmc-fixed-z")
_EXACT = Arm("GPR + HMC", "gpr-hmc", settings={"max_minutes": EXACT_MINUTES}, paper="gpr-hmc")
_SVGP = Arm("SVGP", "svgp", "paper", paper="svgp")
_JOINT = Arm("JointHMC", "joint-hmc", settings={"max_minutes": JOINT_MINUTES}, paper="joint-hmc")
_FBGP = Arm("FBGP", "fbgp", settings={"max_minutes": FBGP_MINUTES}, paper="fbgp")


def _with(arm: Arm, m: int) -> Arm:
    return replace(arm, name=f"{arm.name}, M = {m}", n_inducing=m)


def _on_elevators(arm: Arm, m: int) -> Arm:
    # The paper's priors: this suite compares two samplers of one posterior with the curves of the paper.
    settings: dict[str, Any] = {"max_minutes": ELEVATORS_MINUTES}
    if arm is _JOINT and m >= 300:  # four chains on two cores would spend all their minutes on warm-up
        settings["chains"] = 2
    return _with(replace(arm, priors="paper", settings=settings), m)


def _timed(arm: Arm) -> Arm:
    return replace(arm, settings={"max_minutes": RUNTIME_MINUTES})


def _under(priors: str) -> Arm:
    # Under `scaled` a split may need hundreds of thousands of gradients: its tails are long.
    arm = replace(_HMC, name=f"SGPR + HMC, {priors}", priors=priors, settings={"max_minutes": PRIORS_MINUTES})
    return arm if priors == "paper" else replace(arm, paper="")


SUITES: Mapping[str, Suite] = {
    suite.name: suite
    for suite in (
        Suite(
            "ridge",
            "the likelihood over two hyperparameters, with where optimisers end from several starts and draws on top",
            ("ridge",),
            (Arm("ridge", "gpr-hmc", "paper", 0),),
            (0,),
            kind="ridge",
        ),
        Suite(
            "synthetic-1d",
            "the one-dimensional example: its figure and its table, over ten draws of the data",
            ("synthetic",),
            tuple(replace(arm, priors="paper", n_inducing=25) for arm in (_ML2, _HMC, replace(_JOINT, settings={}))),
            TEN,
            kind="synthetic",
            paper_arms=("SGPR", "SGPR + HMC", "JointHMC"),
        ),
        Suite(
            "uci",
            "RMSE and NLPD of the paper's methods on five data sets, and on Boston as it should be",
            UCI,
            (_EXACT, _ML2, _HMC, _SVGP, _JOINT, _FBGP),
            TEN,
            paper_arms=("SGPR", "SGPR + HMC", "SVGP", "JointHMC"),
        ),
        Suite("ablation", "fixed against adapted Z", UCI, (_FIXED, _HMC), TEN),
        Suite(
            "elevators",
            "RMSE and NLPD against M with 13 279 rows",
            ("elevators",),
            tuple(_on_elevators(arm, m) for m in (100, 200, 300, 400, 500) for arm in (_HMC, _JOINT)),
            TEN,
        ),
        Suite(
            "runtime",
            "seconds for 500 draws and for whole fits",
            UCI[1:],
            (replace(_ML2, settings={}), _HMC, _timed(_EXACT), _timed(_FBGP), _timed(_JOINT)),
            (0,),
            fresh=True,
        ),
        Suite(
            "nuts-summary",
            "hyperparameters on split 4, beside the appendix",
            UCI[1:],
            (replace(_HMC, priors="paper"),),
            (4,),
        ),
        Suite(
            "more-inducing",
            "three times as many inducing points, or all distinct rows where those are fewer",
            UCI,
            (_HMC, replace(_with(_HMC, 300), paper=""), _EXACT),
            TEN,
        ),
        Suite(
            "tight-bound",
            "the collapsed bound of Titsias (2025) against that of the paper, with the default priors",
            UCI,
            tuple(replace(_HMC, name=f"SGPR + HMC, {name}", bound=name, paper="") for name in BOUNDS),
            TEN,
        ),
        Suite(
            "priors",
            "SGPR + HMC under each preset of priors, against SGPR",
            UCI,
            (_ML2, *(_under(name) for name in PRESETS)),
            TEN,
        ),
    )
}


def chosen(values: str, known: tuple[str, ...], what: str) -> tuple[str, ...]:
    """Those of the known names that a comma-separated list asks for; all if it is empty."""
    wanted = tuple(v.strip() for v in values.split(",") if v.strip())
    for value in wanted:
        if value not in known:
            raise InputError(f"there is no {what} {value!r} in this suite: choose from {', '.join(known)}")
    return wanted or known


def split_numbers(text: str) -> tuple[int, ...]:
    """`0-9`, `4` or `0,2,5-7`."""
    numbers: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.strip().partition("-")
            numbers += range(int(first), int(last or first) + 1)
    except ValueError:
        raise InputError(f"--splits {text!r}: give numbers such as 0-9 or 0,3,4") from None
    if not numbers or min(numbers) < 0:
        raise InputError(f"--splits {text!r} names no split")
    return tuple(dict.fromkeys(numbers))
