"""Tables of seconds, as ratios between methods."""

from integrand.experiments.paper_numbers import printed
from integrand.experiments.results import Results
from integrand.experiments.store import undrawn
from integrand.experiments.table import Table

# Of fewer draws most of the time was tuning: they do not tell what 500 would take.
_LEAST_DRAWS = 250


def runtime_table(results: Results) -> list[Table]:
    """Seconds of whole fits and of 500 draws, and their ratios to those of SGPR and SGPR + HMC."""
    rows = []
    for dataset in results.datasets:
        found = {arm.name: _first(results, dataset, arm.name) for arm in results.arms}
        whole = {name: None if r is None else sum(r["seconds"].values()) for name, r in found.items()}
        draws = {name: None if r is None else _seconds_of_500(r) for name, r in found.items()}
        paper = {arm.name: printed("runtime", dataset, arm.paper, "seconds") for arm in results.arms}
        theirs = {name: None if p is None else p.value for name, p in paper.items()}
        for arm in results.arms:
            result, name = found[arm.name], arm.name
            if result is None:
                continue
            capped = "+" if "budget" in (result.get("verdict") or {"codes": ()})["codes"] else ""
            cells = [
                _number(whole[name], 1) + capped,
                _ratio(whole[name], whole.get("SGPR")),
                _ratio(whole[name], whole.get("SGPR + HMC")),
                _number(draws[name], 1),
                _ratio(draws[name], draws.get("SGPR + HMC")),
                _number(theirs[name], 1),
                _ratio(theirs[name], theirs.get("SGPR")),
                _ratio(theirs[name], theirs.get("SGPR + HMC")),
            ]
            rows.append([dataset, name, *cells])
    header = ["data", "method", "whole fit, s", "over SGPR", "over SGPR + HMC", "500 draws, s", "over SGPR + HMC"]
    header += ["paper, s", "over SGPR", "over SGPR + HMC"]
    title = (
        "Seconds of one fit in a fresh process, alone on its cores, import aside and compiling included (+: ended by "
        f"its cap; 500 draws are of four chains together, with their tuning, where a fit has {_LEAST_DRAWS} or more; "
        "the paper's seconds are of training)"
    )
    return [Table("runtime", title, header, rows)] if rows else []


def time_ratios(results: Results) -> list[Table]:
    """Seconds of both methods at the same M and split; the paper gives 1248 and 2109 s at M = 500."""
    rows = []
    for m in sorted({arm.n_inducing for arm in results.arms}):
        ours, joint = (results.of("elevators", f"{name}, M = {m}") for name in ("SGPR + HMC", "JointHMC"))
        common = sorted(k for k in ours.keys() & joint.keys() if _comparable(ours[k], joint[k]))
        if common:
            a, b = (sum(found[common[0]]["seconds"].values()) for found in (ours, joint))
            a_draw, b_draw = a / ours[common[0]]["draws"], b / joint[common[0]]["draws"]
            cells = [f"{a:.0f}", f"{b:.0f}", f"{b / a:.2f}", f"{b_draw / a_draw:.2f}"]
            rows.append([str(m), str(common[0]), *cells])
    header = ["M", "split", "SGPR + HMC, s", "JointHMC, s", "ratio", "ratio for as many draws"]
    title = "Seconds of whole fits (the paper at M = 500: 1248 and 2109 s, ratio 1.69)"
    return [Table("seconds", title, header, rows)] if rows else []


def _comparable(a: dict, b: dict) -> bool:
    """Whether two fits had as many cores, and both came to a draw."""
    return not (undrawn(a) or undrawn(b)) and a["made"].get("cores") == b["made"].get("cores")


def _first(results: Results, dataset: str, arm: str) -> dict | None:
    found = results.of(dataset, arm)
    return found[min(found)] if found else None


def _seconds_of_500(result: dict) -> float | None:
    """In proportion to the draws there are, tuning and scouting included; None where they are too few to tell."""
    drawn = result["seconds"].get("final", 0.0) + result["seconds"].get("scouting", 0.0)
    return 500.0 * drawn / result["draws"] if result["draws"] >= _LEAST_DRAWS else None


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _ratio(value: float | None, base: float | None) -> str:
    return "-" if value is None or base is None else f"{value / base:.2f}"
