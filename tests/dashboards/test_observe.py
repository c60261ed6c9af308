"""Alerts fire for what they are about, and compose file and configurations name what exists; no engine is needed."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.report.recommendation import REFERENCES
from runtime.cli.main import SUMMARIES
from tests.conftest import ROOT, require_tool

DASHBOARDS = ROOT / "dashboards"
ALERTS = DASHBOARDS / "prometheus" / "alerts.yml"
CASES = Path(__file__).with_name("alerts.test.yml")
OBSERVE = (ROOT / "docs" / "observe.md").read_text(encoding="utf-8")
COMPOSE: dict[str, Any] = yaml.safe_load((DASHBOARDS / "compose.yaml").read_text())["services"]
CURE = "apt-get install prometheus"


def read(path: str) -> Any:
    """A YAML file under dashboards/."""
    return yaml.safe_load((DASHBOARDS / path).read_text(encoding="utf-8"))


def list_alerts() -> list[str]:
    """The names of all alerts."""
    return [rule["alert"] for rule in read("prometheus/alerts.yml")["groups"][0]["rules"]]


def list_mounts(service: str) -> dict[str, Path]:
    """The files and folders that a service sees, by their place in its container."""
    mounts = [volume.split(":") for volume in COMPOSE[service]["volumes"]]
    assert [mode for _, _, mode in mounts] == ["ro"] * len(mounts)
    return {inside: DASHBOARDS / outside for outside, inside, _ in mounts}


def find_outside(service: str, inside: str) -> Path:
    """The file here that is at this place in a service's container."""
    for place, outside in list_mounts(service).items():
        if inside == place or inside.startswith(f"{place}/"):
            return outside / inside.removeprefix(place).lstrip("/")
    raise AssertionError(f"{service} does not see {inside}")


def test_alerts_fire_for_what_they_are_about_and_for_nothing_else() -> None:
    promtool = require_tool("promtool", CURE)
    command = [promtool, "test", "rules", str(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    fired = re.findall(r"alertname: (\w+)\n\s+exp_alerts:\n", CASES.read_text())
    silent = re.findall(r"alertname: (\w+)\n\s+exp_alerts: \[\]\n", CASES.read_text())
    assert set(fired) == set(silent) == set(list_alerts())


@pytest.mark.parametrize("name", ["prometheus.yml", "container.yml"])
def test_promtool_accepts_both_configurations_with_all_rules(name: str) -> None:
    promtool = require_tool("promtool", CURE)
    command = [promtool, "check", "config", str(DASHBOARDS / "prometheus" / name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert read(f"prometheus/{name}")["rule_files"] == ["rules.yml", "alerts.yml"]


def test_reference_drafters_raise_no_alarm() -> None:
    [left_out] = re.findall(r'arm!~"ordinary\|\(([^)]*)\)\( \.\*\)\?"', ALERTS.read_text())
    assert set(left_out.split("|")) == REFERENCES


def test_every_alert_and_dashboard_is_documented() -> None:
    assert re.findall(r"^\| `([A-Z]\w+)` \|", OBSERVE, re.MULTILINE) == list_alerts()
    dashboards = {path.stem for path in (DASHBOARDS / "grafana").glob("*.json")}
    assert set(re.findall(r"^\| `([a-z-]+)` \|", OBSERVE, re.MULTILINE)) == dashboards


def test_the_services_see_what_their_commands_and_configurations_name() -> None:
    assert list(COMPOSE) == ["prometheus", "grafana", "collector"]
    assert [mount for name in COMPOSE for mount in list_mounts(name).values() if not mount.exists()] == []
    options = {name: COMPOSE[name]["command"][0].removeprefix("--config.file=") for name in ("prometheus",)}
    assert find_outside("prometheus", options["prometheus"]) == DASHBOARDS / "prometheus" / "container.yml"
    collector = COMPOSE["collector"]["command"][0].removeprefix("--config=")
    assert find_outside("collector", collector) == DASHBOARDS / "collector.yaml"
    [provider] = read("provisioning/dashboards/roundscope.yaml")["providers"]
    assert find_outside("grafana", provider["options"]["path"]) == DASHBOARDS / "grafana"
    assert find_outside("grafana", "/etc/grafana/provisioning/datasources").is_dir()


def test_services_find_each_other_and_are_open_on_this_machine_only() -> None:
    ports = {name: [port.rsplit(":", 1) for port in service["ports"]] for name, service in COMPOSE.items()}
    assert {address.rpartition(":")[0] for some in ports.values() for address, _ in some} == {"127.0.0.1"}
    [source] = read("provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == f"http://prometheus:{ports['prometheus'][0][1]}"
    endpoint = read("collector.yaml")["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    assert endpoint.rpartition(":")[2] == ports["collector"][0][1]
    [target] = read("prometheus/container.yml")["scrape_configs"][0]["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert COMPOSE["prometheus"]["extra_hosts"] == [f"{host}:host-gateway"]
    assert f"--port {port} " in OBSERVE


def test_the_collector_uses_what_it_defines() -> None:
    config = read("collector.yaml")
    used = config["service"]["pipelines"]["traces"]
    assert (used["receivers"], used["exporters"]) == (list(config["receivers"]), list(config["exporters"]))


def test_what_the_guide_names_exists() -> None:
    files = re.findall(r"`(dashboards/[^`*]+)`", OBSERVE)
    assert [name for name in files if not (ROOT / name).exists()] == []
    commands = set(re.findall(r"roundscope ([a-z][a-z-]*)", OBSERVE))
    assert commands <= SUMMARIES.keys()
    links = re.findall(r"\]\(([^)#]+)\)", OBSERVE)
    assert [link for link in links if not (ROOT / "docs" / link).exists()] == []
