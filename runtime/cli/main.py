"""The command `roundscope`: which commands there are, and what happens to their errors.

A command is the object `command` in `runtime.cli.NAME`. Its module is imported when it runs or when its own help is
asked for, so that `--help` and the commands that need no model start at once.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any

import click

from telemetry import logs
from telemetry.errors import RoundscopeError, Unsupported

SUMMARIES = {
    "run": "Measure a model with and without drafters; say what pays.",
    "generate": "Answer one prompt, with or without a drafter, and record it.",
    "ncm": "Train and measure a generator with a prefix cache.",
    "distill": "Let a model write what drafters learn from.",
    "train-drafter": "Train a drafter on what a model wrote.",
    "report": "Show what was recorded: the verdict, or another query.",
    "view": "Show it as a live page in the browser; follow a run.",
    "show": "Print a generation, a round or a level a line.",
    "sql": "Ask the recorded tables anything, read-only.",
    "compare": "Compare two runs; fail where one got slower.",
    "check": "Fail unless a run's verdict is what is required.",
    "calibrate": "Measure what verification costs here, by width and context.",
    "analyze": "Count work and check the speculative rule, in exact numbers.",
    "export": "Send spans by OTLP, or write them to files.",
    "import": "Take in spans that were exported elsewhere.",
    "archive": "Move old journals into Parquet partitions.",
    "serve-metrics": "Serve metrics of everything recorded to Prometheus.",
    "doctor": "Show what this machine offers to speculation.",
}
INTERRUPTED = 130
_MODULES = {"import": "import_", "serve-metrics": "serve_metrics", "train-drafter": "train_drafter"}
"""Modules of commands whose names cannot be names in Python."""


class LazyGroup(click.Group):
    """A group that lists its commands without importing them.

    summaries: the commands in the order in which a newcomer needs them. prefix: what their modules' names begin with.
    """

    def __init__(self, *args: Any, summaries: Mapping[str, str], prefix: str = "", **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._summaries = summaries
        self._prefix = prefix

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names, in their order."""
        return list(self._summaries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of that name, imported now; None if there is none."""
        if cmd_name not in self._summaries:
            return None
        module = _MODULES.get(cmd_name, f"{self._prefix}{cmd_name}")
        command = import_module(f"runtime.cli.{module}").command
        assert isinstance(command, click.Command)
        if not any(option.name == _LOG_LEVEL.name for option in command.params):
            command.params.append(_LOG_LEVEL)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands from their summaries."""
        with formatter.section("Commands"):
            formatter.write_dl(list(self._summaries.items()))


def _show_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted:
        from telemetry import roundscope_version

        click.echo(f"roundscope {roundscope_version()}")
        ctx.exit()


def _set_log_level(_: click.Context, __: click.Parameter, level: str | None) -> None:
    # Processes that a command starts are to log alike.
    if level is not None:
        os.environ[logs.VARIABLE] = level


_LOG_LEVEL = click.Option(
    ["--log-level"],
    type=click.Choice(logs.LEVELS, case_sensitive=False),
    expose_value=False,
    callback=_set_log_level,
    help="Least level of log events on stderr. [default: that of `roundscope --log-level`]",
)
"""The same option after a command's name."""


@click.group(
    cls=LazyGroup,
    summaries=SUMMARIES,
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
@click.option(
    "--log-level",
    type=click.Choice(logs.LEVELS, case_sensitive=False),
    default=logs.DEFAULT,
    show_default=True,
    envvar=logs.VARIABLE,
    show_envvar=True,
    expose_value=False,
    callback=_set_log_level,
    help="Least level of log events on stderr.",
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
    if sys.stdout is None:  # closed by whoever started it
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115
    try:
        code = roundscope.main(arguments, prog_name="roundscope", standalone_mode=False)
        sys.stdout.flush()
    except RoundscopeError as error:
        reason = " ".join(str(error).split())
        if isinstance(error, Unsupported) and not sys.stderr.isatty():
            logs.get_logger().warning("command.refused", reason=reason, exit_code=error.exit_code)
        click.echo(f"error: {reason}", err=True)
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
    except UnicodeEncodeError as error:
        click.echo(
            f"error: {error.object[error.start : error.end]!a} cannot be written in {error.encoding}, which standard "
            "output takes: set PYTHONIOENCODING=utf-8",
            err=True,
        )
        return RoundscopeError.exit_code
    except OSError as error:
        click.echo(f"error: {error.filename or 'standard output'}: {error.strerror or error}", err=True)
        # Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return RoundscopeError.exit_code
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    main()
