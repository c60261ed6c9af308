"""Reads a user's prompts from a file, and says by line what is wrong with it.

Two kinds: `.jsonl`, an object a line with `text` or `messages`, and `id` and `class` if wanted; `.txt`, a
prompt a line. All faults are collected, so that a file is mended in one go.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import msgspec

from runtime.workloads.items import Message, WorkItem, Workload
from telemetry.errors import UsageError

MAX_FAULTS_SHOWN = 10
DEFAULT_CLASS = "default"
_KEYS = '"id", "class", and "text" or "messages"'
_MESSAGE_KEYS = '"role" (system, user or assistant) and "content"'
_UTF16_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class _MessageLine(msgspec.Struct, forbid_unknown_fields=True):
    role: Literal["system", "user", "assistant"]
    content: str


class _Line(msgspec.Struct, forbid_unknown_fields=True):
    id: str | None = None
    class_: str = msgspec.field(name="class", default=DEFAULT_CLASS)
    text: str | None = None
    messages: list[_MessageLine] | None = None


_decoder = msgspec.json.Decoder(_Line)


class _Fault(Exception):
    """What is wrong with one line, and the cure."""


def load_prompts(path: str | Path) -> Workload:
    """The prompts of a `.jsonl` or `.txt` file, blank lines left out; the workload is named after the file.

    In `.jsonl`, `class` is "default" and `id` is `line-N` where they are missing. In `.txt`, the class is the
    file's name without its ending and the ids are `line-N`.

    Raises `UsageError` with file, line, fault and cure for everything that is wrong (the first ten faults).
    """
    path = Path(path)
    if path.is_dir():
        raise UsageError(f"{path} is a folder: name a .jsonl or .txt file of prompts")
    # Bytes of a file name that are no Unicode cannot be recorded, and names end up in records.
    name, stem = (os.fsencode(part).decode(errors="replace") for part in (path.name, path.stem))
    ending = path.suffix.lower()
    if ending not in (".jsonl", ".txt"):
        raise UsageError(
            f"{path}: prompts are read from .jsonl (an object a line) or .txt (a prompt a line): rename it"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): check the path") from error
    items = parse_jsonl(data, str(path)) if ending == ".jsonl" else parse_txt(data, str(path), stem)
    return Workload(name, items)


def parse_jsonl(data: bytes, where: str) -> tuple[WorkItem, ...]:
    """The prompts of `.jsonl` content; `where` is what faults name as the file."""
    return _parse(data, where, _read_object)


def parse_txt(data: bytes, where: str, class_: str) -> tuple[WorkItem, ...]:
    """The prompts of `.txt` content, all of class `class_`."""
    return _parse(data, where, lambda line, number: WorkItem(f"line-{number}", class_, line))


def _parse(data: bytes, where: str, read: Callable[[str, int], WorkItem]) -> tuple[WorkItem, ...]:
    if data.startswith(_UTF16_BOMS):
        raise UsageError(f"{where} is UTF-16 text: save it as UTF-8")
    items: list[WorkItem] = []
    line_of: dict[str, int] = {}
    faults: list[str] = []
    for number, raw in _split_lines(data):
        try:
            item = read(_decode(raw), number)
            if item.id in line_of:
                raise _Fault(f'id "{item.id}" is already taken by line {line_of[item.id]}: make ids differ')
        except _Fault as fault:
            faults.append(f"{where}:{number}: {fault}")
        else:
            items.append(item)
            line_of[item.id] = number
    if faults:
        raise UsageError(_list_faults(faults))
    if not items:
        raise UsageError(f"{where} has no prompts: write at least one line")
    return tuple(items)


def _list_faults(faults: list[str]) -> str:
    hidden = len(faults) - MAX_FAULTS_SHOWN
    return "\n".join(faults[:MAX_FAULTS_SHOWN] + ([f"... and {hidden} more"] if hidden > 0 else []))


def _split_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Number (from 1) and bytes of every line that is not blank, without line end and byte order mark."""
    for number, line in enumerate(data.removeprefix(codecs.BOM_UTF8).split(b"\n"), start=1):
        if line.strip():
            yield number, line.removesuffix(b"\r")


def _decode(raw: bytes) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _Fault(f"byte {error.start + 1} of the line is not UTF-8: save the file as UTF-8") from error


def _read_object(line: str, number: int) -> WorkItem:
    try:
        found = _decoder.decode(line)
    except msgspec.ValidationError as error:
        raise _Fault(f"{error}: the keys are {_KEYS}, those of a message {_MESSAGE_KEYS}") from error
    except msgspec.DecodeError as error:
        raise _Fault(f"{error}: write one JSON object a line, with {_KEYS}") from error
    id_ = f"line-{number}" if found.id is None else found.id
    for key, value in (("id", id_), ("class", found.class_)):
        if not value.strip() or not value.isprintable():
            raise _Fault(f'"{key}" is {value!r}: give it at least one visible character, and no line breaks')
    return WorkItem(id_, found.class_, _choose_content(found))


def _choose_content(found: _Line) -> str | tuple[Message, ...]:
    if (found.text is None) == (found.messages is None):
        count = "neither" if found.text is None else "both"
        raise _Fault(f'{count} of "text" and "messages" given: give one of them')
    if found.text is not None:
        if not found.text.strip():
            raise _Fault('"text" is blank: write a prompt, or take the line out')
        return found.text
    messages = tuple(Message(m.role, m.content) for m in found.messages or ())
    if not messages or messages[-1].role != "user":
        raise _Fault('"messages" must end with a message of role "user": that is the one the model answers')
    if not messages[-1].content.strip():
        raise _Fault('the last of "messages" is blank: write a prompt, or take the line out')
    return messages
