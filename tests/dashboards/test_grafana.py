"""The dashboards as they are committed: what the descriptions make, with nothing left for a reader to guess."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from telemetry.metric_names import METRICS, PREFIX
from tests.conftest import ROOT, lack

FOLDER = ROOT / "dashboards" / "grafana"
FILES = sorted(FOLDER.glob("*.json"))
EACH = pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)


def read_panels(file: Path) -> list[dict[str, Any]]:
    """The panels of a dashboard that are no headings."""
    return [panel for panel in json.loads(file.read_text())["panels"] if panel["type"] != "row"]


def read_expressions() -> dict[str, str]:
    """Every query of every dashboard by where it is."""
    return {
        f"{file.stem}: {panel['title']} {target['refId']}": target["expr"]
        for file in FILES
        for panel in read_panels(file)
        for target in panel["targets"]
    }


def test_the_files_are_the_descriptions() -> None:
    if find_spec("grafana_foundation_sdk") is None:
        lack("grafana-foundation-sdk", "pip install --editable '.[test]'")
    from dashboards.grafana.building import DASHBOARDS, render

    found = {file.stem: file.read_text() for file in FILES}
    assert found == {shown.name: render(shown) for shown in DASHBOARDS}, "python -m dashboards.grafana"
    assert sorted(found) == ["cache", "overview", "speculation", "telemetry-health"]


@EACH
def test_datasource_and_job_are_variables(file: Path) -> None:
    """sglang dashboard: a datasource uid is hard-coded."""
    text = file.read_text()
    variables = json.loads(text)["templating"]["list"]
    assert [(one["name"], one["type"]) for one in variables] == [("datasource", "datasource"), ("job", "query")]
    uids = [uid for uid in re.findall(r'"uid": "([^"]*)"', text) if uid != f"roundscope-{file.stem}"]
    assert set(uids) == {"${datasource}"}
    assert [panel["title"] for panel in read_panels(file) if panel["datasource"]["uid"] != "${datasource}"] == []
    selected = [target["expr"] for panel in read_panels(file) for target in panel["targets"]]
    assert [expr for expr in selected if expr.count("{") != expr.count('{job=~"$job"')] == []


@EACH
def test_every_panel_explains_itself(file: Path) -> None:
    panels = read_panels(file)
    assert panels
    incomplete = [
        panel["title"]
        for panel in panels
        if not (panel["title"] and panel["description"].endswith(".") and panel["fieldConfig"]["defaults"]["unit"])
    ]
    assert incomplete == []
    assert len({panel["title"] for panel in panels}) == len(panels)
    ids = [panel["id"] for panel in json.loads(file.read_text())["panels"]]
    assert ids == list(range(1, len(ids) + 1))


def test_every_metric_and_label_is_defined() -> None:
    series = {name: metric for metric in METRICS.values() for name in metric.series}
    for where, expression in read_expressions().items():
        named = re.findall(rf"\b{PREFIX}\w+", expression)
        assert set(named) <= series.keys(), where
        allowed = {"job", "le", "instance", *(label for name in named for label in series[name].labels)}
        allowed.update(re.findall(r'label_replace\(.*, "(\w+)", "\$1', expression))
        grouped = {label for some in re.findall(r"(?:by|on) \(([^)]*)\)", expression) for label in some.split(", ")}
        matched = set(re.findall(r"(\w+)=~?\"", expression))
        assert grouped | matched <= allowed, where
