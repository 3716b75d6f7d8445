"""What a fit shows while it runs: nothing by default, else bars in a terminal or a notebook and lines in a log file."""

import html
import importlib.util
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO


class Progress(Protocol):
    """Hears of each phase, and of how far it is."""

    def phase(self, name: str) -> None:
        """A phase begins."""
        ...

    def update(self, done: int, total: int, text: str = "") -> None:
        """So much of the phase is done."""
        ...

    def close(self) -> None:
        """The fit has ended."""
        ...


class Silent:
    """Says nothing."""

    def phase(self, name: str) -> None:
        """A phase begins."""

    def update(self, done: int, total: int, text: str = "") -> None:
        """So much of the phase is done."""

    def close(self) -> None:
        """The fit has ended."""


@contextmanager
def shown(progress: bool | Progress) -> Iterator[Progress]:
    """What shows the progress of a fit, until the fit ends."""
    listener = progress if not isinstance(progress, bool) else _suitable() if progress else Silent()
    try:
        yield listener
    finally:
        listener.close()


def _suitable() -> Progress:
    """Bars where they can be drawn, else lines."""
    if _in_notebook():
        return NotebookBars()
    return Bars() if sys.stderr.isatty() and importlib.util.find_spec("rich") else Lines()


def _in_notebook() -> bool:
    """Whether this runs in a Jupyter kernel, which shows HTML; IPython in a terminal has none."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


class Lines:
    """A plain line on standard error every ten seconds, for log files: seconds, phase, and how far it is.

    A thread writes them, so they also come while one step takes minutes.
    """

    def __init__(self, interval: float = 10.0, stream: TextIO | None = None):
        self._stream = stream or sys.stderr
        self._began = time.monotonic()
        self._phase, self._state, self._written = "start", "", False
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(interval,), name="integrand-progress", daemon=True)
        self._thread.start()

    def phase(self, name: str) -> None:
        """A phase begins."""
        self._phase, self._state = name, ""

    def update(self, done: int, total: int, text: str = "") -> None:
        """So much of the phase is done."""
        self._state = f"{_percent(done, total):.0f} %  {text}".rstrip()

    def close(self) -> None:
        """The fit has ended; a last line says so if there were others."""
        self._closed.set()
        self._thread.join()
        if self._written:
            self._write("finished", "")

    def _run(self, interval: float) -> None:
        while not self._closed.wait(interval):
            self._write(self._phase, self._state)
            self._written = True

    def _write(self, *parts: str) -> None:
        seconds = f"{time.monotonic() - self._began:6.0f} s"
        print("  ".join(part for part in (seconds, *parts) if part), file=self._stream, flush=True)


class NotebookBars:
    """A bar for each phase in the output of a notebook's cell; the bars stay there when the fit has ended."""

    # Seconds between two updates of the cell.
    _PAUSE = 0.25

    def __init__(self):
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        self._phases: list[_NotebookPhase] = []
        self._shown = time.monotonic()
        self._handle: Any = display(self, display_id=True)

    def phase(self, name: str) -> None:
        """Finish the bar of the last phase and begin another."""
        self._finish()
        self._phases.append(_NotebookPhase(name))
        self._show()

    def update(self, done: int, total: int, text: str = "") -> None:
        """Move the bar."""
        self._phases[-1].percent, self._phases[-1].text = _percent(done, total), text
        if time.monotonic() - self._shown >= self._PAUSE:
            self._show()

    def close(self) -> None:
        """Finish the last bar."""
        self._finish()
        self._show()

    def _finish(self) -> None:
        if self._phases:
            self._phases[-1].finish()

    def _show(self) -> None:
        self._shown = time.monotonic()
        self._handle.update(self)

    def _repr_html_(self) -> str:
        return f"<table>{''.join(phase.row() for phase in self._phases)}</table>"

    def __repr__(self) -> str:
        return "\n".join(phase.line() for phase in self._phases)


class _NotebookPhase:
    """One row: name, bar, seconds and what the phase reports."""

    def __init__(self, name: str):
        self.name, self.percent, self.text = name, 0.0, ""
        self._began = time.monotonic()
        self._seconds: float | None = None

    def finish(self) -> None:
        if self._seconds is None:
            self.percent, self._seconds = 100.0, time.monotonic() - self._began

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began if self._seconds is None else self._seconds

    def row(self) -> str:
        bar = f'<progress value="{self.percent:.0f}" max="100"></progress>'
        cells = (html.escape(self.name), bar, f"{self.seconds:.0f} s", html.escape(self.text))
        return "<tr>" + "".join(f'<td style="text-align:left">{cell}</td>' for cell in cells) + "</tr>"

    def line(self) -> str:
        return f"{self.name:<16} {self.percent:3.0f} %  {self.seconds:4.0f} s  {self.text}".rstrip()


def _percent(done: int, total: int) -> float:
    return 100.0 * min(done, total) / total if total else 0.0


class Bars:
    """A bar for each phase in a terminal, with what the phase reports and the time left."""

    def __init__(self):
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress
        from rich.table import Column

        def fixed(width: int) -> Column:
            return Column(no_wrap=True, min_width=width)  # in a narrow terminal the text gives way, not the times

        self._bars = RichProgress(
            TextColumn("{task.description:<16}", table_column=fixed(16)),
            BarColumn(bar_width=10, table_column=fixed(10)),
            TimeElapsedColumn(table_column=fixed(7)),
            TextColumn("left", table_column=fixed(4)),
            TimeRemainingColumn(compact=True, table_column=fixed(5)),
            TextColumn("{task.fields[text]}", table_column=Column(no_wrap=True, overflow="ellipsis")),
            console=Console(stderr=True),
        )
        self._bars.start()
        self._task: Any = None

    def phase(self, name: str) -> None:
        """Finish the bar of the last phase and begin another."""
        self._finish()
        self._task = self._bars.add_task(name, total=None, text="")

    def update(self, done: int, total: int, text: str = "") -> None:
        """Move the bar."""
        self._bars.update(self._task, completed=done, total=total, text=text)

    def close(self) -> None:
        """Finish the last bar and leave the terminal as it was."""
        self._finish()
        self._bars.stop()

    def _finish(self) -> None:
        if self._task is not None:
            total = self._bars.tasks[self._task].total
            self._bars.update(self._task, total=total or 1, completed=total or 1)


class Clock:
    """Seconds by phase: `clock.enter("rounds")` ends the phase before it."""

    def __init__(self):
        self.began = time.monotonic()
        self.seconds: dict[str, float] = {}
        self._phase, self._since = "", self.began

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        now = time.monotonic()
        if self._phase:
            self.seconds[self._phase] = self.seconds.get(self._phase, 0.0) + now - self._since
        self._phase, self._since = phase, now

    @property
    def so_far(self) -> dict[str, float]:
        """Seconds by phase, those of the phase that has not ended included."""
        running = {self._phase: self.seconds.get(self._phase, 0.0) + time.monotonic() - self._since}
        return self.seconds | (running if self._phase else {})

    @property
    def elapsed(self) -> float:
        """Seconds since the clock was made."""
        return time.monotonic() - self.began
