"""The command line of the paper's experiments: run a suite, then make tables and figures of the results.

    python -m experiments                                   # list the suites
    python -m experiments synthetic-1d                      # run one; results go to reproduce/
    python -m experiments --collect                         # make pages from them, in reproduce/pages
    python -m experiments --collect --published             # make docs/evidence/paper from results/paper.parquet

With --published a suite runs only the tasks that results/paper.parquet does not have, and --collect adds the new
results to that table before it makes the pages of docs/evidence/paper.
"""

import argparse
import math
import sys
from pathlib import Path

from experiments.collect import collect
from experiments.runner import PUBLISHED, Plan, arm_names, named_arm, run_plan, say
from experiments.store import Store
from experiments.suites import PROTOCOLS, SUITES, chosen, split_numbers
from integrand.errors import InputError, IntegrandError
from results.read import HERE, read, read_files, write


def list_suites() -> None:
    """Print the suites."""
    print("\n".join(f"{s.name:<14} {s.about}" for s in SUITES.values()))


def run(given: argparse.Namespace) -> int:
    """Run a suite; the number of tasks that have no result."""
    suite, protocol, minutes = given.suite, given.protocol, given.minutes
    if suite not in SUITES:
        raise InputError(f"there is no suite {suite!r}: choose from {', '.join(SUITES)}")
    if protocol not in PROTOCOLS:
        raise InputError(f"there is no protocol {protocol!r}: choose from {', '.join(PROTOCOLS)}")
    if given.jobs < 1:
        raise InputError(f"--jobs must be at least 1, not {given.jobs}")
    if minutes is not None and (protocol == "paper" or not 0.0 < minutes < math.inf):
        raise InputError(f"--minutes must be positive, and the paper's protocol has none: {minutes} cannot be used")
    the_suite = SUITES[suite]
    arms = arm_names(the_suite, protocol)
    wanted = tuple(named_arm(the_suite, name.strip()) for name in given.methods.split(",") if name.strip())
    for name in wanted:
        if name not in arms:
            raise InputError(f"{name} has no schedule of the paper to follow: leave --protocol out")
    plan = Plan(
        suite,
        protocol,
        chosen(given.datasets, the_suite.datasets, "data set"),
        wanted or arms,
        the_suite.splits if given.splits is None else split_numbers(given.splits),
        str(given.out),
        None if given.data_dir is None else str(given.data_dir),
        minutes,
        given.published,
    )
    missing = run_plan(plan, given.jobs)
    if missing:
        say(f"{suite}: {missing} of {len(plan.tasks)} tasks have no result yet; run the command again")
    else:
        where = "--published" if given.published else f"--out {given.out}"
        say(f"{suite}: all tasks are done; pages: python -m experiments --collect {where}")
    return missing


def collect_results(out: Path, published: bool, docs: Path | None) -> None:
    """Pack the results of `out` into a table and make pages from it."""
    if not published and not out.is_dir():
        raise InputError(f"there are no results in {out}: run a suite first, or name their directory with --out")
    table = HERE / f"{PUBLISHED}.parquet" if published else out / "results.parquet"
    fresh = read_files(out)
    results = {**read(table), **fresh} if published else fresh
    if not results:
        raise InputError(f"{out} holds no result of any suite: run one first")
    if fresh:
        write(table, results)
    pages = docs or (HERE.parent / "docs" / "evidence" / "paper" if published else out / "pages")
    print("\n".join(str(path) for path in collect(Store(out, results), pages)))


def options() -> argparse.ArgumentParser:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("suite", nargs="?", help="leave it out to see the list")
    parser.add_argument("--datasets", default="", help="comma-separated; default: those of the suite")
    parser.add_argument("--methods", default="", help="comma-separated; default: those of the suite")
    parser.add_argument("--splits", help="such as 0-9 or 0,3; default: those of the suite")
    parser.add_argument("--protocol", default="default", help="default (converged) or paper (its schedule and priors)")
    parser.add_argument("--data-dir", type=Path, help="directory of the data sets; default: INTEGRAND_DATA")
    parser.add_argument("--out", type=Path, default=Path("reproduce"), help="directory of the results")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the work")
    parser.add_argument("--minutes", type=float, help="limit of a fit, in place of the suite's")
    parser.add_argument("--collect", action="store_true", help="pack the results and make tables and figures")
    parser.add_argument("--published", action="store_true", help="use and extend results/paper.parquet")
    parser.add_argument("--docs", type=Path, help="where --collect writes pages")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Run the command; its exit code: 0 ok, 1 tasks without a result, 2 a mistake (one line), 130 interrupted."""
    given = options().parse_args(arguments)
    try:
        if given.collect:
            collect_results(given.out, given.published, given.docs)
        elif given.suite is None:
            list_suites()
        else:
            return int(run(given) > 0)
    except IntegrandError as error:
        say(f"experiments: {error}")
        return 2
    except KeyboardInterrupt:
        say("experiments: interrupted")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
