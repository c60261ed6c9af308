"""The command `roundscope`: which commands there are, and what happens to their errors.

A command is the object `command` in `runtime.cli.NAME`. Its module is imported when it runs or when its own help is
asked for, so that `--help` and the commands that need no model start at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module

import click

from telemetry.errors import RoundscopeError

SUMMARIES = {
    "run": "Measure a model with and without drafters; say what pays.",
    "generate": "Answer one prompt, with or without a drafter, and record it.",
    "report": "Show what was recorded: the verdict, or another query.",
    "sql": "Ask the recorded tables anything, read-only.",
    "compare": "Compare two runs on the same prompts; fail where one got slower.",
    "check": "Fail unless a run's verdict is what is required.",
    "calibrate": "Measure what verification costs here, by width and context.",
    "doctor": "Show what this machine offers to speculation.",
}
INTERRUPTED = 130


class LazyGroup(click.Group):
    """A group that lists its commands without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in the order in which a newcomer needs them."""
        return list(SUMMARIES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now; None if there is none."""
        if cmd_name not in SUMMARIES:
            return None
        command = import_module(f"runtime.cli.{cmd_name}").command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from `SUMMARIES`."""
        with formatter.section("Commands"):
            formatter.write_dl(list(SUMMARIES.items()))


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from telemetry import roundscope_version

        click.echo(f"roundscope {roundscope_version()}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Example:
  roundscope run --quick
""",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
def roundscope() -> None:
    """Does speculative decoding pay on this machine, for this model and these prompts?

    Data goes to stdout, everything else to stderr. Every command has its own --help.

    \b
    Exit codes:
      0    ok
      1    failed
      2    the command line asks for something that makes no sense
      3    a check did not hold
      4    refused: not supported, the message says what
      130  interrupted
    """


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line `arguments` (default: the process's own) and exit with its code."""
    sys.exit(_run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    try:
        code = roundscope.main(arguments, prog_name="roundscope", standalone_mode=False)
        sys.stdout.flush()
    except RoundscopeError as error:
        click.echo(f"error: {' '.join(str(error).split())}", err=True)
        return error.exit_code
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read stdout has gone (`| head`); Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return RoundscopeError.exit_code
    return code if isinstance(code, int) else 0
