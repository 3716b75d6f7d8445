"""Named data sets: formats, hashes, downloads, and the paper's splits."""

import dataclasses
import gzip
import http.server
import io
import os
import threading
import zipfile
from pathlib import Path

import numpy as np
import pytest

from experiments.catalogue import (
    SOURCES,
    Mirror,
    Source,
    parse_energy,
    parse_semicolons,
    parse_statlib_boston,
    parse_whitespace,
    zip_member,
)
from experiments.datasets import available, fetch, load, paper_split, values_hash
from integrand.errors import DataSourceError, InputError

TABLE = np.array([[1.0, -2.5e-7, 3.0], [0.1, 1e12, -4.0], [1 / 3, 5.0, 6.0], [7.0, 8.0, 9.0]])
PLAIN = b"1 -2.5e-7   3.00\n.1 1e12 -4\n 0.3333333333333333 5 6 \n7 8 9\n\n"
CSV = b"a,b,t\n" + b"".join(b",".join(repr(v).encode() for v in row) + b"\n" for row in TABLE.tolist())


def record(*mirrors, **changes):
    base = Source("tiny", (4, 3), ("a", "b", "t"), values_hash(TABLE), "nobody", "none", mirrors, "it is made up")
    return dataclasses.replace(base, **changes)


@pytest.fixture
def server(monkeypatch):
    """Serve a dict of path -> bytes, an HTTP status, or an event to wait for, on a free local port."""
    monkeypatch.setenv("no_proxy", "*")
    answers = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            answer = answers.get(self.path, 404)
            if isinstance(answer, threading.Event):
                answer.wait(10)
                return
            if isinstance(answer, int):
                self.send_error(answer)
                return
            self.send_response(200)
            body, length = answer if isinstance(answer, tuple) else (answer, len(answer))
            self.send_header("Content-Length", str(length))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}", answers
        httpd.shutdown()
        thread.join()


# Reading


@pytest.mark.parametrize(("file", "content"), [("tiny.csv", CSV), ("tiny.csv.gz", gzip.compress(CSV, mtime=0))])
def test_load_reads_plain_and_compressed_tables(tmp_path, file, content):
    (tmp_path / file).write_bytes(content)
    data = load(record(), tmp_path)
    np.testing.assert_array_equal(data.X, TABLE[:, :2])
    np.testing.assert_array_equal(data.y, TABLE[:, 2])
    assert (data.feature_names, data.target_name, data.name) == (("a", "b"), "t", "tiny")
    assert data.X.flags.c_contiguous


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (CSV + b"1,2,3\n", r"\(5, 3\), not \(4, 3\)"),
        (CSV.replace(b"9.0", b"9.5"), "SHA-256"),
        (CSV.replace(b"9.0", b"nine"), "line 5 holds 'nine'"),
        (CSV.replace(b",9.0", b""), "line 5 has 2 values"),
        (CSV.replace(b"9.0", b""), "line 5 holds ''"),
        (gzip.compress(CSV, mtime=0)[:-12], "truncated or damaged gzip"),
        (b"\x1f\x8b" + b"junk" * 9, "truncated or damaged gzip"),
        (b"\x93NUMPY\xff\xfe", "not a text file"),
        (b"", "no rows"),
        (b"a,b,t\n", "no rows"),
    ],
)
def test_load_refuses_a_wrong_file_and_names_it(tmp_path, content, message):
    (tmp_path / "tiny.csv").write_bytes(content)
    with pytest.raises(DataSourceError, match=message) as caught:
        load(record(), tmp_path)
    assert "tiny.csv" in str(caught.value)
    assert "Delete it" in str(caught.value)


def test_rows_in_another_order_are_another_table(tmp_path):
    lines = CSV.splitlines(keepends=True)
    (tmp_path / "tiny.csv").write_bytes(b"".join([lines[0], *reversed(lines[1:])]))
    with pytest.raises(DataSourceError, match="rows reordered"):
        load(record(), tmp_path)


