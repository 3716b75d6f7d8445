"""Checks of the documentation that Sphinx does not make. `make docs` runs both.

python docs/check.py prose          sentences and paragraphs of README and docs: prints the worst ten
python docs/check.py site DIR       the built site: internal links and anchors, and nothing that comes from a network
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import ClassVar, NamedTuple
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).resolve().parents[1]
MAX_WORDS, MAX_SENTENCES = 30, 5

# A sentence ends at a full stop, question or exclamation mark before a space. These stops are part of a word.
_STOPS = re.compile(r"\b(e\.g|i\.e|et al|vs|cf|Fig|Eq|Dr|St)\.")
_END = re.compile(r"(?<=[.!?])[\"'”’)\]]*\s+(?=\S)")
_DIRECTIVES_WITHOUT_PROSE = ("code-cell", "toctree", "eval-rst", "literalinclude", "math", "include", "mermaid")


class Text(NamedTuple):
    """A paragraph, a list item or a table cell."""

    where: str
    sentences: list[str]


def pages() -> list[Path]:
    """Every page that a reader may open, without those of a build."""
    found = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
    return [*found, *sorted((ROOT / "docs").rglob("*.md"))]


def texts(page: Path) -> Iterator[Text]:
    """The prose of a Markdown page: paragraphs, list items, table cells, captions; no code, no headings."""
    source = page.read_text()
    front = re.match(r"---\n.*?\n---\n", source, re.S)
    offset = front.group().count("\n") if front else 0
    yield from _texts(source[front.end() :] if front else source, page.relative_to(ROOT).as_posix(), offset)


def _texts(source: str, name: str, offset: int) -> Iterator[Text]:
    from markdown_it import MarkdownIt

    # Fences of colons hold prose: their own lines go, what is between them stays.
    source = re.sub(r"^(:::+.*|:[a-z-]+:.*|\([\w-]+\)=)$", "", source, flags=re.M)
    line, heading, cell = 0, False, False
    for token in MarkdownIt("commonmark").enable("table").parse(source):
        line = token.map[0] if token.map else line
        heading = token.type == "heading_open" or (heading and token.type != "heading_close")
        cell = token.type in ("td_open", "th_open") or (cell and token.type not in ("td_close", "th_close"))
        if token.type == "fence" and token.info.startswith("{"):
            kind = token.info[1:].partition("}")[0]
            if kind not in _DIRECTIVES_WITHOUT_PROSE:
                yield from _texts(token.content, name, offset + line + 1)
        elif token.type == "inline" and not heading:
            text = _plain(token)
            if text.strip():
                # A cell that lists things separates them by semicolons.
                for part in text.split("; ") if cell else [text]:
                    yield Text(f"{name}:{offset + line + 1}", sentences(part))


def _plain(token) -> str:
    """The words of an inline token; code and a formula count as a word each."""
    parts = []
    for child in token.children or []:
        if child.type == "text":
            parts.append(child.content)
        elif child.type == "code_inline":
            parts.append("code")
        elif child.type in ("softbreak", "hardbreak"):
            parts.append(" ")
    text = re.sub(r"\{[a-z:-]+\}(?=code)", "", "".join(parts))
    return re.sub(r"\$[^$]+\$", "formula", text)


def sentences(text: str) -> list[str]:
    """The sentences of a paragraph."""
    text = _STOPS.sub(lambda m: m.group().replace(".", "\u2024"), " ".join(text.split()))
    return [s for s in _END.split(text) if s.strip()]


def n_words(sentence: str) -> int:
    """Words are what has a letter or a digit between spaces."""
    return sum(any(c.isalnum() for c in word) for word in sentence.split())


def check_prose() -> bool:
    """Print the ten longest sentences and paragraphs; False if any is beyond its limit."""
    every = [text for page in pages() for text in texts(page)]
    longest = sorted(((n_words(s), t.where, s) for t in every for s in t.sentences), reverse=True)
    fullest = sorted(((len(t.sentences), t.where, t.sentences[0]) for t in every), reverse=True)
    bad = [n for n, *_ in longest if n > MAX_WORDS], [n for n, *_ in fullest if n > MAX_SENTENCES]
    print(f"{len(longest)} sentences on {len(pages())} pages. The ten longest (limit {MAX_WORDS} words):")
    for n, where, sentence in longest[: max(10, len(bad[0]))]:
        print(f"  {n:3d} words  {where}  {sentence[:110]}")
    print(f"The ten fullest paragraphs (limit {MAX_SENTENCES} sentences):")
    for n, where, sentence in fullest[: max(10, len(bad[1]))]:
        print(f"  {n:3d} sentences  {where}  {sentence[:100]}")
    # Python must be run by the build, and a shell command must end the build if it fails, which `!command` does not.
    forbidden = re.compile(r"^(```python|!(?!\[))", re.M)
    unrun = [str(page.relative_to(ROOT)) for page in pages()[3:] if forbidden.search(page.read_text())]
    if unrun:
        print(f"Use {{code-cell}} for Python, and %%bash in place of ! for commands: {', '.join(unrun)}")
    return not (bad[0] or bad[1] or unrun)


class Page(HTMLParser):
    """What a built page defines, links to and loads."""

    LOADS: ClassVar = {
        "script": "src",
        "link": "href",
        "img": "src",
        "iframe": "src",
        "source": "src",
        "object": "data",
    }

    def __init__(self, text: str):
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note ids, links and loaded files."""
        given = {name: value for name, value in attrs if value}
        self.ids.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        key = self.LOADS.get(tag)
        if key in given and given.get("rel") not in ("canonical", "next", "prev", "search", "index", "author"):
            self.loads.append(given[key])


def check_site(site: Path) -> bool:
    """Print what is wrong with the built site; False if anything is."""
    paths = [path for path in site.rglob("*.html") if "_static" not in path.parts]
    built = {path: Page(path.read_text()) for path in paths}
    wrong = []
    for path, page in built.items():
        name = path.relative_to(site)
        wrong += [f"{name} loads {load}" for load in page.loads if re.match(r"(https?:)?//", load)]
        for link in [*page.links, *(load for load in page.loads if not load.startswith("data:"))]:
            wrong += [f"{name}: {message}" for message in _broken(link, path, built)]
    for style in site.rglob("*.css"):
        if re.search(r"(@import\s+|url\()[\"']?(https?:)?//", style.read_text()):
            wrong.append(f"{style.relative_to(site)} loads something from a network")
    print("\n".join(wrong) or f"{len(built)} pages: links and anchors exist, and nothing is loaded from a network.")
    return not wrong


def _broken(link: str, path: Path, built: dict[Path, Page]) -> Iterator[str]:
    parts = urlsplit(link)
    if parts.scheme in ("http", "https"):
        if not re.fullmatch(r"[\w-]+(\.[\w-]+)+(:\d+)?", parts.netloc) or " " in link:
            yield f"{link} is not an address"
        return
    if parts.scheme:
        return
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    target = target / "index.html" if target.is_dir() else target
    if not target.exists():
        yield f"{link} leads nowhere"
    elif parts.fragment and target in built and unquote(parts.fragment) not in built[target].ids:
        yield f"{link} names an anchor that is not there"


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["prose"]:
            sys.exit(not check_prose())
        case ["site", directory]:
            sys.exit(not check_site(Path(directory).resolve()))
        case _:
            sys.exit(__doc__)
