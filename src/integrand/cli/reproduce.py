"""`integrand reproduce`: the paper's tables, run and collected."""

import math
from pathlib import Path

from integrand.cli.output import emit
from integrand.errors import InputError
from integrand.experiments.collect import collect
from integrand.experiments.runner import Plan, arm_names, named_arm, run_plan, say
from integrand.experiments.store import Store
from integrand.experiments.suites import PROTOCOLS, SUITES, chosen, split_numbers


def list_suites(as_json: bool) -> None:
    """What can be reproduced."""
    facts = {
        s.name: {"about": s.about, "datasets": list(s.datasets), "arms": [a.name for a in s.arms]}
        for s in SUITES.values()
    }
    emit(as_json, facts, "\n".join(f"{s.name:<14} {s.about}" for s in SUITES.values()))


def run(
    suite: str,
    datasets: str,
    methods: str,
    splits: str | None,
    protocol: str,
    data_dir: Path | None,
    out: Path,
    jobs: int,
    minutes: float | None = None,
) -> int:
    """Run a suite; the number of tasks that have no result."""
    if suite not in SUITES:
        raise InputError(f"there is no suite {suite!r}: choose from {', '.join(SUITES)}")
    if protocol not in PROTOCOLS:
        raise InputError(f"there is no protocol {protocol!r}: choose from {', '.join(PROTOCOLS)}")
    if jobs < 1:
        raise InputError(f"--jobs must be at least 1, not {jobs}")
    if minutes is not None and (protocol == "paper" or not 0.0 < minutes < math.inf):
        raise InputError(f"--minutes must be positive, and the paper's protocol has none: {minutes} cannot be used")
    chosen_suite = SUITES[suite]
    arms = arm_names(chosen_suite, protocol)
    wanted = tuple(named_arm(chosen_suite, name.strip()) for name in methods.split(",") if name.strip())
    for name in wanted:
        if name not in arms:
            raise InputError(f"{name} has no schedule of the paper to follow: leave --protocol out")
    plan = Plan(
        suite,
        protocol,
        chosen(datasets, chosen_suite.datasets, "data set"),
        wanted or arms,
        chosen_suite.splits if splits is None else split_numbers(splits),
        str(out),
        None if data_dir is None else str(data_dir),
        minutes,
    )
    missing = run_plan(plan, jobs)
    if missing:
        say(f"{suite}: {missing} of {len(plan.tasks)} tasks have no result yet; run the command again")
    else:
        say(f"{suite}: what was asked for is done (results in {out}); pages: integrand reproduce --collect --out {out}")
    return missing


def collect_results(out: Path, docs: Path) -> None:
    """Make the pages of what there is."""
    if not out.is_dir():
        raise InputError(f"there are no results in {out}: run a suite first, or name their directory with --out")
    written = collect(Store(out), docs)
    if not written:
        raise InputError(f"{out} holds no result of any suite")
    print("\n".join(str(path) for path in written))
