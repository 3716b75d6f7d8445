"""A table of a page."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Table:
    """A table with a name for its files."""

    name: str
    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def markdown(self) -> str:
        """As Markdown, numbers to the right."""
        line = ["---" if i == 0 else "--:" for i in range(len(self.header))]
        body = [self.header, line, *self.rows]
        return f"### {self.title}\n\n" + "\n".join("| " + " | ".join(row) + " |" for row in body) + "\n"
