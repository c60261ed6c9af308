"""`roundscope view`: the live page, for a browser on this machine."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

import click

from runtime.cli.ending import ended_by_sigterm
from runtime.cli.options import store_option

_DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")


@click.command(
    "view",
    epilog="""\b
Examples:
  roundscope view
  roundscope view --store /var/lib/roundscope --port 8321 --no-browser
""",
)
@store_option
@click.option(
    "--port", type=click.IntRange(0, 65535), default=0, metavar="P", help="Where to listen. [default: a free port]"
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
def command(store: Path, port: int, no_browser: bool) -> None:
    """Show what is recorded as a live page in the browser, until Ctrl-C or SIGTERM.

    The page of `report --html` for any run of the store, which follows a run that is going on; every query with its
    SQL, to change and to run; the timeline of a run or a generation to download. It listens at 127.0.0.1 only:
    whoever can log in to this machine can read it, nobody else. It shows tokens and text only where --record-text kept
    them. The server has a low priority, for the sake of what is being measured.
    """
    from dashboards.page.drawing import require_library
    from dashboards.view import Viewer
    from queries import install_views
    from telemetry.sidecar import begin_following
    from telemetry.store import connect

    require_library()
    with connect(store, prepare=install_views):
        pass
    begin_following()  # a run that goes on beside it is being timed
    with Viewer(store, port) as viewer, ended_by_sigterm():
        click.echo(f"serving {viewer.address} (Ctrl-C ends it)", err=True)
        if not no_browser and _has_display():
            webbrowser.open(viewer.address)
        viewer.serve_forever()


def _has_display() -> bool:
    """Whether a browser has a window to open; one in the terminal would take it over."""
    return sys.platform == "darwin" or any(os.environ.get(name) for name in _DISPLAYS)
