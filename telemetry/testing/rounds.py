"""`assert_rounds_consistent`: what was recorded of generations agrees with itself, and with what a round is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise
from typing import TypeAlias

from telemetry.fields import COMMITS_ONE_MORE, STAGES
from telemetry.records import GenerationEnd, Record
from telemetry.span_data import ABORTED
from telemetry.span_names import OPERATION, PREFILL, ROUND, ROUND_STAGES, attributes_of
from telemetry.testing.facts import Facts, is_generation, is_ours, is_round, read_generation, read_round
from telemetry.testing.failure import fail, say_ns
from telemetry.testing.spans import Spans
from telemetry.testing.tree import Forest, Span

__tracebackhide__ = True

Fault: TypeAlias = tuple[Span, str]

_JUDGED = (*COMMITS_ONE_MORE, "stop")
"""Outcomes of rounds that ran to their end."""

_COUNTS = ("index", "requested", "proposed", "accepted", "committed", "cut", "outcome", "width", "cache_length")
_CHOSE_NONE = ("budget", "landing", "last")
"""Why a controller asks for nothing."""
_ORDINARY_STAGES = ("verify", "synchronize")
_FOLLOWED_STAGES = ("draft", *_ORDINARY_STAGES, "rewind")
"""Of a controller's step: it is decided on, and the drafter follows it."""
_USAGE = "gen_ai.usage."
_END = tuple(each.field.name for each in attributes_of(GenerationEnd))


def assert_rounds_consistent(source: Spans | Iterable[Record]) -> None:
    """Every generation and round in `source`, spans of any origin or records, holds to what the words mean.

    Coarse-to-fine generations have levels and no rounds; nothing is said of them here.
    Rounds: none is missing, doubled or elsewhere; they follow one another in time, with their stages inside them.
    Tokens: accepted + cut <= proposed <= requested, which is what was asked for; committed = accepted, and one more
    after a correction, a bonus or a step; only the last round may cut. A controller says why it chose m, nobody else
    does, nor expects a time. Nothing is said of q or of a coupling where no such rule judges: in a greedy or a relaxed
    generation. A round says what its q was only where one of several parts proposed it, and p/q with the residual
    judged. Lengths: the caches hold the committed history less its last token. Sums: the generation's rounds, output
    and times are those of its rounds; usage stands on it alone.
    """
    spans = source if isinstance(source, Spans) else Spans.from_records(source)
    forest = spans.forest
    generations = [span for span in spans if is_generation(span)]
    faults = [*(fault for each in generations for fault in _check_generation(forest, each)), *_find_strays(spans)]
    if faults or not generations:
        notes: dict[Span, str] = {}
        for span, note in faults:
            notes[span] = f"{notes[span]}; {note}" if span in notes else note
        found = f"{len(faults)} faults" if generations else "no generation"
        first = f"{faults[0][0].name!r}: {faults[0][1]}" if faults else None
        raise fail(forest, "consistent rounds", found.replace("1 faults", "1 fault"), nearest=first, notes=notes)


def _find_strays(spans: Spans) -> Iterator[Fault]:
    """Spans of rounds and stages that are not where they belong."""
    places = {PREFILL: is_generation, ROUND: is_generation, **dict.fromkeys(ROUND_STAGES.values(), is_round)}
    for span in spans:
        belongs = places.get(span.name)
        parent = spans.forest.parent(span)
        if belongs is not None and is_ours(span) and (parent is None or not belongs(parent)):
            yield span, f"its parent is {'not here' if parent is None else repr(parent.name)}"


def _check_generation(forest: Forest, span: Span) -> Iterator[Fault]:
    generation = read_generation(span)
    children = forest.children(span)
    rounds = [read_round(child) for child in children if child.name == ROUND]
    if unset := generation.find_unset("draft_length", "prompt_tokens", "max_tokens"):
        yield span, f"not set: {', '.join(unset)}"
        return
    for each in rounds:
        if unset := each.find_unset(*_COUNTS):
            yield each.span, f"not set: {', '.join(unset)}"
            return
    if span.name != (wanted := f"{OPERATION} {generation['model']}"):
        yield span, f"its name is not {wanted!r}"
    if generation["policy"] in ("greedy", "relaxed"):
        for field in ("q_source", "coupling"):
            if generation[field] is not None:
                yield span, f"{field} is {generation[field]}, but its policy is {generation['policy']}"
    yield from _check_tokens(generation, rounds)
    yield from _check_times(forest, span)
    for each in rounds:
        yield from _check_stages(forest, each, _list_stages(generation, each))
    for below in forest.spans:
        if any(name.startswith(_USAGE) for name in below.attributes) and span in forest.ancestors(below):
            yield below, "usage belongs to the generation alone"
    prefills = [child for child in children if child.name == PREFILL]
    if generation["finish_reason"] is None:
        yield from _check_aborted(generation, prefills)
    else:
        yield from _check_prefill(span, prefills)
        yield from _check_end(generation, rounds)


