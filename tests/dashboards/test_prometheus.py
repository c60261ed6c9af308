"""A real Prometheus scrapes the endpoint after a run: its figures are SQL's, and what rules ask for exists."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import queries
from runtime import speculate
from runtime.experiment.execution import Execution
from runtime.experiment.plan import make_plan
from runtime.testing import ScriptedDrafter
from telemetry.journal import Journal
from telemetry.metric_docs import RULES, render
from telemetry.recorder import Recorder
from telemetry.store import connect
from telemetry.testing import FakeClock
from tests.conftest import ROOT, require_tool
from tests.dashboards.test_grafana import read_expressions
from tests.runtime.experiment.letters import make_request, make_target, make_workload
from tests.runtime.scripted import draw
from tests.telemetry import stores
from tests.telemetry.coarse import whole_ncm
from tests.telemetry.test_serving import parse, scrape, serving

DASHBOARDS = ROOT / "dashboards"
RULES_FILE = DASHBOARDS / "prometheus" / "rules.yml"
CURE = "apt-get install prometheus"
WAIT_S = 60.0
CONFIG = """
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: roundscope
    static_configs: [{{targets: ["{target}"]}}]
"""


@dataclass
class Scraped:
    """What was recorded, the endpoint's answers, and a Prometheus that reads it."""

    store: Path
    text: str
    ask: Callable[..., Any]

    def value(self, expression: str, label: str) -> dict[str, float]:
        """What an expression gives by one label, as soon as there is something."""
        end = time.monotonic() + WAIT_S
        while not (result := self.ask("query", query=expression)["result"]):
            assert time.monotonic() < end, f"{expression} gave nothing within {WAIT_S} s"
            time.sleep(0.1)
        return {each["metric"].get(label, ""): float(each["value"][1]) for each in result}


def record(store: Path) -> None:
    """A run of seven arms on six prompts, whose forwards take some 10 ms, no two the same; draws; and levels."""
    clock = FakeClock(tick_ns=1000)
    target = make_target(
        cost_ns=lambda width, context: 9_000_000 + 400_000 * width + draw(clock.monotonic_ns()) % 2_000_000,
        clock=clock,
        eos=(),
    )
    drafters = ("oracle", "wrong", "prompt-lookup+suffix")
    request = make_request(drafters=drafters, draft_lengths=(4, "auto"), repeats=2, max_tokens=15)
    with Journal(store) as journal:
        journal.write(stores.run())
        plan = make_plan(request, make_workload(6), target)
        recorder = Recorder(journal, run_id="run-1", clock=clock)
        Execution(plan, target, recorder).run()
        speculate(
            target,
            ScriptedDrafter(lambda history, m: [1, 2][:m]),
            [1, 2],
            draft_length=2,
            max_tokens=15,
            timing="attributed",
            temperature=1.0,
            recorder=recorder.label(arm="drawn"),
        ).drain()
        for line in whole_ncm("n1"):
            journal.write(line)
        journal.write(stores.run_end())


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[Callable[..., Any]]:
    """A Prometheus on loopback that scrapes `target` and evaluates our rules, as a function that asks its API."""
    program = require_tool("prometheus", CURE)
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = folder / "prometheus.yml"
    config.write_text(CONFIG.format(rules=RULES_FILE, target=target))
    options = {"config.file": config, "storage.tsdb.path": folder / "tsdb", "web.listen-address": address}
    command = [program, *(f"--{name}={value}" for name, value in options.items())]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [*command, "--enable-feature=exemplar-storage", "--log.level=warn"], stderr=log, stdout=log
        )

    def ask(endpoint: str, **parameters: str) -> Any:
        url = f"http://{address}/api/v1/{endpoint}?{urllib.parse.urlencode(parameters)}"
        end = time.monotonic() + WAIT_S
        while True:
            try:
                with urllib.request.urlopen(url, timeout=WAIT_S) as answer:
                    return json.loads(answer.read())["data"]
            except urllib.error.URLError as error:
                if process.poll() is not None or time.monotonic() > end:
                    pytest.fail(f"{url}: {error}\n{(folder / 'log').read_text()}")
                time.sleep(0.1)

    try:
        yield ask
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """A run, its endpoint, and a Prometheus."""
    store = tmp_path_factory.mktemp("store")
    record(store)
    with serving(store) as (_, address):
        text = scrape(address)
        target = address.removeprefix("http://").removesuffix("/metrics")
        with prometheus(tmp_path_factory.mktemp("prometheus"), target) as ask:
            yield Scraped(store, text, ask)


def read_rules() -> dict[str, str]:
    """Every rule's name and expression. The file's shape is promtool's business."""
    parts = re.split(r"- record: ", RULES_FILE.read_text())[1:]
    return {part.split()[0]: part.partition("expr: |")[2].partition("\n\n")[0] for part in parts}


def find_names(text: str) -> set[str]:
    """Names of our series in a text."""
    return set(re.findall(r"(?<![\w:])roundscope_\w+", text))


