"""What a fit tells while it runs: a silent listener by default, a line that rewrites itself in a terminal."""

import time
from typing import Any, Protocol


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


class Bars:
    """A bar for each phase on standard error, with what the phase reports and the time left."""

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
    def elapsed(self) -> float:
        """Seconds since the clock was made."""
        return time.monotonic() - self.began
