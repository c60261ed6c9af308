"""`python -m dashboards.grafana`: writes the JSON files of this folder anew."""

from __future__ import annotations

from pathlib import Path

from dashboards.grafana.building import DASHBOARDS, render

for shown in DASHBOARDS:
    Path(__file__).with_name(f"{shown.name}.json").write_text(render(shown), encoding="utf-8")
