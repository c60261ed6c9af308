"""A page as a reader's program sees it: its tags, its texts, and its tables by their captions."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "br", "img", "input"}


@dataclass
class Figure:
    """A figure: its caption, its image's title, the text in that image, and the caption of the table below."""

    caption: str = ""
    title: str = ""
    texts: list[str] = field(default_factory=list)
    table: str = ""


class Page(HTMLParser):
    """What is in a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.headings: list[tuple[str, str]] = []
        self.paragraphs: list[str] = []
        self.figures: list[Figure] = []
        self.tables: dict[str, list[list[str]]] = {}
        self._open: list[str] = []
        self._rows: list[list[str]] = []
        self._text = ""
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in VOID:
            self._open.append(tag)
        if tag == "figure":
            self.figures.append(Figure())
        elif tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        if tag in ("caption", "th", "td", "p", "h1", "h2", "figcaption", "title", "text"):
            self._text = ""

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self._open.pop()

    def handle_data(self, data: str) -> None:
        self._text += data

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag
        text = self._text.strip()
        if tag in ("th", "td"):
            self._rows[-1].append(text)
        elif tag == "caption":
            self._caption = text
            if "figure" in self._open:
                self.figures[-1].table = text
        elif tag == "table":
            assert self._caption not in self.tables
            self.tables[self._caption] = self._rows
        elif tag in ("h1", "h2"):
            self.headings.append((tag, text))
        elif tag == "p":
            self.paragraphs.append(text)
        elif tag == "figcaption":
            self.figures[-1].caption = text
        elif tag == "title" and "svg" in self._open:
            self.figures[-1].title = text
        elif tag == "text":
            self.figures[-1].texts.append(text)

    def rows(self, caption: str) -> list[dict[str, str]]:
        """The rows of a table by the names of its columns."""
        head, *rows = self.tables[caption]
        return [dict(zip(head, row, strict=True)) for row in rows]