def test_unknown_names_get_the_nearest_and_the_list():
    with pytest.raises(DataSourceError, match=r"did you mean 'concrete'\?.*boston, .*elevators"):
        load("Concrte", "anywhere")
    with pytest.raises(DataSourceError, match="Known names: boston"):
        load("xyzzy", "anywhere")


def test_no_directory_names_the_variable(monkeypatch):
    monkeypatch.delenv("INTEGRAND_DATA", raising=False)
    with pytest.raises(DataSourceError, match="INTEGRAND_DATA"):
        load("yacht")


def test_the_variable_names_the_directory(tmp_path, monkeypatch):
    (tmp_path / "tiny.csv").write_bytes(CSV)
    monkeypatch.setenv("INTEGRAND_DATA", str(tmp_path))
    assert load(record()).X.shape == (4, 2)


def test_missing_files_say_how_to_get_them(tmp_path):
    with pytest.raises(DataSourceError, match=r"no yacht.csv or yacht.csv.gz in .*download=True"):
        load("yacht", tmp_path)
    with pytest.raises(DataSourceError, match=r"Excel.*Concrete_Data.xls.*by hand"):
        load("concrete", tmp_path)


@pytest.mark.parametrize("name", [name for name, source in SOURCES.items() if not source.mirrors])
def test_sets_without_a_public_address_say_why(tmp_path, name):
    for attempt in (lambda: fetch(name, tmp_path), lambda: load(name, tmp_path, download=True)):
        with pytest.raises(DataSourceError, match=f"{name} cannot be downloaded: .*by hand"):
            attempt()
    assert not list(tmp_path.iterdir())


def test_available_lists_what_is_there(tmp_path):
    assert available(tmp_path) == ()
    (tmp_path / "yacht.csv").touch()
    (tmp_path / "boston.csv.gz").touch()
    (tmp_path / "unrelated.csv").touch()
    assert available(tmp_path) == ("boston", "yacht")
    assert available(tmp_path / "missing") == ()


# Fetching


def test_fetched_table_is_stored_without_loss(server, tmp_path):
    base, answers = server
    answers["/raw"] = PLAIN
    source = record(Mirror(f"{base}/raw", parse_whitespace))
    data = load(source, tmp_path / "new" / "folder", download=True)
    np.testing.assert_array_equal(np.column_stack([data.X, data.y]), TABLE)
    answers.clear()  # from here on only the file can answer
    np.testing.assert_array_equal(load(source, tmp_path / "new" / "folder", download=True).y, data.y)
    assert [path.name for path in (tmp_path / "new" / "folder").iterdir()] == ["tiny.csv"]


def test_second_mirror_is_asked_when_the_first_fails(server, tmp_path):
    base, answers = server
    answers["/good"] = PLAIN
    source = record(Mirror(f"{base}/gone", parse_whitespace), Mirror(f"{base}/good", parse_whitespace))
    assert fetch(source, tmp_path) == tmp_path / "tiny.csv"


def test_another_address_for_a_set_without_mirrors_serves_a_table(server, tmp_path):
    base, answers = server
    answers["/tiny.csv.gz"] = gzip.compress(CSV, mtime=0)
    fetch(record(), tmp_path, url=f"{base}/tiny.csv.gz")
    np.testing.assert_array_equal(load(record(), tmp_path).y, TABLE[:, 2])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (404, "answered 404"),
        (500, "answered 500"),
        (b"<html><body>Please log in</body></html>", "is not the tiny data set .*holds '<html>"),
        (b"", "no rows"),
        (PLAIN.replace(b"9", b"9.5"), "SHA-256"),
        (PLAIN[:20], r"not the tiny data set"),
        ((PLAIN[:20], len(PLAIN)), "could not be read"),
    ],
)
def test_failed_downloads_leave_nothing_and_keep_the_old_file(server, tmp_path, answer, message):
    base, answers = server
    answers["/raw"] = answer
    source = record(Mirror(f"{base}/raw", parse_whitespace))
    with pytest.raises(DataSourceError, match=message) as caught:
        fetch(source, tmp_path)
    assert f"{base}/raw" in str(caught.value)
    assert not list(tmp_path.iterdir())
    (tmp_path / "tiny.csv").write_bytes(CSV)
    with pytest.raises(DataSourceError):
        fetch(source, tmp_path)
    assert (tmp_path / "tiny.csv").read_bytes() == CSV
    assert len(list(tmp_path.iterdir())) == 1


