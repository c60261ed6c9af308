"""Examples: one answer of the target to one training prompt a line of NDJSON, and which split a document is in."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from telemetry.errors import RoundscopeError, UsageError

Split: TypeAlias = Literal["train", "validation", "test"]

EXAMPLES = "examples.ndjson"
SPLIT_RULE = "first 8 bytes of sha256(document) modulo 100: test below 5, validation below 10, else train"


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """What the target wrote after one prompt.

    document: what the prompt was made from; all its prompts are in one split. prompt: ids as the target got them, its
    chat template included. output: the ids it wrote, the one that ended it included. temperature: 0 for greedy.
    id: unique in the folder. class_: the kind of task. ended: it ended by itself, not at the limit of tokens.
    """

    document: str
    split: Split
    prompt: list[int]
    output: list[int]
    temperature: float
    id: str = ""
    class_: str = msgspec.field(name="class", default="")
    ended: bool = True


def choose_split(document: str) -> Split:
    """The split of `document`, by SPLIT_RULE: it never depends on what else there is."""
    number = int.from_bytes(hashlib.sha256(document.encode()).digest()[:8], "big") % 100
    return "test" if number < 5 else "validation" if number < 10 else "train"


def load_examples(folder: str | Path, split: Split) -> list[Example]:
    """The examples of `split` in `folder`, in the order in which they were written; a torn last line is left out.

    Raises UsageError where there is no data, RoundscopeError for a line that is no example, with its number.
    """
    return [example for example in read_examples(Path(folder)) if example.split == split]


def read_examples(folder: Path) -> Iterator[Example]:
    """Every example in `folder`; raises as `load_examples` does."""
    path = folder / EXAMPLES
    if not path.is_file():
        raise UsageError(f"there is no {path}: run `roundscope distill --out {folder}` first")
    decoder = msgspec.json.Decoder(Example)
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.endswith(b"\n"):
                return
            try:
                yield decoder.decode(line)
            except msgspec.DecodeError as error:
                raise RoundscopeError(f"{path}:{number} is no example ({error}): take the line out") from error
