"""Operation counts: published figures, masks counted cell by cell, and what was counted from the shapes that ran."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.ncm import generate, init_model
from runtime.ncm.accounting import (
    Work,
    bound_speedup,
    count_multiply_adds,
    count_once,
    count_payload_bytes,
    count_prefix_reads,
    count_repeated,
)
from runtime.ncm.config import load_config
from runtime.ncm.resizing import find_covered
from telemetry.errors import Unsupported
from telemetry.ncm_records import LevelRecord, NcmEnd
from telemetry.recorder import Recorder
from tests.runtime.ncm.experiment.tiny import make_config


def test_the_published_figures() -> None:
    large, small = load_config("sudoku-e20"), load_config("tinyworld")
    assert (count_repeated(large), count_once(large)) == (Work(1_286, 120_392), Work(395, 48_221))
    assert (count_payload_bytes(large), count_payload_bytes(large, 64)) == (1_327_104, 81 * 2**20)
    assert (count_repeated(small).positions, count_once(small).positions) == (69, 64)
    assert round(bound_speedup(large), 2) == 3.20


def test_multiply_adds_by_hand() -> None:
    config = make_config(n_layers=2, width=12, ffn_width=24)
    # A position: four products of 12 x 12 and two of 12 x 24; a pair: 12 for the score and 12 for the value.
    assert count_multiply_adds(config, Work(positions=3, pairs=5)) == 2 * (3 * (4 * 144 + 2 * 288) + 5 * 24)


@pytest.mark.parametrize("length", [1, 2, 7, 9, 27, 50, 80, 81])
def test_covered_cells_are_those_of_the_resizing(length: int) -> None:
    config = make_config(lengths=(length, 81), level_attention="cells")
    assert count_prefix_reads(config, length) == sum(len(cells) for cells in find_covered(81, length))


def test_half_width_values_halve_the_payload() -> None:
    full = count_payload_bytes(make_config(), 3)
    assert count_payload_bytes(make_config(dtype="bfloat16"), 3) * 2 == full == 2 * 2 * 3 * 81 * 12 * 4


def test_another_policy_is_not_counted() -> None:
    with pytest.raises(Unsupported, match="policy block_diagonal, not block_causal"):
        count_once(make_config(policy="block_causal"))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"lengths": (1, 2, 7, 50, 81), "level_attention": "cells"},
        {"prefix_attention": "units", "cell_order": "boxes"},
        {"prefix_attention": "units", "level_attention": "cells", "n_layers": 4},
    ],
)
@pytest.mark.parametrize("cache", [True, False])
def test_what_was_counted_while_it_ran_is_the_formula(changes: dict[str, Any], cache: bool) -> None:
    config = make_config(**changes)
    recorder, batch = Recorder(), 2
    generate(init_model(config), [[cell % 10 for cell in range(81)]] * batch, cache=cache, recorder=recorder)
    levels = [record for record in recorder.records if isinstance(record, LevelRecord)]
    positions = sum(level.prefix_processed + level.level_processed for level in levels)
    work = Work(positions // batch, sum(level.pairs_allowed for level in levels) // batch // config.n_layers)
    assert work == (count_once if cache else count_repeated)(config)
    assert [level.prefix_reused for level in levels] == [0] + [81 * batch * cache] * (config.n_levels - 1)
    [end] = [record for record in recorder.records if isinstance(record, NcmEnd)]
    assert end.kv_bytes == count_payload_bytes(config, batch) * cache