def _check_tokens(generation: Facts, rounds: list[Facts]) -> Iterator[Fault]:
    committed = 0
    for place, each in enumerate(rounds):
        if each["index"] != place:
            yield each.span, f"index is {each['index']}, but it is round {place} in time"
        is_last = place == len(rounds) - 1
        checks = (
            _check_counts(each, is_last),
            _check_lengths(generation, each, committed),
            _check_choice(generation, each),
            _check_source(generation, each),
        )
        for fault in chain.from_iterable(checks):
            yield each.span, fault
        committed += each["committed"]


def _check_counts(each: Facts, is_last: bool) -> Iterator[str]:
    outcome, proposed, accepted, cut = (each[name] for name in ("outcome", "proposed", "accepted", "cut"))
    wanted = accepted + (outcome in COMMITS_ONE_MORE)
    if each["committed"] != wanted:
        yield f"committed is {each['committed']}, but {accepted} accepted and a {outcome} make {wanted}"
    if accepted + cut > proposed:
        yield f"{accepted} accepted and {cut} cut are more than {proposed} proposed"
    if proposed > each["requested"]:
        yield f"{proposed} proposed are more than {each['requested']} requested"
    if each["proposer"] is not None and not each["requested"]:
        yield f"proposer is {each['proposer']!r}, but nothing was requested"
    holds = {
        "correction": accepted < proposed,
        "bonus": 0 < accepted == proposed,
        "step": proposed == 0,
        "stop": accepted > 0,
    }
    if not holds.get(outcome, True):
        yield f"a {outcome} does not go with {accepted} accepted of {proposed} proposed"
    if (each["overlap_positions"] or 0) > proposed - cut:
        yield f"an overlap over {each['overlap_positions']} positions, but {proposed - cut} were judged"
    if each["overlap"] is not None and not 0 <= each["overlap"] <= (each["overlap_positions"] or 0):
        yield f"overlap is {each['overlap']} over {each['overlap_positions']} positions, of which each has 0 to 1"
    if cut and outcome in COMMITS_ONE_MORE:
        yield f"{cut} cut, but a {outcome} ends no output"
    if not is_last and (outcome not in COMMITS_ONE_MORE or each["stop_kind"] is not None):
        yield f"the output ended here ({each['stop_kind'] or outcome}), but rounds follow"


def _check_lengths(generation: Facts, each: Facts, committed: int) -> Iterator[str]:
    """`committed`: tokens of the output before this round."""
    if each["outcome"] not in _JUDGED:
        return
    speculative = generation["drafter"] is not None
    budget = generation["max_tokens"] - committed
    requested = max(0, min(generation["draft_length"], budget - 1)) if speculative else 0
    # A round that would cross the point from which K/V are quantised is kept short of it.
    may_be_fewer = generation["kv_bits"] is not None or generation["controlled"]
    shortened = may_be_fewer and each["requested"] < requested
    if each["requested"] != requested and not shortened:
        yield f"requested is {each['requested']}, but {budget} tokens were left: {requested}"
    if each["width"] != each["proposed"] + 1:
        yield f"width is {each['width']}, but {each['proposed']} proposed make {each['proposed'] + 1}"
    held = generation["prompt_tokens"] + committed + each["committed"] - 1
    # Pipelined decoding may have launched the next step.
    ahead = 1 if generation["pipelined"] else 0
    if not held <= each["cache_length"] <= held + ahead:
        yield f"cache_length is {each['cache_length']}, but the history less its last token is {held}"
    if each["drafter_length"] is not None and each["drafter_length"] > held:
        yield f"drafter_length is {each['drafter_length']}, but the history less its last token is {held}"


def _check_choice(generation: Facts, each: Facts) -> Iterator[str]:
    """A controller says why it chose m, and nobody else does."""
    reason = each["reason"]
    if reason is not None and not generation["controlled"]:
        yield f"reason is {reason}, but no controller chose {each['requested']}"
    if reason is None and generation["controlled"] and each["outcome"] in _JUDGED:
        yield f"a controller chose {each['requested']}, but gives no reason"
    if reason in _CHOSE_NONE and each["requested"]:
        yield f"reason is {reason}, but {each['requested']} were requested"
    for field in ("expected_ns", "expected_step_ns"):
        if each[field] is not None and reason is None:
            yield f"{field} is {each[field]}, but there is no reason: no controller expected it"