def test_the_old_file_stays_until_the_new_one_is_complete(server, tmp_path, monkeypatch):
    base, answers = server
    answers["/raw"] = PLAIN
    (tmp_path / "tiny.csv").write_bytes(b"old")

    def disk_full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", disk_full)
    with pytest.raises(DataSourceError, match="no space left"):
        fetch(record(Mirror(f"{base}/raw", parse_whitespace)), tmp_path)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"old"]


def test_a_damaged_file_is_replaced_by_a_good_download(server, tmp_path):
    base, answers = server
    answers["/raw"] = PLAIN
    (tmp_path / "tiny.csv").write_bytes(CSV[:30])
    fetch(record(Mirror(f"{base}/raw", parse_whitespace)), tmp_path)
    np.testing.assert_array_equal(load(record(), tmp_path).y, TABLE[:, 2])


def test_a_silent_server_is_given_up(server, tmp_path):
    base, answers = server
    answers["/raw"] = waiting = threading.Event()
    try:
        with pytest.raises(DataSourceError, match=r"no answer within 0.2 s \(timeout\)"):
            fetch(record(Mirror(f"{base}/raw", parse_whitespace)), tmp_path, timeout=0.2)
    finally:
        waiting.set()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/raw", "no address at all", "http://[broken"])
def test_unreachable_addresses(tmp_path, monkeypatch, url):
    monkeypatch.setenv("no_proxy", "*")
    with pytest.raises(DataSourceError, match="could not be read"):
        fetch(record(), tmp_path, url=url, timeout=2)


def test_unwritable_directory_is_noticed_before_the_download(server, tmp_path):
    base, answers = server
    answers["/raw"] = PLAIN
    in_the_way = tmp_path / "file"
    in_the_way.write_text("not a directory")
    with pytest.raises(DataSourceError, match=r"cannot write .*tiny.csv.*Choose a directory"):
        fetch(record(Mirror(f"{base}/raw", parse_whitespace)), in_the_way)


# The real files, where they are present


def real_data():
    neighbour = Path(__file__).resolve().parents[2].parent / "shared" / "data"
    return Path(os.environ.get("INTEGRAND_DATA", neighbour))


@pytest.mark.parametrize("name", SOURCES)
def test_real_files_are_the_known_tables(name):
    folder = real_data()
    if name not in available(folder):
        pytest.skip(f"no {name} file: set INTEGRAND_DATA to the directory that holds it")
    data = load(name, folder)
    assert (len(data.y), data.X.shape[1] + 1) == SOURCES[name].shape


def test_as_published_differs_from_boston_in_the_damaged_cells_only():
    folder = real_data()
    if not {"boston", "boston_as_published"} <= set(available(folder)):
        pytest.skip("no boston files: set INTEGRAND_DATA to the directory that holds them")
    true, damaged = load("boston", folder), load("boston_as_published", folder)
    np.testing.assert_array_equal(true.y, damaged.y)
    counts = dict(zip(true.feature_names, (true.X != damaged.X).sum(axis=0).tolist(), strict=True))
    assert {name: n for name, n in counts.items() if n} == {"RAD": 132, "CRIM": 54, "DIS": 5}


# Formats


def test_catalogue_is_consistent():
    for name, source in SOURCES.items():
        assert source.name == name
        assert len(source.columns) == source.shape[1] == len(set(source.columns))
        assert bool(source.mirrors) != bool(source.by_hand)
        assert len(source.sha256) == 64
        assert source.citation
        assert source.licence


def test_blanks_of_any_width_and_empty_lines():
    raw = b" 1   2.50\n\n.5\t-3e-4 \n\n"
    np.testing.assert_array_equal(parse_whitespace(raw), [[1, 2.5], [0.5, -3e-4]])