def test_seconds_per_committed_token_are_sqls(scraped: Scraped) -> None:
    with connect(scraped.store, prepare=queries.install_views) as connected:
        result = queries.run(connected.con, "seconds_per_token")
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    timed = [row for row in rows if row["class"] == "all" and row["seconds_per_token"] is not None]
    expected = {row["arm"]: row["seconds_per_token"] for row in timed}
    assert len(expected) == 7
    selected = '{timing="fused", warm_up="false"}'
    asked = f"sum by (arm) (roundscope_round_seconds_sum{selected})"
    asked += f" / sum by (arm) (roundscope_committed_tokens_total{selected})"
    for expression in (asked, "arm:roundscope_seconds_per_committed_token:ratio"):
        assert scraped.value(expression, "arm") == pytest.approx(expected, rel=1e-12)


def test_regret_is_sqls(scraped: Scraped) -> None:
    """Beyond the best fixed length and beyond ordinary decoding, of which SQL takes the cheaper."""
    with connect(scraped.store, prepare=queries.install_views) as connected:
        result = queries.run(connected.con, "controller")
    rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
    expected = {row["arm"]: row["regret"] for row in rows if row["class"] == "all"}
    assert len(expected) == 3
    wheres = [f"speculation: Regret, since counting began {letter}" for letter in "AB"]
    fixed, ordinary = (scraped.value(read_expressions()[where].replace("$job", ".+"), "arm") for where in wheres)
    assert {arm: max(fixed[arm], ordinary[arm]) for arm in fixed} == pytest.approx(expected, abs=1e-9)


def test_vllms_names_give_the_same_facts(scraped: Scraped) -> None:
    sums = "sum(proposed > 0)::int, sum(proposed), sum(accepted), sum(committed)"
    with connect(scraped.store) as connected:
        [[*expected]] = connected.con.execute(f"select {sums} from rounds").fetchall()
        [[prompt]] = connected.con.execute("select sum(prompt_tokens) from generations").fetchall()
        positions = connected.con.execute(
            "select p::varchar, count(*) from rounds, range(accepted) as r (p) group by p order by p"
        ).fetchall()
    names = ("spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens")
    found = [
        sum(scraped.value(f"sum by (arm) (vllm:{name}_total)", "arm").values())
        for name in (*names, "generation_tokens", "prompt_tokens")
    ]
    assert found == [*expected, prompt]
    by_position = "sum by (position) (vllm:spec_decode_num_accepted_tokens_per_pos_total)"
    assert scraped.value(by_position, "position") == dict(positions)
    assert list(scraped.value("vllm:spec_decode_num_drafts_total", "model_name")) == ["scripted"]


def test_every_rule_gives_something_and_is_documented(scraped: Scraped) -> None:
    rules = read_rules()
    assert list(rules) == list(RULES)
    for name in rules:
        assert scraped.value(name, "arm")


def test_every_series_that_dashboards_ask_for_exists_after_a_run(scraped: Scraped) -> None:
    """vllm#27133, production-stack#989: dashboards query metrics that do not exist."""
    existing = {name.partition("{")[0] for name in parse(scraped.text)}
    paths = [path for path in DASHBOARDS.rglob("*") if path.suffix in {".yml", ".yaml", ".json"}]
    assert RULES_FILE in paths
    assert {path.name: missing for path in paths if (missing := find_names(path.read_text()) - existing)} == {}


@pytest.mark.parametrize("where", read_expressions())
def test_every_panel_shows_something_after_a_run(scraped: Scraped, where: str) -> None:
    expression = read_expressions()[where].replace("$job", ".+").replace("$__rate_interval", "1m")
    assert scraped.value(expression, "arm")


def test_prometheus_holds_the_exemplars_traces_and_no_created_series(scraped: Scraped) -> None:
    """vllm#41916: `_created` samples summed as counters."""
    scraped.value("roundscope_rounds_total", "arm")
    names = scraped.ask("label/__name__/values")
    assert [name for name in names if name.endswith("_created")] == []
    assert find_names("\n".join(names)) == {name.partition("{")[0] for name in parse(scraped.text)}
    now = time.time()
    with connect(scraped.store) as connected:
        traces = {row[0] for row in connected.con.execute("select generation_id from generations").fetchall()}
        [(first, last)] = connected.con.execute(
            "select min(started_wall_ns) / 1e9, max(started_wall_ns) / 1e9 from generations"
        ).fetchall()
    asked = scraped.ask("query_exemplars", query="roundscope_round_seconds_bucket", start=f"{first - 60}", end=f"{now}")
    found = {exemplar["labels"]["trace_id"] for series in asked for exemplar in series["exemplars"]}
    assert found
    assert found <= traces
    assert first <= last <= now


def test_promtool_accepts_metrics_rules_and_the_configuration(scraped: Scraped) -> None:
    promtool = require_tool("promtool", CURE)
    configuration = DASHBOARDS / "prometheus" / "prometheus.yml"
    for arguments in (["metrics"], ["rules", str(RULES_FILE)], ["config", str(configuration)]):
        checked = subprocess.run(
            [promtool, "check", *arguments], input=scraped.text, capture_output=True, text=True, timeout=60
        )
        assert (checked.returncode, checked.stderr) == (0, ""), checked.stdout + checked.stderr


def test_the_documentation_is_the_definitions() -> None:
    assert (ROOT / "docs" / "metrics.md").read_text() == render(), "python -m telemetry.metric_docs > docs/metrics.md"
