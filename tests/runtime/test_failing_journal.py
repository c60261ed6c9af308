"""A generation whose journal's file hits a real size limit: it goes on, and the run's report tells what is lost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import run_python
from tests.runtime.commands import call
from tests.telemetry.disk import salvage

LIMITED = """
import json, resource, sys
from runtime.generate import speculate
from telemetry.journal import Journal
from telemetry.recorder import Recorder
from tests.runtime.experiment.letters import make_target
from tests.telemetry.stores import run, run_end

_, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
target, said = make_target(), []
with Journal(sys.argv[1]) as journal:
    journal.write(run())
    recorder = Recorder(journal, run_id="run-1")
    for room in (1500, hard):
        limit = hard if room == hard else journal.path.stat().st_size + room
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
        generation = speculate(
            target, "prompt-lookup", [3, 0, 1, 2, 0, 1, 2], draft_length=3, max_tokens=30, recorder=recorder
        )
        rounds = list(generation)
        said.append([len(rounds), generation.text, generation.finish_reason])
    journal.write(run_end())
print(json.dumps([str(journal.path), journal.n_lost, said]))
"""


def test_the_generation_goes_on_and_the_loss_is_counted_and_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    child = run_python(LIMITED, str(tmp_path))
    assert child.returncode == 0, child.stderr
    path, n_lost, said = json.loads(child.stdout)
    assert said == [[8, "abc" * 10, "length"]] * 2
    assert child.stderr.count("journal.write_failed") == 1
    assert child.stderr.count("\n") == 1
    kept = salvage(Path(path))
    assert sum(record.n_records for record in kept if type(record).__name__ == "LossRecord") == n_lost > 0
    # Of two generations with a start, eight rounds and an end each, of the run's start and end, and of the header.
    assert len([record for record in kept if type(record).__name__ != "LossRecord"]) + n_lost == 2 * 10 + 3
    code, out, _ = call(capsys, "report", "--store", tmp_path)
    assert code == 0
    assert f"{n_lost} records that could not be written" in " ".join(out.split())
