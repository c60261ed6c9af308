"""Every assertion passes on a good trace, and fails with what was wanted, what was found, and what is near."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from telemetry.errors import CheckFailed
from telemetry.testing import Spans, TraceAssertionError
from tests.telemetry.testing.trees import request, span, spans


def few(rows: int) -> bool:
    """Whether there are few rows."""
    return rows < 2


FEW = f"few (test_assertions.py:{few.__code__.co_firstlineno})"

GOOD: list[Callable[[Spans], Spans]] = [
    lambda good: good.find("ask").assert_exactly(2),
    lambda good: good.find("ask").assert_at_least(2),
    lambda good: good.find("ask").assert_at_most(2),
    lambda good: good.find("nothing").assert_exactly(0),
    lambda good: good.find("a*", {"rows": few}).assert_exactly(1),
    lambda good: good.find(attributes={"rows": None}).assert_exactly(3),
    lambda good: good.find("ask", {"tags": ["a", "b"]}).assert_exactly(1),
    lambda good: good.find("request").children("ask").assert_exactly(2),
    lambda good: good.find("request").descendants().assert_exactly(4),
    lambda good: good.roots().assert_exactly(1),
    lambda good: good.find("request").assert_attributes({"http.route": "/ask", "ok": True, "error.type": None}),
    lambda good: good.assert_in_order("request", "ask", "ask", "read"),
    lambda good: good.find("request").assert_children("authorise", "ask", ...),
    lambda good: good.find("request").assert_children("*", ..., "ask"),
    lambda good: good.find("authorise").assert_children(),
    lambda good: good.find("ask").assert_durations_within(30, 50),
    lambda good: good.assert_no_overlap(),
    lambda good: good.assert_children_fit(),
    lambda good: good.assert_nested(),
    lambda good: good.assert_all_ended(),
    lambda good: good.assert_one_trace(),
]


@pytest.mark.parametrize("holds", GOOD, ids=range(len(GOOD)))
def test_passes_on_a_good_trace_and_can_be_chained(holds: Callable[[Spans], Spans]) -> None:
    assert isinstance(holds(spans()), Spans)


BAD: list[tuple[Callable[[], Spans], str]] = [
    (
        lambda: spans(without="ask.1").find("ask").assert_exactly(2),
        "expected exactly 2 spans named 'ask'\nfound 1",
    ),
    (
        lambda: spans().find("drop").assert_exactly(2),
        "expected exactly 2 spans named 'drop'\nfound 0\n"
        "nearest miss: none; there are: 'ask', 'authorise', 'read', 'request'",
    ),
    (
        lambda: spans().find("aks").assert_at_least(1),
        "expected at least 1 span named 'aks'\nfound 0\nnearest miss: 'ask' (ask.1): it is named 'ask'",
    ),
    (
        lambda: spans().find("ask", {"rows": 4}).assert_at_least(1),
        "expected at least 1 span named 'ask' with rows = 4\nfound 0\nnearest miss: 'ask' (ask.1): rows is 3, wanted 4",
    ),
    (
        lambda: spans().find("ask", {"rows": 0, "tags": ("a",)}).assert_at_least(1),
        "expected at least 1 span named 'ask' with rows = 0 and tags = ('a',)\nfound 0\n"
        "nearest miss: 'ask' (ask.2): tags is not set, wanted ('a',)",
    ),
    (
        lambda: spans(span("ask.3", 92, 95, "request", name="ask")).find("ask").assert_at_most(2),
        "expected at most 2 spans named 'ask'\nfound 3",
    ),
    (
        lambda: spans().find("request").children("ask").find(attributes={"rows": 9}).assert_exactly(1),
        "expected exactly 1 span with rows = 9 among 2 spans named 'ask' under 1 span named 'request'\nfound 0\n"
        "nearest miss: 'ask' (ask.1): rows is 3, wanted 9",
    ),
    (
        lambda: spans(span("ask.2", 40, 90, "ask.1", name="ask")).find("request").children("ask").assert_exactly(2),
        "expected exactly 2 spans named 'ask' under 1 span named 'request'\nfound 1\n"
        "nearest miss: 'ask' (ask.2): it is under 'ask' (ask.1)",
    ),
    (
        lambda: spans().find("request", {"http.rout": "/ask"}).assert_exactly(1),
        "expected exactly 1 span named 'request' with http.rout = '/ask'\nfound 0\n"
        "nearest miss: 'request' (request): http.rout is not set, wanted '/ask'; it has http.route",
    ),
    (
        lambda: spans().find("request").assert_attributes({"http.rout": "/ask", "good": True}),
        "expected every one of 1 span named 'request' to have http.rout = '/ask' and good = True\n"
        "found 1 of 1 without\n"
        "nearest miss: 'request' (request): http.rout is not set, wanted '/ask'; good is not set, wanted True; "
        "it has http.route",
    ),
    (
        lambda: spans().find("request").assert_attributes({"ok": 1}),
        "expected every one of 1 span named 'request' to have ok = 1\nfound 1 of 1 without\n"
        "nearest miss: 'request' (request): ok is True, wanted 1",
    ),
    (
        lambda: spans().find("ask").assert_attributes({"rows": few, "tags": None}),
        f"expected every one of 2 spans named 'ask' to have rows = what {FEW} accepts and tags not set\n"
        "found 1 of 2 without\n"
        f"nearest miss: 'ask' (ask.1): rows is 3, wanted what {FEW} accepts; tags is ('a', 'b'), wanted not set",
    ),
    (
        lambda: spans().assert_in_order("ask", "authorise"),
        "expected in this order: ask, authorise\nfound ask, then no 'authorise'\n"
        "nearest miss: the last 'authorise' starts 10 ns before 'ask' does",
    ),
    (
        lambda: spans(without="ask.2").assert_in_order("ask", "ask"),
        "expected in this order: ask, ask\nfound ask, then no 'ask'\nnearest miss: there is no 'ask' besides",
    ),
    (
        lambda: spans(without="authorise").find("request").assert_children("authorise", "ask", ...),
        "expected under every one of 1 span named 'request': authorise, ask, ...\n"
        "found 1 of 1 with others, such as: ask, ask\nnearest miss: 'request' (request): 'authorise' is missing",
    ),
    (
        lambda: spans().find("request").assert_children("authorise", "ask"),
        "expected under every one of 1 span named 'request': authorise, ask\n"
        "found 1 of 1 with others, such as: authorise, ask, ask\n"
        "nearest miss: 'request' (request): 'ask' is too many",
    ),
    (
        lambda: spans().find("ask").assert_durations_within(0, 45),
        "expected 2 spans named 'ask' to last 0 ns to 45 ns each\nfound 1 of 2 outside\n"
        "nearest miss: 'ask' (ask.2): 50 ns: 5 ns too long",
    ),
    (
        lambda: spans(span("read", 45, None, "ask.2")).find("read").assert_durations_within(1, 2_500_000),
        "expected 1 span named 'read' to last 1 ns to 2.5 ms each\nfound 1 of 1 outside\n"
        "nearest miss: 'read' (read): has not ended",
    ),
    (
        lambda: spans(span("ask.2", 33, 90, "request", name="ask")).assert_no_overlap(),
        "expected no two of 5 spans at the same time\nfound 1 overlap\n"
        "nearest miss: 'ask' (ask.2) starts 7 ns before 'ask' (ask.1) ends",
    ),
    (
        lambda: spans(span("authorise", 0, 25, "request")).find("request").assert_children_fit(),
        "expected the children of 1 span named 'request' to take no longer than these do\nfound 1 of 1 with more\n"
        "nearest miss: 'request' (request): its children take 105 ns, 5 ns longer",
    ),
    (
        lambda: spans(span("read", 45, 91, "ask.2")).assert_nested(),
        "expected the children of 5 spans inside these\nfound 1 of 5 with a child outside\n"
        "nearest miss: 'read' (read): ends 1 ns later than 'ask'",
    ),
    (
        lambda: spans(span("ask.2", 90, None, "request", name="ask")).assert_all_ended(),
        "expected 5 spans to have ended, with their parents\nfound 1 of 5 open, or without their parent\n"
        "nearest miss: 'ask' (ask.2): has not ended",
    ),
    (
        lambda: spans(without="ask.2").assert_all_ended(),
        "expected 4 spans to have ended, with their parents\nfound 1 of 4 open, or without their parent\n"
        "nearest miss: 'read' (read): its parent ask.2 is not there: it never ended, or was dropped",
    ),
    (
        lambda: spans(span("read", 45, 80, None, trace_id="b" * 32)).assert_one_trace(),
        "expected 5 spans in one trace, under one root\nfound 2 traces with 2 roots\n"
        "nearest miss: 1 of the spans are apart from the others",
    ),
    (
        lambda: Spans([*request(), request()[1]]).assert_one_trace(),
        "expected 6 spans in one trace, under one root, each once\nfound 2 spans with an id of another",
    ),
]


@pytest.mark.parametrize(("fails", "message"), BAD, ids=range(len(BAD)))
def test_says_what_was_wanted_what_was_found_and_what_is_near(fails: Callable[[], Spans], message: str) -> None:
    with pytest.raises(TraceAssertionError) as caught:
        fails()
    text = str(caught.value)
    assert text[: text.index("\nthe trace")] == message
    assert isinstance(caught.value, AssertionError)
    assert isinstance(caught.value, CheckFailed)
    assert "   <-- " in text or "nearest miss: none" in text


def test_a_message_draws_the_tree_with_the_culprits() -> None:
    late = spans(span("read", 45, 1_500_091, "ask.2", status="error", error_type="E"))
    with pytest.raises(TraceAssertionError) as caught:
        late.assert_nested()
    assert str(caught.value).split("\n")[3:] == [
        "the trace:",
        f"  {'a' * 32}",
        "    request  100 ns at 0 ns",
        "      authorise  10 ns at 0 ns",
        "      ask  30 ns at 10 ns",
        "      ask  50 ns at 40 ns",
        "        read  1.500046 ms at 45 ns error   <-- ends 1.500001 ms later than 'ask'",
    ]


def test_of_many_siblings_few_are_drawn_and_those_that_matter() -> None:
    many = [span(f"s{n:02}", 10 * n, 10 * n + (25 if n == 20 else 5), "top") for n in range(40)]
    below = [span("below", 391, 392, "s39"), span("other", 1, 6, trace_id="b" * 32), span("under", 1, 2, "other")]
    below[2] = span("under", 1, 2, "other", trace_id="b" * 32)
    with pytest.raises(TraceAssertionError) as caught:
        Spans([span("top", 0, 400), *many, *below]).find("s*").assert_durations_within(5, 5)
    assert str(caught.value).split("\n")[3:] == [
        "the traces:",
        f"  {'a' * 32}",
        "    top  400 ns at 0 ns",
        "      s00  5 ns at 0 ns",
        "      s01  5 ns at 10 ns",
        "      s02  5 ns at 20 ns",
        "      s03  5 ns at 30 ns",
        "      ... 16 more",
        "      s20  25 ns at 200 ns   <-- 25 ns: 20 ns too long",
        "      ... 18 more",
        "      s39  5 ns at 390 ns (+1 below)",
        f"  {'b' * 32}",
        "    other  5 ns at 0 ns (+1 below)",
    ]


EACH: list[Callable[[Spans], Spans]] = [
    lambda none: none.assert_attributes({"a": 1}),
    lambda none: none.assert_in_order("round"),
    lambda none: none.assert_children(),
    lambda none: none.assert_durations_within(0, 1),
    lambda none: none.assert_no_overlap(),
    lambda none: none.assert_children_fit(),
    lambda none: none.assert_nested(),
    lambda none: none.assert_all_ended(),
    lambda none: none.assert_one_trace(),
]


@pytest.mark.parametrize("ask", EACH, ids=range(len(EACH)))
def test_a_misspelt_name_does_not_pass(ask: Callable[[Spans], Spans]) -> None:
    with pytest.raises(TraceAssertionError, match=r"\nfound 0 spans named 'aks'\nnearest miss: 'ask' \(ask.1\)"):
        ask(spans().find("aks"))


def test_the_names_of_spans_that_are_nested_in_themselves() -> None:
    """A circle of parents, as damaged data may have, is drawn all the same."""
    circle = Spans([span("a", 0, 1, "b"), span("b", 0, 1, "a")])
    with pytest.raises(TraceAssertionError, match="    a  1 ns at 0 ns\n      b  1 ns at 0 ns"):
        circle.find("c").assert_exactly(1)


def test_an_empty_trace_says_so() -> None:
    with pytest.raises(TraceAssertionError, match="nearest miss: none; there are: no spans\nthe trace is empty"):
        Spans([]).find("round").assert_at_least(1)


def test_a_remote_parent_or_one_of_unknown_place_may_be_elsewhere() -> None:
    for flags in (0x301, 0x001):
        Spans([span("request", 0, 1, "caller", flags=flags)]).assert_all_ended().assert_one_trace()


def test_spans_are_a_sequence_in_time() -> None:
    found = spans()
    assert [each.span_id for each in found[:2]] == ["request", "authorise"]
    assert (len(found), found[-1].name, repr(found.find("ask"))) == (5, "read", "<2 spans named 'ask'>")
    with pytest.raises(TypeError, match="repeats the name before it"):
        found.assert_children(...)
