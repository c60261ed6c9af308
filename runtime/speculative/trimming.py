"""The stage `trim`: rejected positions leave the target's cache, and the round's tokens join the history.

Where only a snapshot leads back, the accepted positions of a round with a rejection have to be fed again. They go in
front of the next round's forward, which a few more positions hardly make dearer, instead of through one of their own;
until then the cache is behind by them.
"""

from __future__ import annotations

from runtime.device import barrier
from runtime.rounds import OpenRound
from runtime.session import Session
from telemetry.fields import Basis

MOST_BEHIND = 4
"""Positions that the target's cache may be behind by, or m where that is more. Further ones are fed at once: where most
is rejected the same positions would go through every forward again."""


def trim(session: Session, open_round: OpenRound, *, longest: int, attributed: bool) -> None:
    """Do the stage, whatever became of the round. longest: m. attributed: whether the stage ends with a barrier."""
    tokens = open_round.tokens
    open_round.skip()
    cache, undo, width = session.cache, session.cache.undo, open_round.width
    lacking = session.history[cache.length :]
    fed = [*lacking, *tokens][: len(lacking) - 1 + len(tokens)]
    excess = width - len(fed) if width else 0
    if excess and not open_round.proposed and not _can_take_back(session, excess, width):
        fed, excess = lacking, 0  # a cancelled single step that a window cannot give back; it fed committed tokens
    if excess and undo.way == "snapshot":
        open_round.trim_way = "snapshot"
        undo.back(width)
    elif excess:
        open_round.trim_way = "trim"
        undo.trim(excess)
    if width and open_round.trim_way != "snapshot":
        cache.hold(fed)
    session.settle()
    session.history.extend(tokens)
    basis = _catch_up_if_needed(session, open_round, longest, attributed)
    open_round.cache_length = cache.length
    open_round.mark("trim", basis)


def _can_take_back(session: Session, excess: int, width: int) -> bool:
    undo = session.cache.undo
    return undo.can_back(width) if undo.way == "snapshot" else undo.can_trim(excess)


def _catch_up_if_needed(session: Session, open_round: OpenRound, longest: int, attributed: bool) -> Basis:
    """Feed by now what the cache lacks where that cannot wait for the next round."""
    import mlx.core as mx

    behind = len(session.history) - 1 - session.cache.length
    late = behind > max(MOST_BEHIND, longest) or session.quantising is not None
    if behind <= 0 or not (session.finished or late):
        return "host"
    open_round.replayed += behind
    session.catch_up()
    states = [layer.state for layer in session.cache.layers]
    # The next round waits for it; after the last one nobody would, and T_round would leave it out.
    if attributed or session.finished:
        barrier(states)
        return "barrier"
    mx.async_eval(states)
    return "host_launch"
