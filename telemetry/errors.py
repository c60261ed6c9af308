"""Errors that a person is meant to read.

Each carries the exit code the command line ends with, so that a library caller and a shell script see the same kinds.
"""

from __future__ import annotations


class RoundscopeError(Exception):
    """Something failed; the message says what, where and what to do. Exit code 1."""

    exit_code = 1


class UsageError(RoundscopeError, ValueError):
    """The caller asked for something that makes no sense as it stands. Exit code 2."""

    exit_code = 2


class CheckFailed(RoundscopeError):
    """A check that was asked for did not hold. Exit code 3."""

    exit_code = 3


class Unsupported(RoundscopeError, ValueError):
    """Refused by name before anything ran, because the result could not be right. Exit code 4."""

    exit_code = 4
