"""Text that every machine with Python has: paragraphs of its reference and of docstrings, and small functions.

It is read as files, nothing is imported or run. Another version of Python has other text; a manifest says which.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

FEWEST_WORDS, MOST_WORDS = 35, 100
FEWEST_LINES, MOST_LINES = 4, 14
_LEFT_OUT = {"antigravity", "this"}
_CODE_MARKS = re.compile(r">>>|::=|\.\.\.|={3,}|-{3,}|[{}|<>\\]|__")


class Passage(NamedTuple):
    """A piece of text. `document`: where it stands, the same on every machine with that version of Python."""

    document: str
    text: str


@cache
def read_paragraphs() -> tuple[Passage, ...]:
    """Paragraphs of prose, of FEWEST_WORDS to MOST_WORDS words, from the language reference and from docstrings."""
    found = [
        Passage(f"python:{name}:{number}", paragraph)
        for name, text in _read_texts()
        for number, paragraph in enumerate(_split(text))
    ]
    return tuple(passage for passage in found if _is_prose(passage.text))


@cache
def read_functions() -> tuple[Passage, ...]:
    """Functions of FEWEST_LINES to MOST_LINES lines at the top of modules, as they are written there."""
    found = []
    for name, source, tree in _parse_modules():
        lines = source.splitlines()
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.decorator_list and node.end_lineno is not None:
                code = lines[node.lineno - 1 : node.end_lineno]
                if FEWEST_LINES <= len(code) <= MOST_LINES:
                    found.append(Passage(f"code:{name}.{node.name}", "\n".join(code)))
    return tuple(found)


def _read_texts() -> Iterator[tuple[str, str]]:
    for name, tree in [(name, tree) for name, _, tree in _parse_modules()]:
        for node in (tree, *(n for n in tree.body if isinstance(n, (ast.FunctionDef, ast.ClassDef)))):
            text = ast.get_docstring(node)
            if text:
                yield f"{name}.{getattr(node, 'name', '')}", text
    topics = Path(os.__file__).parent / "pydoc_data" / "topics.py"
    if topics.is_file():
        yield from sorted(_read_topics(ast.parse(topics.read_text(encoding="utf-8"))))


def _read_topics(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)) and isinstance(node.value, ast.Dict):
            for key, value in ast.literal_eval(node.value).items():
                yield f"topics.{key}", value


@cache
def _parse_modules() -> tuple[tuple[str, str, ast.Module], ...]:
    found = []
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        if path.stem not in _LEFT_OUT:
            source = path.read_text(encoding="utf-8")
            found.append((path.stem, source, ast.parse(source)))
    return tuple(found)


def _split(text: str) -> list[str]:
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n", text) if not part.startswith("   ")]


def _is_prose(text: str) -> bool:
    n_words = len(text.split())
    letters = sum(character.isalpha() or character == " " for character in text)
    return (
        FEWEST_WORDS <= n_words <= MOST_WORDS
        and text[0].isupper()
        and text.endswith(".")
        and letters > 0.92 * len(text)
        and not _CODE_MARKS.search(text)
    )
