"""The live page: a store looked at in a browser on this machine, while runs go on.

`content` makes what is shown, `watching` tells whether anything is new, `asking` runs anybody's SQL in a process of its
own, `server` lets nobody but this page in. The page about a run is that of `dashboards.page`.
"""

from __future__ import annotations

from dashboards.view.server import LOOPBACK, Viewer

__all__ = ["LOOPBACK", "Viewer"]
