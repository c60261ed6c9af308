"""The option `--draft-length`: a number, or `auto`."""

from __future__ import annotations

from typing import Any

import click

from runtime.experiment.lengths import AUTO, DraftLength


class LengthType(click.ParamType[Any]):
    """1 or more, or `auto`."""

    name = "length"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> DraftLength:
        """The number, or `auto` as it stands."""
        if value == AUTO:
            return AUTO
        try:
            length = int(value)
        except ValueError:
            length = 0
        if length < 1:
            self.fail(f"{value} is neither a whole number from 1 up nor {AUTO!r}", param, ctx)
        return length
