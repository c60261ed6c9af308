"""Draft lengths as a user gives them and arms are named after them: numbers, or `auto`, which a controller chooses."""

from __future__ import annotations

from typing import Literal, TypeAlias

AUTO: Literal["auto"] = "auto"
DraftLength: TypeAlias = int | Literal["auto"]
