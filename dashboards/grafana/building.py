"""Builds Grafana's JSON from what a dashboard shows, with Grafana's own library. The datasource is a variable."""

from __future__ import annotations

import json
from itertools import count

from grafana_foundation_sdk.builders import common as options
from grafana_foundation_sdk.builders import dashboard as builders
from grafana_foundation_sdk.builders import prometheus, stat, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import common
from grafana_foundation_sdk.models import dashboard as models

from dashboards.grafana.cache import CACHE
from dashboards.grafana.overview import OVERVIEW
from dashboards.grafana.shown import Dashboard, Shown
from dashboards.grafana.speculation import SPECULATION
from dashboards.grafana.telemetry_health import TELEMETRY_HEALTH

DASHBOARDS = (OVERVIEW, SPECULATION, CACHE, TELEMETRY_HEALTH)
TAG = "roundscope"
SOURCE = models.DataSourceRef(type_val="prometheus", uid="${datasource}")
HEIGHT, WIDTH = 8, 12


def render(shown: Dashboard) -> str:
    """The dashboard as Grafana imports it."""
    board = (
        builders.Dashboard(shown.title)
        .uid(f"{TAG}-{shown.name}")
        .description(shown.purpose)
        .tags([TAG])
        .time("now-1h", "now")
        .refresh("30s")
        .timezone("browser")
        .readonly()
        .link(
            builders.DashboardLink("roundscope").type(models.DashboardLinkType.DASHBOARDS).tags([TAG]).keep_time(True)
        )
        .with_variable(builders.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
        .with_variable(_make_job())
    )
    ids = count(1)
    for heading, panels in shown.rows:
        board = board.with_row(builders.Row(heading).id(next(ids)))
        for panel in panels:
            board = board.with_panel(_make_panel(panel, next(ids)))
    return json.dumps(board.build(), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def _make_job() -> builders.QueryVariable:
    return (
        builders.QueryVariable("job")
        .label("Job")
        .datasource(SOURCE)
        .query("label_values(roundscope_build_info, job)")
        .refresh(models.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".+")
        .current(models.VariableOption(selected=True, text="All", value="$__all"))
    )


def _make_panel(shown: Shown, number: int) -> stat.Panel | timeseries.Panel:
    panel: stat.Panel | timeseries.Panel
    if shown.kind == "stat":
        latest = options.ReduceDataOptions().calcs(["lastNotNull"])
        panel = stat.Panel().text_mode(common.BigValueTextMode.VALUE_AND_NAME).reduce_options(latest)
        panel = panel.graph_mode(common.BigValueGraphMode.NONE)
    else:
        legend = options.VizLegendOptions().show_legend(True).placement(common.LegendPlacement.BOTTOM)
        panel = timeseries.Panel().line_width(2).show_points(common.VisibilityMode.AUTO).min(0)
        panel = panel.legend(legend.display_mode(common.LegendDisplayMode.LIST))
    panel = panel.id(number).title(shown.title).description(shown.explanation).unit(shown.unit).datasource(SOURCE)
    panel = panel.height(HEIGHT).span(WIDTH)
    for i, (expression, name) in enumerate(shown.queries):
        query = prometheus.Dataquery().expr(expression).legend_format(name).ref_id(chr(ord("A") + i))
        panel = panel.with_target(query.instant() if shown.kind == "stat" else query.range())
    return panel
