"""The published tables: they return the objects that went in, and the pages of docs/evidence show their numbers."""

from pathlib import Path

import pytest

from experiments.store import Store
from experiments.suite_results import Results
from experiments.suites import PROTOCOLS, SUITES
from experiments.tables import TABLES
from results.read import HERE, about, read, read_files, write

PAGES = HERE.parent / "docs" / "evidence" / "paper"


def test_a_table_returns_what_was_written(tmp_path):
    results = {
        "b/split-1": {"score": 0.1 + 0.2, "count": 2**60, "mixed": 1, "none": None, "nested": {"z": [1, 2.5], "a": {}}},
        "a/split-0": {"score": -1e-300, "count": 0, "mixed": 1.5, "none": "text", "ok": True, "Größe": ["σ"]},
    }
    write(tmp_path / "table.parquet", results, {"processor": "any"})
    back = read(tmp_path / "table.parquet")
    assert back == results
    assert list(back) == sorted(results)
    assert list(back["b/split-1"]["nested"]) == ["z", "a"]  # the order of keys stays
    assert [type(back[path]["mixed"]) for path in results] == [int, float]
    assert about(tmp_path / "table.parquet") == {"processor": "any"}


def test_json_files_become_rows(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "split-0.json").write_text('{"x": [1]}')
    (tmp_path / "a" / "split-1.claim").write_text("{}")
    assert read_files(tmp_path) == {"a/split-0": {"x": [1]}}


def test_a_result_cannot_hide_its_path(tmp_path):
    with pytest.raises(ValueError, match="path"):
        write(tmp_path / "table.parquet", {"a": {"path": "b"}})


@pytest.fixture(scope="module")
def published():
    return Store(Path("nowhere"), read("paper"))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("suite", SUITES.values(), ids=lambda suite: suite.name)
def test_the_pages_show_the_numbers_of_the_table(published, suite, protocol):
    page = PAGES / (f"{suite.name}.md" if protocol == "default" else f"{suite.name}-{protocol}.md")
    results = Results.read(published, suite, protocol)
    assert page.exists() == bool(results.by_arm)
    if results.by_arm:
        text = page.read_text(encoding="utf-8")
        assert all(table.markdown().rstrip() in text for table in TABLES[suite.name](results))