def _check_source(generation: Facts, each: Facts) -> Iterator[str]:
    """What q was is a round's own only where parts of a drafter differ in it, and it is judged by."""
    source = each["q_source"]
    if source is None:
        return
    if generation["coupling"] != "residual":
        yield f"q_source is {source}, but the coupling is {generation['coupling']}"
    if each["proposer"] is None or not each["proposed"]:
        yield f"q_source is {source}, but no part of a composed drafter proposed"


def _check_times(forest: Forest, span: Span) -> Iterator[Fault]:
    """Prefill and rounds inside the generation, and one after the other."""
    children = forest.children(span)
    yield from _check_inside(span, children)
    for before, after in pairwise(children):
        if before.end_unix_ns is not None and after.start_unix_ns < before.end_unix_ns:
            yield after, f"starts {say_ns(before.end_unix_ns - after.start_unix_ns)} before {before.name!r} ends"


def _check_inside(span: Span, children: Iterable[Span]) -> Iterator[Fault]:
    for child in children:
        if child.end_unix_ns is None:
            yield child, "has not ended"
        elif span.end_unix_ns is None:
            if span.error_type != ABORTED:  # one that goes on, or was left, is told as an aborted one
                yield span, "has not ended"
        elif not span.start_unix_ns <= child.start_unix_ns <= child.end_unix_ns <= span.end_unix_ns:
            yield child, f"is not inside {span.name!r}"


def _list_stages(generation: Facts, each: Facts) -> tuple[tuple[str, ...], ...]:
    """The sequences of stages that a round may have."""
    if generation["drafter"] is None:
        return (_ORDINARY_STAGES,)
    return (STAGES, _FOLLOWED_STAGES) if generation["controlled"] and not each["proposed"] else (STAGES,)


def _check_stages(forest: Forest, each: Facts, allowed: tuple[tuple[str, ...], ...]) -> Iterator[Fault]:
    stages = forest.children(each.span)
    yield from _check_inside(each.span, stages)
    for before, after in pairwise(stages):
        if before.end_unix_ns is not None and after.start_unix_ns < before.end_unix_ns:
            yield after, f"starts before {before.name!r} ends"
    wanted = [[ROUND_STAGES[stage] for stage in names] for names in allowed]
    found = [stage.name for stage in stages]
    if each["outcome"] in _JUDGED and found not in wanted:
        yield each.span, f"its stages are {', '.join(found) or 'none'}, wanted {', '.join(wanted[0])}"


def _check_prefill(span: Span, prefills: list[Span]) -> Iterator[Fault]:
    if len(prefills) != 1:
        yield span, f"has {len(prefills)} prefills"
    for each in prefills:
        if each.start_unix_ns > span.start_unix_ns:
            yield each, f"starts {say_ns(each.start_unix_ns - span.start_unix_ns)} after {span.name!r}"


def _check_aborted(generation: Facts, prefills: list[Span]) -> Iterator[Fault]:
    """A generation without a finish reason has nothing else of an end: its process died."""
    span = generation.span
    if span.error_type != ABORTED:
        yield span, f"has no finish reason, and no error.type {ABORTED!r}"
    if prefills:
        yield span, "has no finish reason, but a prefill that ended"
    if told := [field for field in _END if generation[field] is not None]:
        yield span, f"has no finish reason, but {', '.join(told)}"


def _check_end(generation: Facts, rounds: list[Facts]) -> Iterator[Fault]:
    span, committed = generation.span, sum(each["committed"] for each in rounds)
    if generation["n_rounds"] != len(rounds):
        yield span, f"says {generation['n_rounds']} rounds, and has {len(rounds)}"
    if generation["n_committed"] != committed:
        yield span, f"says {generation['n_committed']} tokens of output, and its rounds committed {committed}"
    if committed > generation["max_tokens"]:
        yield span, f"its rounds committed {committed} tokens, and {generation['max_tokens']} is the limit"
    if generation["finish_reason"] == "length" and committed < generation["max_tokens"]:
        yield span, f"ended at its limit of {generation['max_tokens']} tokens with {committed}"
    spent = sum(each.span.duration_ns or 0 for each in rounds)
    if generation["decode_ns"] != spent + generation["unaccounted_ns"]:
        whole = spent + generation["unaccounted_ns"]
        yield span, f"decoding took {generation['decode_ns']} ns, its rounds and what is unaccounted {whole} ns"
