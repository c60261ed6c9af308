"""`roundscope doctor`: what this machine offers, and whether verification is cheap on it. Needs no store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from runtime.diagnosis import Diagnosis


@click.command(
    epilog="""\b
Example:
  roundscope doctor --json
"""
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def command(as_json: bool) -> None:
    """Show what this machine offers: processor, BLAS, versions, the default model, and the speed of matmul.

    Takes a few seconds. A forward over n tokens is mostly matmul of height n, so what 8 rows cost beside one tells
    whether verifying a proposal is cheap here.
    """
    from runtime.diagnosis import diagnose

    diagnosis = diagnose()
    if as_json:
        _print_json(diagnosis)
    else:
        _print_table(diagnosis)


def _print_json(diagnosis: Diagnosis) -> None:
    import msgspec

    document = msgspec.structs.asdict(diagnosis) | {"environment": msgspec.structs.asdict(diagnosis.environment)}
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))


def _print_table(diagnosis: Diagnosis) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in _name_facts(diagnosis).items():
        table.add_row(name, "unknown" if value is None else str(value))
    console = Console(highlight=False, markup=False)
    console.print(table)
    console.print()
    console.print(diagnosis.sentence)


def _name_facts(diagnosis: Diagnosis) -> dict[str, Any]:
    from msgspec.structs import asdict

    facts = {name.replace("_", " "): value for name, value in asdict(diagnosis.environment).items()}
    precision = facts.pop("precision")
    facts["load1"] = None if diagnosis.environment.load1 is None else f"{diagnosis.environment.load1:.2f}"
    facts["precision variables"] = ", ".join(f"{name}={value}" for name, value in precision.items()) or "none set"
    facts["blas from"] = " ".join(filter(None, (diagnosis.blas_source, diagnosis.blas_path)))
    facts["default model"] = diagnosis.model_path or diagnosis.model_problem
    for rows, microseconds in diagnosis.matmul_us.items():
        facts[f"matmul, {rows} row{'s' if rows > 1 else ''}"] = f"{microseconds:,.0f} us"
    return facts
