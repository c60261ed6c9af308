"""Follows the journals of a store: what is new in all of them, poll after poll, from any number of writers.

A follower is outside the processes that generate; it needs nothing from them but their files, and goes on where it was
left (`state`). Journals come, grow, end, are archived and disappear while it follows them. A line is handed out once: a
journal that was rewritten gives only what lies beyond the lines it gave already, unless its first line names another
writer, which makes it another journal.
"""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from telemetry.journal import SUFFIX
from telemetry.reading import UNREADABLE, Replaced, TooNew, decode_line, is_torn, read_batches, take_over
from telemetry.records import SCHEMA_VERSION, JournalRecord, Record
from telemetry.schema import JournalRow, Writer

FaultKind: TypeAlias = Literal["torn", "invalid", "too_new", "unreadable"]
"""torn: the line breaks off; invalid: it is no record; too_new, unreadable: the whole journal is left out."""

POLL_LINES = 50_000
"""About as many lines a poll hands out; what is beyond them is the next poll's."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a journal: its number (from 1; 0: the journal as a whole) and its record, or what is wrong with it."""

    journal: str
    number: int
    record: Record | None
    fault: str | None = None
    kind: FaultKind | None = None


class Followed(JournalRow, kw_only=True, omit_defaults=True):
    """A journal as far as it was handed out. n_given: lines that are not handed out again if the file is rewritten."""

    n_given: int = 0
    left_out_by: int | None = None


class Follower:
    """Reads what is new in the journals of `folder`.

    state: where an earlier follower was (its `state`). journals: the names to follow; None: all there are and will be.
    """

    def __init__(
        self, folder: Path, state: dict[str, Any] | None = None, *, journals: Collection[str] | None = None
    ) -> None:
        self._folder = folder
        self._journals = journals
        self._followed = msgspec.convert(state or {}, dict[str, Followed])
        self._seen: dict[str, tuple[int, int, int]] = {}
        self._unreadable: set[str] = set()

    @property
    def state(self) -> dict[str, Any]:
        """How far every journal was read, those that have disappeared included, as JSON can hold it."""
        state = msgspec.to_builtins(self._followed)
        assert isinstance(state, dict)
        return state

    def writer(self, journal: str) -> Writer:
        """What is known of a journal's writer since the last poll; that of a journal that was removed has ended."""
        followed = self._followed.get(journal)
        return "unknown" if followed is None else followed.writer

    @property
    def writers(self) -> dict[str, Writer]:
        """The same of every journal that was seen, by its name."""
        return {name: followed.writer for name, followed in self._followed.items()}

    def poll(self) -> list[Line]:
        """Lines that are new, each journal's in the order of the file; empty: there is nothing new.

        A last line that its living writer has not finished is left for later. What is no record comes with its fault.
        Nothing is raised for a journal that is torn, damaged, unreadable or gone.
        """
        found: list[Line] = []
        names = self._list_journals()
        for name in self._followed.keys() - set(names):
            self._followed[name].writer = "ended"
        for name in names:
            if len(found) >= POLL_LINES:
                break
            self._read(name, found)
        return found

    def _list_journals(self) -> list[str]:
        try:
            names = [name for name in os.listdir(self._folder) if name.endswith(SUFFIX)]
        except (FileNotFoundError, NotADirectoryError):
            names = []
        return sorted(names if self._journals is None else set(names).intersection(self._journals))

    def _read(self, name: str, found: list[Line]) -> None:
        followed = self._followed.get(name)
        if followed is not None and followed.left_out_by == SCHEMA_VERSION:
            return
        try:
            stat = os.stat(self._folder / name)
            seen = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if followed is not None and followed.writer == "ended" and self._seen.get(name) == seen:
                return
            if self._read_on(name, followed or Followed(journal=name, writer="unknown"), found):
                self._seen[name] = seen
        except FileNotFoundError:
            return
        except OSError as error:
            if name not in self._unreadable:
                self._unreadable.add(name)
                found.append(Line(name, 0, None, error.strerror or str(error), "unreadable"))
        except TooNew as error:
            self._followed[name] = Followed(journal=name, writer="unknown", left_out_by=SCHEMA_VERSION)
            found.append(Line(name, 0, None, str(error), "too_new"))

    def _read_on(self, name: str, followed: Followed, found: list[Line]) -> bool:
        """Hand out what a journal holds beyond `followed`; whether that was all of it."""
        try:
            return self._take(name, followed, found)
        except Replaced:
            afresh = Followed(
                journal=name,
                writer="unknown",
                host=followed.host,
                pid=followed.pid,
                created_wall_ns=followed.created_wall_ns,
                n_given=followed.n_given,
            )
            return self._take(name, afresh, found)

    def _take(self, name: str, followed: Followed, found: list[Line]) -> bool:
        for row, _, lines in read_batches(self._folder / name, followed, _decode_lines):
            assert isinstance(row, Followed)
            self._followed[name] = row
            found.extend(lines or ())
            if len(found) >= POLL_LINES:
                return False
        return True


def _decode_lines(data: bytes, row: JournalRow) -> list[Line]:
    assert isinstance(row, Followed)
    lines = data.split(b"\n")
    given = []
    for number, text in enumerate(lines, row.n_lines + 1):
        line = _decode(row.journal, number, text)
        if isinstance(line.record, JournalRecord):
            _recognise(line.record, row)
        if number > row.n_given:
            given.append(line)
            if line.kind != "torn":  # a torn one may be whole when the file is seen again
                row.n_given = number
    row.n_lines += len(lines)
    return given


def _decode(journal: str, number: int, text: bytes) -> Line:
    try:
        return Line(journal, number, decode_line(text))
    except UNREADABLE as error:
        if is_torn(error):
            return Line(journal, number, None, "the line breaks off", "torn")
        return Line(journal, number, None, str(error), "invalid")


def _recognise(header: JournalRecord, row: Followed) -> None:
    """Take down who writes; what an earlier writer of a file of this name gave is no part of this one."""
    if (header.host, header.pid, header.created_wall_ns) != (row.host, row.pid, row.created_wall_ns):
        row.host, row.n_given = None, 0
    take_over(header, row)
