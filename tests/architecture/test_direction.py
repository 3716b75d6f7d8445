"""The direction of imports: a folder may import what is below it, and no cycle exists."""

import graphlib

import pytest
from source import MODULES, import_graph

# Each line may import the lines above it, with these exceptions. A folder stands for all of its modules.
LEVELS = (
    ("errors", "version", "precision", "files", "progress", "registry", "linalg", "compilation"),
    ("data", "priors", "likelihoods", "kernels"),
    ("gp", "transforms", "units", "model", "inducing"),
    ("bounds", "infer"),
    ("targets",),
    ("posterior",),
    ("storage",),
    ("methods",),
    ("metrics", "report", "estimators", "cli", "estimator", "classifier"),
)
# Parts of one level that may import each other; cycles are refused for all.
WITHIN = {
    "kernels": {"priors"},
    "model": {"gp", "transforms", "units"},
    "inducing": {"gp", "model"},
    "cli": {"metrics", "report", "estimators"},
    "estimator": {"estimators"},  # names of before, for one version
    "classifier": {"estimators"},
    "estimators": {"metrics", "report"},
    "report": {"metrics"},
} | {name: set(LEVELS[0]) for name in LEVELS[0]}
# Parts that see less than all that is below them: of these only the modules named.
ONLY = {
    "kernels": {"data": ("data.categories",)},
    "gp": {"data": ()},
    "units": {"data": ()},
    "transforms": {"data": ()},
    "model": {"data": ()},
    "inducing": {"data": ()},
    "bounds": {"data": ("data.dataset",), "priors": (), "model": (), "inducing": (), "kernels": ()},
    "infer": {name: () for name in (*LEVELS[1], *LEVELS[2])},
    "targets": {"infer": ("infer.base",)},
    "posterior": {"infer": ("infer.base", "infer.convergence", "infer.importance", "infer.verdict"), "targets": ()},
    "storage": {"infer": ("infer.base", "infer.coordinates", "infer.convergence", "infer.modes", "infer.verdict")},
} | {
    name: {
        "methods": ("methods.fit", "methods.table"),
        "infer": (),
        "targets": (),
        "bounds": (),
    }
    for name in LEVELS[8]
}
LEVEL_OF = {name: level for level, names in enumerate(LEVELS) for name in names}
GRAPH = import_graph(MODULES)


def part(module: str) -> str:
    """The folder, or the file of the root, that a module belongs to; "" is the root itself."""
    return module.removeprefix("integrand").removeprefix(".").split(".")[0]


def may_import(module: str, imported: str) -> bool:
    """Whether the table allows this import."""
    one, other = part(module), part(imported)
    if one in ("", other):
        return True
    if other == "":  # only the root imports everything, so nothing may import the root
        return False
    if other in ONLY.get(one, {}):
        return imported.removeprefix("integrand.") in ONLY[one][other]
    return LEVEL_OF[other] < LEVEL_OF[one] or other in WITHIN.get(one, set())


def test_every_part_has_its_place_in_the_table():
    assert {part(module) for module in MODULES} - {""} == set(LEVEL_OF)


def test_imports_follow_the_table():
    wrong = sorted((module, name) for module in GRAPH for name in GRAPH[module] if not may_import(module, name))
    assert not wrong


@pytest.mark.parametrize(
    ("module", "imported", "allowed"),
    [
        ("infer.nuts", "linalg", True),
        ("infer.nuts", "model", False),
        ("linalg", "data.dataset", False),
        ("bounds.exact", "data.dataset", True),
        ("bounds.exact", "data.sources", False),
        ("kernels.base", "priors", True),
        ("priors", "kernels.base", False),
        ("cli.app", "methods.fit", True),
        ("cli.app", "methods.sgpr_hmc", False),
        ("report.html", "cli.app", False),
    ],
)
def test_the_table_is_read_as_it_is_meant(module, imported, allowed):
    assert may_import(f"integrand.{module}", f"integrand.{imported}") == allowed


def test_no_import_cycles():
    # Raises CycleError, which names the cycle.
    tuple(graphlib.TopologicalSorter(GRAPH).static_order())


def test_a_cycle_would_be_seen(tmp_path):
    (tmp_path / "a.py").write_text("from integrand.b import c\n")
    (tmp_path / "b.py").write_text("def f():\n    import integrand.a\n")
    graph = import_graph({"integrand.a": tmp_path / "a.py", "integrand.b": tmp_path / "b.py"})
    with pytest.raises(graphlib.CycleError):
        tuple(graphlib.TopologicalSorter(graph).static_order())
