"""`roundscope analyze`: operation counts and probability identities that need no model, and whether they still hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from telemetry.errors import CheckFailed

if TYPE_CHECKING:
    from rich.table import Table

    from runtime.analysis.artifact import Document

MIB = 1 << 20


@click.command(
    epilog="""\b
Examples:
  roundscope analyze
  roundscope analyze --check
  roundscope analyze --json > artifact.json
"""
)
@click.option("--check", is_flag=True, help="Hold the committed artifact against what is computed now; exit code 3.")
@click.option("--json", "as_json", is_flag=True, help="The whole artifact as one JSON document.")
def command(check: bool, as_json: bool) -> None:
    """Count what a prefix cache removes from each configuration, and check the speculative rule in exact fractions.

    Arithmetic only: it needs no model, no MLX and no store, and says nothing about time or about an implementation.
    """
    from runtime.analysis.artifact import find_differences, find_failures, make_artifact, read_committed, write_text

    document = make_artifact()
    if as_json:
        click.echo(write_text(document), nl=False)
    elif not check:
        _print_tables(document)
    if failed := find_failures(document):
        raise CheckFailed(f"does not hold: {', '.join(failed)}")
    if check:
        if differences := find_differences(read_committed(), document):
            raise CheckFailed(f"the committed artifact differs: {'; '.join(differences)}")
        click.echo(f"ok: {_count_values(document)} values are those of the committed artifact", err=as_json)


def _count_values(document: Document) -> int:
    from runtime.analysis.artifact import walk

    return len(list(walk(document)))


def _print_tables(document: Document) -> None:
    from rich.console import Console

    console = Console(highlight=False, markup=False)
    console.print("Work of one sample in each layer, the prefix processed at every level or once:")
    console.print(_tabulate_counts(document))
    committed = document["committed_per_round"]
    console.print(
        f"\nE[C] = 1 + a + ... + a^m: {committed['expected']} at a = {committed['alpha']} and m = {committed['m']}; "
        f"enumeration agrees in {committed['n_equal']} of {committed['n_enumerated']} cases."
    )
    console.print("\nThe residual rule, enumerated in fractions:")
    console.print(_tabulate_rule(document))
    mixture = document["latent_mixture"]
    console.print(
        "\nTwo tokens proposed given one of two latents: output is the target's for "
        f"{'every' if mixture['every_latent_is_target'] else 'not every'} latent, and "
        f"{'is' if mixture['mixed_is_target'] else 'is not'} over both ({mixture['mixed']})."
    )


def _tabulate_counts(document: Document) -> Table:
    table = _make_table("config", "positions", "removed", "pairs a head", "K/V, 1 sample", "64 samples")
    for name, row in document["configurations"].items():
        table.add_row(
            name,
            f"{row['positions_repeated']:,} -> {row['positions_once']:,}",
            f"{row['positions_removed']:,}",
            f"{row['pairs_repeated']:,} -> {row['pairs_once']:,}",
            f"{row['payload_bytes']:,} B",
            f"{row['payload_bytes_batch_64'] / MIB:g} MiB",
        )
    return table


def _tabulate_rule(document: Document) -> Table:
    table = _make_table("fixture", "target p", "proposal q", "acceptance", "output is p")
    for name, row in document["residual_rule"].items():
        table.add_row(name, row["p"], row["q"], row["acceptance"], "yes" if row["output_is_p"] else "NO")
    return table


def _make_table(*columns: str) -> Table:
    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
