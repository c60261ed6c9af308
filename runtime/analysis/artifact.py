"""The analytic artifact: everything `roundscope analyze` computes, as one JSON document, and how it is compared.

Fractions are text, so that the document is exact. A configuration's counts stand under its name with its digest: a
changed configuration makes the committed artifact differ, even where its counts stay.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from importlib.resources import files
from typing import Any, TypeAlias

from runtime.analysis.speculation import (
    FIXTURES,
    MIXTURE,
    Fixture,
    enumerate_block,
    enumerate_committed,
    enumerate_outcomes,
    expect_committed,
    list_pairs,
    measure_distance,
    mix,
)
from runtime.ncm.accounting import count_once, count_payload_bytes, count_repeated
from runtime.ncm.config import NcmConfig, config_names, load_config

Document: TypeAlias = dict[str, Any]
NAME = "artifact.json"
LARGE_BATCH = 64
ALPHA, M = Fraction(1, 2), 4
LONGEST = 8
"""Draft lengths up to which E[C] is held against all 2^m outcomes."""


def make_artifact() -> Document:
    """Compute the whole document."""
    return {
        "configurations": {name: count_config(load_config(name)) for name in config_names()},
        "committed_per_round": check_committed(),
        "residual_rule": {name: check_fixture(fixture) for name, fixture in FIXTURES.items()},
        "latent_mixture": check_mixture(),
    }


def count_config(config: NcmConfig) -> Document:
    """Operation counts of one configuration: positions and pairs a layer and sample, payload in bytes."""
    repeated, once = count_repeated(config), count_once(config)
    return {
        "config_digest": config.digest,
        "prefix_length": config.prefix_length,
        "lengths": list(config.lengths),
        "n_layers": config.n_layers,
        "width": config.width,
        "dtype": config.dtype,
        "positions_repeated": repeated.positions,
        "positions_once": once.positions,
        "positions_removed": repeated.positions - once.positions,
        "pairs_repeated": repeated.pairs,
        "pairs_once": once.pairs,
        "payload_bytes": count_payload_bytes(config),
        f"payload_bytes_batch_{LARGE_BATCH}": count_payload_bytes(config, LARGE_BATCH),
    }


def check_committed() -> Document:
    """E[C] under independent acceptance: the formula's value, and whether enumeration agrees on a grid."""
    alphas = [Fraction(n, 4) for n in range(5)]
    grid = [(alpha, m) for alpha in alphas for m in range(LONGEST + 1)]
    return {
        "alpha": str(ALPHA),
        "m": M,
        "expected": str(expect_committed(ALPHA, M)),
        "n_enumerated": len(grid),
        "n_equal": sum(expect_committed(alpha, m) == enumerate_committed(alpha, m) for alpha, m in grid),
    }


def check_fixture(fixture: Fixture) -> Document:
    """The rule's output on one fixture, enumerated, beside what it must be."""
    accepted, corrected = enumerate_outcomes(fixture.p, fixture.q)
    output = tuple(a + b for a, b in zip(accepted, corrected, strict=True))
    distance = measure_distance(fixture.p, fixture.q)
    return {
        "p": _write(fixture.p),
        "q": _write(fixture.q),
        "output": _write(output),
        "acceptance": str(sum(accepted)),
        "total_variation": str(distance),
        "output_is_p": output == fixture.p,
        "acceptance_is_one_less_total_variation": sum(accepted) == 1 - distance,
    }


def check_mixture() -> Document:
    """The law of two output tokens for each latent and over both, beside the target's."""
    target = list_pairs(MIXTURE)
    laws = [enumerate_block(MIXTURE, latent) for latent in range(len(MIXTURE.latents))]
    mixed = mix(MIXTURE)
    return {
        "target": _write(target.values()),
        "weights": _write(weight for weight, *_ in MIXTURE.latents),
        "by_latent": [_write(law.values()) for law in laws],
        "mixed": _write(mixed.values()),
        "every_latent_is_target": all(law == target for law in laws),
        "mixed_is_target": mixed == target,
    }


def find_failures(document: Document) -> list[str]:
    """Paths of the identities in a document that do not hold."""
    failed = [path for path, value in walk(document) if value is False]
    committed = document["committed_per_round"]
    return failed + ["committed_per_round.n_equal"] * (committed["n_equal"] != committed["n_enumerated"])


def find_differences(committed: Document, computed: Document) -> list[str]:
    """What differs between two documents, a line each with its path."""
    before, after = dict(walk(committed)), dict(walk(computed))
    missing = "nothing"
    return [
        f"{path} is {after.get(path, missing)!r}, committed is {before.get(path, missing)!r}"
        for path in dict.fromkeys([*before, *after])
        if before.get(path, missing) != after.get(path, missing)
    ]


def walk(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value of a document that is no object, with its path; lists are values."""
    if not isinstance(value, dict):
        yield path, value
        return
    for name, item in value.items():
        yield from walk(item, f"{path}.{name}" if path else name)


def read_committed() -> Document:
    """The artifact as it is shipped."""
    document: Document = json.loads(files("runtime.analysis").joinpath(NAME).read_text(encoding="utf-8"))
    return document


def write_text(document: Document) -> str:
    """A document as the committed file has it."""
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def _write(values: Any) -> str:
    return " ".join(str(value) for value in values)
