import io
import sys
import time
import types

import numpy as np
import pytest

import integrand
from integrand.progress import Bars, Lines, NotebookBars, Silent, shown


def told(listener):
    """Two phases, as a fit tells of them."""
    listener.phase("rounds")
    listener.update(1, 4, "bound -1.50")
    listener.phase("final <draws>")
    listener.update(30, 40, "30 of 40 draws")


def waited_for(condition):
    deadline = time.monotonic() + 10.0
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.005)
    assert condition()


def test_a_log_file_gets_plain_lines_while_a_phase_takes_its_time():
    stream = io.StringIO()
    lines = Lines(interval=0.01, stream=stream)
    told(lines)
    waited_for(lambda: stream.getvalue().count("75 %  30 of 40 draws") >= 2)  # no update came in between
    lines.close()
    written = stream.getvalue().splitlines()
    assert "     0 s  final <draws>  75 %  30 of 40 draws" in written
    assert written[-1] == "     0 s  finished"


def test_a_short_fit_leaves_no_lines_in_a_log_file():
    stream = io.StringIO()
    lines = Lines(stream=stream)
    told(lines)
    lines.close()
    assert stream.getvalue() == ""


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("stream", "kind"), [(io.StringIO(), Lines), (Terminal(), Bars)])
def test_bars_are_for_terminals_and_lines_for_files(monkeypatch, stream, kind):
    monkeypatch.setattr(sys, "stderr", stream)
    with shown(True) as listener:
        assert isinstance(listener, kind)
        told(listener)


def test_nothing_is_shown_by_default_and_a_listener_of_the_caller_s_is_used():
    with shown(False) as listener:
        assert isinstance(listener, Silent)
    own = Silent()
    with shown(own) as listener:
        assert listener is own


@pytest.fixture
def notebook(monkeypatch):
    """A kernel of IPython's that keeps what it was asked to display."""
    cell = []

    class Handle:
        def update(self, content):
            cell.append((content._repr_html_(), repr(content)))

    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace(kernel=object())
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = lambda content, display_id: Handle()
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return cell


def test_a_notebook_gets_a_bar_for_each_phase(notebook):
    with shown(True) as listener:
        assert isinstance(listener, NotebookBars)
        told(listener)
    page, text = notebook[-1]
    assert page.count('<progress value="100" max="100">') == 2
    assert "final &lt;draws&gt;" in page
    assert "30 of 40 draws" in page
    assert text.splitlines() == [
        "rounds           100 %     0 s  bound -1.50",
        "final <draws>    100 %     0 s  30 of 40 draws",
    ]


@pytest.mark.slow
def test_a_fit_in_a_notebook_shows_its_phases(notebook):
    x = np.linspace(0.0, 1.0, 12)[:, None]
    integrand.fit(x, np.sin(6.0 * x[:, 0]), method="ml2", n_inducing=4, progress=True)
    assert "optimise" in notebook[-1][0]
