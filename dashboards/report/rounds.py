"""A generation in plain lines, a round or a level each: what was proposed, what became of it, how long it took."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dashboards.report.generations import Recorded
from dashboards.report.rows import Row
from dashboards.report.sentences import SOURCES, say_count, say_duration
from telemetry.fields import COMMITS_ONE_MORE

ACCEPTED, REJECTED, CUT, OWN = "=", "x", ".", "+"
"""What stands for a token that was not recorded."""
_SHAPES = (
    f"tokens were not recorded: {ACCEPTED} accepted, {REJECTED} rejected, {CUT} never judged, {OWN} the target's own"
)
_MAX_PADDED = 60


def show_generation(recorded: Recorded) -> Iterator[str]:
    """The lines: what the generation is, how to read the others, and one for each round or level."""
    yield _describe(recorded)
    if not recorded.has_rounds:
        yield from (_show_level(row) for row in recorded.steps)
        return
    yield _explain_times(recorded)
    if any(row["tokens"] is None for row in recorded.steps):
        yield _SHAPES
    tokens = [show_tokens(row) for row in recorded.steps]
    width = max((len(text) for text in tokens if len(text) <= _MAX_PADDED), default=0)
    digits = len(str(len(tokens)))
    for row, text in zip(recorded.steps, tokens, strict=True):
        parts = (f"{text:<{width}}", _say_outcome(row), _say_times(row), say_choice(row))
        yield f"{row['index']:>{digits}}  {'   '.join(filter(None, parts))}"


def name_positions(row: Row) -> list[str]:
    """What became of each proposed token of a round: accepted, rejected or cut."""
    n_rejected = row["proposed"] - row["accepted"] - row["cut"]
    return ["accepted"] * row["accepted"] + ["rejected"] * n_rejected + ["cut"] * row["cut"]


def show_tokens(row: Row) -> str:
    """`proposed -> committed` as token ids, or as shapes where none were recorded."""
    if row["tokens"] is None:
        signs = {"accepted": ACCEPTED, "rejected": REJECTED, "cut": CUT}
        proposed = [signs[name] for name in name_positions(row)]
        committed = [ACCEPTED] * row["accepted"] + [OWN] * (row["outcome"] in COMMITS_ONE_MORE)
    else:
        proposed, committed = ([str(token) for token in row[name] or ()] for name in ("proposal", "tokens"))
    return " ".join([*proposed, "->", *committed])


def say_choice(row: Row) -> str | None:
    """Which m a controller chose for a round, why, and the time a token that it expected; None: there was none."""
    if row["reason"] is None:
        return None
    said = f"{row['reason']}: m={row['requested']}"
    if row["expected_ns"] is None:
        return said
    said += f", expected {say_duration(row['expected_ns'] / 1e9)} a token"
    step = row["expected_step_ns"]
    return said if step is None else f"{said}, {say_duration(step / 1e9)} by a step"


def _describe(recorded: Recorded) -> str:
    row = recorded.row
    name = row["model"] if recorded.has_rounds else row["config"]
    where = f"run {row['run_id']}" if row["run_id"] else "outside a run"
    facts = [f"{row['arm']} of {name}", where, row["timing"], *(["warm-up"] if row["warm_up"] else [])]
    if recorded.has_rounds:
        facts += [] if row["temperature"] is None else [f"temperature {row['temperature']:g}"]
        facts += _say_sources(recorded)
        prompt = " of class ".join(filter(None, (row["prompt_id"], row["class"])))
        facts += [f"prompt {prompt}"] if prompt else []
        facts.append(say_count(len(recorded.steps), "round"))
        facts.append(say_count(sum(one["committed"] for one in recorded.steps), "token"))
    else:
        facts += [say_count(row["batch"], "sample"), say_count(len(recorded.steps), "level")]
    facts.append(row["finish_reason"])
    if row["total_ns"] is not None:
        facts.append(say_duration(row["total_ns"] / 1e9))
    return f"generation {row['generation_id']}: {', '.join(facts)}"


def _say_sources(recorded: Recorded) -> list[str]:
    """What q was: of a composed drafter, what it was in the rounds in which its parts proposed."""
    found = dict.fromkeys(filter(None, (row["q_source"] for row in recorded.steps))) or {recorded.row["q_source"]: None}
    said = " or ".join(SOURCES[source] for source in found if source is not None)
    return [f"q: {said}"] if said else []


def _explain_times(recorded: Recorded) -> str:
    draft = _list_bases(recorded.steps, ("draft",))
    verify = _list_bases(recorded.steps, ("verify", "synchronize"))
    return f"draft was timed by {draft}; verify is the forward and reading its tokens, timed by {verify}"


def _list_bases(rows: Sequence[Row], stages: Sequence[str]) -> str:
    found = {basis: None for row in rows for stage in stages if (basis := row[f"{stage}_basis"]) is not None}
    return " + ".join(found) or "nothing"


def _say_outcome(row: Row) -> str:
    who = row["proposer"]
    if row["proposed"]:
        said = f"accepted {row['accepted']}/{row['proposed']}" + (f" from {who}" if who else "")
    else:
        said = f"{who} had nothing" if who else "nothing proposed"
    if row["overlap_positions"]:
        said += f", 1 - TV {row['overlap'] / row['overlap_positions']:.2f}"
    if row["outcome"] in COMMITS_ONE_MORE:
        return said
    return f"{said}   {row['outcome']}" + (f" ({row['stop_kind']})" if row["stop_kind"] else "")


def _say_times(row: Row) -> str:
    verify = f"verify {say_duration((row['verify_ns'] + row['synchronize_ns']) / 1e9)}"
    return verify if row["draft_basis"] is None else f"draft {say_duration(row['draft_ns'] / 1e9)}  {verify}"


def _show_level(row: Row) -> str:
    said = (
        f"{row['level']}  {say_count(row['batch'], 'sample')}   prefix {row['prefix_processed']} processed, "
        f"{row['prefix_reused']} reused   level {row['level_processed']}   pairs {row['pairs_computed']}   "
        f"forward {say_duration(row['forward_ns'] / 1e9)}  level {say_duration(row['t_level_ns'] / 1e9)}"
    )
    return f"{said}   {row['n_exited']} left" if row["n_exited"] else said
