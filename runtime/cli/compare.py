"""`roundscope compare`: two runs on the same prompts, and an exit code for CI."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from runtime.cli.options import store_option
from runtime.cli.output import Form, output_options, say_notes, write_rows
from telemetry.errors import CheckFailed, UsageError

if TYPE_CHECKING:
    from dashboards.report.rows import Row

METRICS = {"seconds_per_token": "ratio", "speedup": "speedup_ratio", "accepted_per_round": None, "peak_bytes": None}
"""What a rule may be about, and the column of `compare` with its ratio, where that has an interval."""

SHOWN = ("arm", "class", "n_prompts", "seconds_per_token_a", "seconds_per_token_b", "ratio", "ratio_low", "ratio_high")
_KNOWN = """
select distinct g.arm, c.class
from generations as g, lateral (values ('all'), (g.class)) as c (class)
where list_contains($1, g.run_id) and g.arm is not null and c.class is not null
"""
_RULE = re.compile(r"(?P<metric>\w+):(?P<sign>[+-])(?P<percent>\d+(?:\.\d+)?)%(?::(?P<class_>[^:]+)(?::(?P<arm>.+))?)?")


@dataclass(frozen=True)
class Rule:
    """A limit on how a metric of the second run may lie beside the first's, on a class and for one arm or all."""

    text: str
    metric: str
    limit: float
    class_: str
    arm: str | None

    def find_faults(self, rows: list[Row]) -> list[str]:
        """What is beyond the limit and, where there is an interval, more than chance; or why that cannot be told."""
        about = [row for row in rows if row["class"] == self.class_ and self.arm in (None, row["arm"])]
        told = [row for row in about if self._ratio(row) is not None]
        if not told:
            return [f"{self.text}: both runs have no such arm and class in common"]
        return [f"{self.text}: {row['arm']} on {row['class']} {fault}" for row in told if (fault := self._judge(row))]

    def require(self, known: Collection[tuple[str, str]]) -> None:
        """Raise UsageError if neither run had the class or the arm. known: arms and classes of both."""
        if not known:
            return
        arms, classes = (sorted(set(names)) for names in zip(*known, strict=True))
        if self.class_ not in classes or self.arm not in (None, *arms):
            raise UsageError(
                f"--fail-if {self.text!r}: neither run has such a class or arm; they have the classes "
                f"{', '.join(classes)} and the arms {', '.join(arms)}"
            )

    def _judge(self, row: Row) -> str | None:
        column, ratio = METRICS[self.metric], self._ratio(row)
        assert ratio is not None
        if column is not None:
            if row["n_prompts"] < 5:
                return f"cannot be judged on {row['n_prompts']} prompts, it takes 5"
            if column == "ratio" and not row["same_machine"]:
                return f"cannot be judged between two machines ({row['differences'] or 'one is unknown'})"
            if row[f"{column}_low"] <= 1 <= row[f"{column}_high"]:
                return None
        beyond = ratio > 1 + self.limit if self.limit >= 0 else ratio < 1 + self.limit
        return f"changed by {ratio - 1:+.1%}" if beyond else None

    def _ratio(self, row: Row) -> float | None:
        column = METRICS[self.metric]
        if column is not None:
            return None if row[column] is None else float(row[column])
        before, after = row[f"{self.metric}_a"], row[f"{self.metric}_b"]
        return after / before if before and after is not None else None


def read_rule(text: str) -> Rule:
    """`metric:+5%`, `metric:-5%`, with `:class` and `:class:arm` where not all is meant; UsageError for others."""
    match = _RULE.fullmatch(text)
    if not match or match["metric"] not in METRICS:
        raise UsageError(
            f"--fail-if {text!r} is no rule: write METRIC:+5% or METRIC:-5%, then :CLASS or :CLASS:ARM if not all is "
            f"meant, with a METRIC of {', '.join(METRICS)}"
        )
    limit = float(match["percent"]) / 100 * (1 if match["sign"] == "+" else -1)
    return Rule(text, match["metric"], limit, match["class_"] or "all", match["arm"])


@click.command(
    epilog="""\b
Examples:
  roundscope compare 20260314T101500 20260315T093000
  roundscope compare 20260314 20260315 --fail-if 'seconds_per_token:+5%' --fail-if 'speedup:-10%:copy'
"""
)
@click.argument("run_a", metavar="A")
@click.argument("run_b", metavar="B")
@click.option(
    "--fail-if",
    "rules",
    multiple=True,
    metavar="RULE",
    help="METRIC:+N% or METRIC:-N%, then :CLASS and :ARM if not all is meant; repeatable. Beyond it: exit code 3.",
)
@store_option
@output_options
def command(run_a: str, run_b: str, rules: tuple[str, ...], store: Path, form: Form) -> None:
    """Compare run B with run A, each named by its id or the beginning of it, on the prompts that both completed.

    METRIC is seconds_per_token, speedup, accepted_per_round or peak_bytes. A change of the first two counts only where
    its 95 % interval leaves no change out, so that noise fails no build; seconds per token of two machines are never
    judged, the speedup is.
    """
    from dashboards.report import resolve_run
    from queries import install_views, run
    from telemetry.store import connect

    limits = [read_rule(text) for text in rules]
    with connect(store, prepare=install_views) as connected:
        say_notes(connected.notes)
        names = [resolve_run(connected.con, name) for name in (run_a, run_b)]
        known = connected.con.execute(_KNOWN, [names]).fetchall()
        for limit in limits:
            limit.require(known)
        result = run(connected.con, "compare", run_a=names[0], run_b=names[1])
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    if form == "table":
        _show(names, rows)
    else:
        write_rows(result.columns, result.rows, form)
    if not rows:
        raise CheckFailed(f"runs {names[0]} and {names[1]} have no prompt in common that both completed")
    if faults := [fault for limit in limits for fault in limit.find_faults(rows)]:
        raise CheckFailed("; ".join(faults))


def _show(names: list[str], rows: list[dict[str, Any]]) -> None:
    columns = (*SHOWN, "change", "speedup_a", "speedup_b")
    write_rows(columns, [[row[name] for name in columns] for row in rows], "table")
    click.echo(f"a: {names[0]}\nb: {names[1]}")
    if rows:
        click.echo(f"environment: {rows[0]['differences'] or 'the same, as far as it is recorded'}")