def test_semicolons_with_quoted_header():
    raw = b'"fixed acidity";"quality"\r\n7.4;5\r\n7.8;6\r\n'
    np.testing.assert_array_equal(parse_semicolons(raw), [[7.4, 5], [7.8, 6]])


def test_energy_keeps_heating_and_drops_cooling_load():
    raw = b"X1,X2,X3,X4,X5,X6,X7,X8,Y1,Y2\n1,2,3,4,5,6,7,8,15.5,21.3\n"
    np.testing.assert_array_equal(parse_energy(raw), [[1, 2, 3, 4, 5, 6, 7, 8, 15.5]])


def test_statlib_rows_span_two_lines():
    rows = np.arange(28.0).reshape(2, 14)
    body = "".join(" ".join(map(str, row[:11])) + "\n  " + " ".join(map(str, row[11:])) + "\n" for row in rows)
    raw = ("text\n" * 21 + "\n" + body).encode()
    np.testing.assert_array_equal(parse_statlib_boston(raw), rows)
    with pytest.raises(ValueError, match="odd number"):
        parse_statlib_boston(raw + b"1 2 3\n")


def test_zip_member_reads_one_file():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("inner.data", b"1 2\n3 4\n")
    np.testing.assert_array_equal(zip_member("inner.data", parse_whitespace)(buffer.getvalue()), [[1, 2], [3, 4]])
    for member, raw in (("other.data", buffer.getvalue()), ("inner.data", buffer.getvalue()[:40])):
        with pytest.raises(ValueError, match="not a zip archive with"):
            zip_member(member, parse_whitespace)(raw)


# Splits


SIZES = {
    "boston": (404, 102),
    "boston_as_published": (404, 102),
    "concrete": (824, 206),
    "energy": (614, 154),
    "winered": (1279, 320),
    "yacht": (245, 62),
    "elevators": (13279, 3320),
}


@pytest.mark.parametrize("name", SOURCES)
def test_sizes_of_the_paper(name):
    source = SOURCES[name]
    train, test, inducing = paper_split(source.paper_rows or source.shape[0], 0)
    assert (len(train), len(test)) == SIZES[name]
    assert len(inducing) == 100


@pytest.mark.parametrize(("n_rows", "first"), [(506, [8, 504, 426, 106, 107]), (307, [136, 40, 7, 207, 265])])
def test_first_training_rows_of_the_paper(n_rows, first):
    assert paper_split(n_rows, 0).train[:5].tolist() == first


def test_inducing_rows_of_yacht_repeat_as_in_the_paper():
    repeats = [100 - len(np.unique(paper_split(307, k).inducing)) for k in range(10)]
    assert (min(repeats), max(repeats)) == (15, 22)


@pytest.mark.parametrize("k", [0, 3, 9])
def test_same_stream_as_the_global_seed(k):
    state = np.random.get_state()  # noqa: NPY002
    try:
        np.random.seed(173 + k)  # noqa: NPY002
        rows = np.arange(307)
        np.random.shuffle(rows)  # noqa: NPY002
        inducing = np.random.randint(0, 245, 100)  # noqa: NPY002
    finally:
        np.random.set_state(state)  # noqa: NPY002
    split = paper_split(307, k)
    np.testing.assert_array_equal(np.concatenate([split.train, split.test]), rows)
    np.testing.assert_array_equal(split.inducing, inducing)


def test_paper_split_leaves_the_global_stream_alone():
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    paper_split(100, 0)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002


def test_number_of_inducing_rows_does_not_change_the_split():
    few, many = paper_split(50, 1, n_inducing=5), paper_split(50, 1, n_inducing=30)
    np.testing.assert_array_equal(few.train, many.train)
    np.testing.assert_array_equal(few.inducing, many.inducing[:5])
    assert many.inducing.max() < len(many.train)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: paper_split(1, 0), "n_rows must be at least 2"),
        (lambda: paper_split(10, -1), "k must be at least 0"),
        (lambda: paper_split(10, 0, n_inducing=-1), "n_inducing"),
        (lambda: paper_split(10.0, 0), "n_rows must be a whole number"),
    ],
)
def test_errors_name_the_cause(call, message):
    with pytest.raises(InputError, match=message):
        call()
