"""Which arm is recommended."""

from __future__ import annotations

import duckdb

from dashboards.report import Recommendation, recommend
from dashboards.report.recommendation import PaysOn
from tests.queries.given import Given, spec, step
from tests.queries.simulate import Row

PAYS = [spec(12, 4, 4)] * 2
PAYS_LESS = [spec(18, 4, 4)] * 2
LOSES = [spec(12, 4, 0)] * 10
LOSES_MUCH = [spec(25, 4, 0)] * 10


def give(con: duckdb.DuckDBPyConnection, arms: dict[tuple[str, int], dict[str, list[Row]]]) -> None:
    """Five prompts of each class, by ordinary decoding and by every arm as told for the class."""
    with Given(con) as given:
        for class_ in next(iter(arms.values())):
            for i in range(5):
                given.add(None, f"{class_}-{i}", [step(10 + 0.1 * i)] * 10, **{"class": class_})
                for arm, rounds in arms.items():
                    given.add(arm, f"{class_}-{i}", rounds[class_], **{"class": class_})


def test_the_arm_that_pays_most_surely_is_recommended(con: duckdb.DuckDBPyConnection) -> None:
    give(con, {("a", 4): {"x": PAYS_LESS}, ("b", 4): {"x": PAYS}, ("c", 4): {"x": LOSES}})
    said = "Switch on b m=4: 4.25 times as fast as ordinary decoding, at least 4.17 times."
    assert recommend(con, "run-1") == Recommendation("b m=4", "b", 4, said)


def test_what_nobody_can_use_is_not_recommended(con: duckdb.DuckDBPyConnection) -> None:
    give(con, {("oracle", 4): {"x": PAYS}, ("none", 0): {"x": [step(9)] * 10}, ("wrong", 4): {"x": LOSES}})
    said = "Nothing to switch on: no arm that is exact and can be used was measured."
    assert recommend(con, "run-1") == Recommendation(None, None, None, said)


def test_chance_is_not_recommended_where_nothing_was_proposed(con: duckdb.DuckDBPyConnection) -> None:
    give(con, {("silent", 4): {"x": [spec(9, 0, 0, requested=4)] * 10}})
    said = "Leave it off: nothing that was measured pays."
    assert recommend(con, "run-1") == Recommendation(None, None, None, said)


def test_classes_on_which_it_pays_are_named(con: duckdb.DuckDBPyConnection) -> None:
    give(con, {("a", 4): {"x": PAYS, "y": LOSES_MUCH}, ("b", 4): {"x": PAYS_LESS, "y": LOSES_MUCH}})
    found = recommend(con, "run-1")
    assert (found.arm, found.drafter, found.draft_length) == (None, None, None)
    assert [(one.class_name, one.arm, round(one.speedup, 2)) for one in found.pays_on] == [("x", "a m=4", 4.25)]
    assert found.sentence == (
        "Leave it off for such a mixture: nothing pays over all classes. "
        "It does pay on x with a m=4 (4.25 times as fast)."
    )
    assert isinstance(found.pays_on[0], PaysOn)


def test_without_a_verdict_nothing_is_recommended(con: duckdb.DuckDBPyConnection) -> None:
    with Given(con) as given:
        given.add(None, "p0", [step(10)] * 10)
        given.add(("a", 4), "p0", PAYS)
    assert recommend(con, "run-1") == Recommendation(
        None, None, None, "No advice yet: a verdict takes 5 prompts that ordinary decoding and the arm both completed."
    )
