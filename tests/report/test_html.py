import base64
import dataclasses
import math
import shutil
import subprocess
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from integrand.errors import InputError
from integrand.infer.verdict import Sparseness
from integrand.report import report_html, write_report
from integrand.report.sections import Subject, _verdict

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """Checks that tags close in order, and keeps what a browser would load, show and read out."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.loads, self.text, self.attributes = [], [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.loads += [value for name, value in attrs if name in ("src", "href", "srcset", "data", "action")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text.append(data)

    @property
    def words(self):
        return " ".join("".join(self.text).split())

    def all(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture(scope="session")
def report(sampled, rows):
    return report_html(sampled, data=rows, title="A <b>title</b>", target="strength <MPa>")


@pytest.fixture(scope="session")
def page(report):
    return Page(report)


def test_everything_is_in_the_page(page):
    assert page.loads
    assert all(load.startswith(("data:", "#")) for load in page.loads)
    anchors = {attributes.get("id") for _, attributes in page.tags}
    assert all(load[1:] in anchors for load in page.loads if load.startswith("#"))
    assert {tag for tag, _ in page.tags}.isdisjoint({"script", "iframe", "object"})


def test_the_style_sheet_loads_nothing(report):
    style = report[report.index("<style>") : report.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    assert all(query in style for query in ("prefers-color-scheme: dark", "@media print", "max-width: 36rem"))


def test_what_users_wrote_is_escaped(report, page, sampled):
    assert "<script" not in report
    assert "<b>title" not in report
    for name in (*sampled.model.columns, "A <b>title</b>", "strength <MPa>"):
        assert " ".join(name.split()) in page.words


def test_figures_are_images_with_words_for_those_who_cannot_see_them(page, sampled):
    images = page.all("img")
    assert len(images) >= 3 * sampled.model.n_theta
    for image in images:
        assert len(image["alt"]) > 10
        kind, _, content = image["src"].partition("base64,")
        assert kind == "data:image/svg+xml;"
        assert ElementTree.fromstring(base64.b64decode(content)).tag.endswith("svg")


def test_headings_language_and_captions(page):
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("h1")) == 1
    assert len(page.all("table")) == len(page.all("caption"))
    anchors = [attributes["id"] for attributes in page.all("section")]
    assert anchors == [
        "verdict", "fitted", "hyperparameters", "relevance", "slices", "data", "sampling", "bound", "record", "cite",
    ]  # fmt: skip
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_says_what_was_fitted_and_how_to_cite(page, sampled):
    for text in (
        "RBF(",
        "PooledInverseGamma(2, 2, ",
        "sgpr-hmc",
        "draws kept for predicting",
        "ML-II",
        "R-hat",
        "Optimize or Integrate?",
        "NeurIPS 2022",
    ):
        assert text in page.words


@pytest.mark.slow
def test_size_and_repeatability(report, sampled, rows):
    assert len(report.encode()) < 3_000_000
    assert report == report_html(sampled, data=rows, title="A <b>title</b>", target="strength <MPa>")


# ---- verdicts


def verdict_of(posterior):
    _, _, content = _verdict(Subject(posterior, None, None, None, False, None, "y", None, "0"))
    return content, Page(content).words


def test_the_verdict_is_said_in_words(sampled, serious):
    clean = dataclasses.replace(sampled.verdict, findings=())
    content, words = verdict_of(dataclasses.replace(sampled, verdict=clean))
    assert "✓ Converged" in words
    assert "R-hat at most" in words
    assert 'class="verdict good"' in content

    remark = dataclasses.replace(clean, findings=(serious._replace(serious=False),))
    content, words = verdict_of(dataclasses.replace(sampled, verdict=remark))
    assert "! Converged, with remarks" in words
    assert 'class="verdict warn"' in content

    bad = dataclasses.replace(clean, findings=(serious,))
    content, words = verdict_of(dataclasses.replace(sampled, verdict=bad))
    assert "✕ Not to be trusted yet" in words
    assert serious.sentence in words
    assert serious.remedy in words
    assert "<noise>" not in content


def test_remarks_on_the_model_stand_apart(sampled, serious):
    said = Sparseness(30, 8, 0.2, 0.1, -1.0, math.nan, math.nan)
    clean = dataclasses.replace(sampled.verdict, findings=(), sparseness=said)
    content, words = verdict_of(dataclasses.replace(sampled, verdict=clean))
    assert "✓ Converged" in words
    assert "✓ ModelTwice the inducing points would gain 0.20 ± 0.10 nats and change nothing" in words
    assert "warn" not in content

    remark = dataclasses.replace(clean, findings=(serious._replace(code="skewed", serious=False),))
    content, words = verdict_of(dataclasses.replace(sampled, verdict=remark))
    assert "✓ Converged" in words
    assert "! Model, with 1 remark" in words
    assert serious.remedy in words
    assert content.count('class="verdict good"') == content.count('class="verdict warn"') == 1
    subject = Subject(dataclasses.replace(sampled, verdict=remark), None, None, None, False, None, "y", None, "0")
    assert serious.remedy.upper() in Page(_verdict(subject._replace(words=str.upper))[2]).words


def test_an_optimised_fit_says_so(optimised):
    page = Page(report_html(optimised))
    assert "Optimised, not sampled" in page.words
    assert "sgpr-hmc" in page.words
    sections = [attributes["id"] for attributes in page.all("section")]
    assert "sampling" not in sections
    assert "data" not in sections


def test_no_draws_at_all(sampled, optimised):
    none = dataclasses.replace(sampled, chains=optimised.chains)
    assert Page(report_html(none)).words


def test_one_column(one_column):
    words = Page(report_html(one_column, n_rows=60, settings={"seed": 0})).words
    assert "MAP point" in words
    assert "seed" in words


# ---- data


@pytest.mark.slow
def test_rows_held_out_or_not(report, sampled, rows):
    flattering = "these numbers flatter it"
    assert flattering in report
    text = Page(report_html(sampled, data=rows, held_out=True)).words
    assert flattering not in text
    assert "took no part in the fit" in text


def test_wrong_data_is_refused(sampled, rows):
    X, y = rows
    with pytest.raises(InputError, match="equal"):
        report_html(sampled, data=(X, y[:-1]))
    with pytest.raises(InputError, match="columns"):
        report_html(sampled, data=(X[:, :1], y))


def test_names_in_any_script(optimised):
    columns = ("温度 🌡", "x" * 300)
    model = optimised.model
    renamed = type(model)(model.kernel, columns, model.noise, model.mean, model.priors)
    words = Page(report_html(dataclasses.replace(optimised, model=renamed))).words
    assert "温度" in words


def test_writing_is_all_or_nothing(tmp_path, optimised, sampled, rows):
    path = tmp_path / "report.html"
    path.write_text("before")
    with pytest.raises(InputError):
        write_report(path, sampled, data=(rows[0], rows[1][:-1]))
    assert path.read_text() == "before"
    write_report(path, optimised)
    assert path.read_text(encoding="utf-8").rstrip().endswith("</html>")
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]


# ---- a browser

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
QUIET = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update", "--enable-logging=stderr"),
    "--virtual-time-budget=5000",
]
# Runs after the page in a copy of it: its policy allows no scripts, which is as it should be.
PROBE = """<script>addEventListener("load", () => {
  const images = [...document.images];
  document.title = [images.length, images.filter(i => i.complete && i.naturalWidth > 0).length,
    document.documentElement.scrollWidth <= innerWidth + 1].join(" ");
});</script></body>"""


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
@pytest.mark.parametrize("width", [390, 1200])
def test_in_a_browser(tmp_path, report, width):
    path = tmp_path / "report.html"
    start = report.index('<meta http-equiv="Content-Security-Policy"')
    open_policy = report[:start] + report[report.index(">", start) + 1 :]
    path.write_text(open_policy.replace("</body>", PROBE), encoding="utf-8")
    command = [BROWSER, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},900", "--dump-dom"]
    done = subprocess.run([*command, path.as_uri()], capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr
    title = done.stdout.partition("<title>")[2].partition("</title>")[0]
    images, loaded, fits = title.split()
    assert int(images) == report.count("<img ")
    assert loaded == images
    assert fits == "true"


@pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine")
def test_its_own_policy_stops_nothing_it_needs(tmp_path, report):
    path, picture = tmp_path / "report.html", tmp_path / "page.png"
    path.write_text(report, encoding="utf-8")
    command = [BROWSER, *QUIET, f"--user-data-dir={tmp_path / 'profile'}", f"--screenshot={picture}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "CONSOLE" not in done.stderr
    assert picture.stat().st_size > 10_000


def test_the_argument_of_the_paper_is_a_sentence(sampled):
    from integrand.report.sections import _argument
    from integrand.report.tables import entries

    far = dataclasses.replace(sampled, optimum=sampled.optimum + 20.0)
    assert f"outside the central 90 % posterior interval of {sampled.model.n_theta}" in _argument(far)
    middle = np.median(sampled.chains.x.reshape(-1, sampled.model.n_theta), axis=0)
    assert "of every hyperparameter" in _argument(dataclasses.replace(sampled, optimum=middle))
    assert len(entries(sampled)) == sampled.model.n_theta
