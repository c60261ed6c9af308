"""`roundscope doctor`: what this machine offers, whether verification is cheap on it, and how large the store is.

Needs no store.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runtime.cli.options import store_option

if TYPE_CHECKING:
    from runtime.diagnosis import Diagnosis
    from telemetry.sizes import StoreSizes


@click.command(
    epilog="""\b
Examples:
  roundscope doctor --json
  roundscope doctor --read-archive
"""
)
@store_option
@click.option(
    "--read-archive",
    is_flag=True,
    help="Read all files of the archive through and compare them with what was written; takes as long as that takes.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON document instead of a table.")
def command(store: Path, read_archive: bool, as_json: bool) -> None:
    """Show what this machine offers: processor, BLAS, versions, the default model, and the speed of matmul.

    Takes a few seconds. A forward over n tokens is mostly matmul of height n, so what 8 rows cost beside one tells
    whether verifying a proposal is cheap here. Of the store, if there is one, it shows how large journals, database and
    archive are, and which files of the archive are gone, have another size or were changed: then the exit code is 3.
    """
    from runtime.diagnosis import diagnose
    from telemetry.errors import CheckFailed
    from telemetry.sizes import measure_store

    diagnosis, sizes = diagnose(), measure_store(store, thoroughly=read_archive)
    if as_json:
        _print_json(diagnosis, sizes)
    else:
        _print_table(diagnosis, sizes)
    if sizes is not None and sizes.problems:
        raise CheckFailed(f"the store {store} is not as it should be: {'; '.join(sizes.problems)}")


def _print_json(diagnosis: Diagnosis, sizes: StoreSizes | None) -> None:
    import msgspec

    document = msgspec.structs.asdict(diagnosis) | {"environment": msgspec.structs.asdict(diagnosis.environment)}
    document["store"] = None if sizes is None else msgspec.structs.asdict(sizes)
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2))


def _print_table(diagnosis: Diagnosis, sizes: StoreSizes | None) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table.grid(padding=(0, 2))
    table.add_column()
    table.add_column(overflow="fold")
    for name, value in (_name_facts(diagnosis) | _name_sizes(sizes)).items():
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


def _name_sizes(sizes: StoreSizes | None) -> dict[str, Any]:
    if sizes is None:
        return {"store": "none here yet"}
    rows = ", ".join(f"{n:,} {table}" for table, n in sizes.archived_rows.items())
    return {
        "journals": f"{sizes.journals:,} files, {sizes.journal_bytes:,} bytes",
        "database": f"{sizes.database_bytes:,} bytes",
        "archive": f"{sizes.archive_files:,} files, {sizes.archive_bytes:,} bytes"
        + (f"; of {sizes.archived_journals:,} journals: {rows}" if rows else ""),
    } | {f"problem {i}": problem for i, problem in enumerate(sizes.problems, 1)}
