"""What a run will do: which arms, on which prompts, in which order, and how long that may take.

Everything that can be wrong with the request is found here, before anything is timed or recorded.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from runtime.caches import require_undo
from runtime.drafters import make, parse
from runtime.experiment.lengths import AUTO, DraftLength
from runtime.generate import Options
from runtime.penalty import DEFAULT_CONTEXT, make_penalty
from runtime.protocols import Drafter, Target
from runtime.sampling import SEED_BITS, make_sampling
from runtime.speculative.controller import LONGEST
from runtime.speculative.relaxed import EXACT, parse_policy
from runtime.speculative.verification import name_rule
from runtime.targets import MlxTarget
from runtime.workloads import WorkItem, Workload, encode
from telemetry.errors import Unsupported, UsageError
from telemetry.fields import Coupling, Timing

ORDINARY = "ordinary"
MIN_PROMPTS = 5
"""Prompts that a verdict takes, in a class as over all (queries/intervals.sql)."""

ATTRIBUTED_PER_CLASS = 2
"""Prompts of each class that the attributed pass takes: enough for stage shares, which vary little between prompts."""


@dataclass(frozen=True)
class Request:
    """What the user asked for. drafters: specs as `runtime.drafters.make` takes them; draft_lengths: each m, or `auto`.

    temperature, top_k, top_p, min_p: as in `runtime.sampling.Sampling`; seed: of the order, and of what is drawn.
    repetition_penalty, repetition_context: as in `runtime.penalty.Penalty`. couplings: at a temperature, each that the
    exact arms are to have. policies: `exact`, and relaxed ones as `runtime.speculative.relaxed` takes them.
    """

    drafters: tuple[str, ...]
    draft_lengths: tuple[DraftLength, ...]
    draft_model: Target | str | None
    max_tokens: int
    repeats: int
    timing: Timing
    seed: int
    record_text: bool
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    repetition_context: int = DEFAULT_CONTEXT
    couplings: tuple[Coupling, ...] = ("residual",)
    policies: tuple[str, ...] = (EXACT,)

    def __post_init__(self) -> None:
        make_sampling(self.temperature, self.top_k, self.top_p, self.min_p)
        make_penalty(self.repetition_penalty, self.repetition_context)
        for policy in self.policies:
            parse_policy(policy)
        if "equality" in self.couplings and not (self.temperature and EXACT in self.policies):
            raise UsageError(
                "--coupling equality would have no effect: it takes a --temperature and the exact policy; give both, "
                "or leave it out"
            )
        for name, value in (("--max-tokens", self.max_tokens), ("--repeats", self.repeats)):
            if value < 1:
                raise UsageError(f"{name} is {value}; it must be 1 or more")
        for length in self.draft_lengths:
            if length != AUTO and length < 1:
                raise UsageError(
                    f"--draft-length is {length}; it must be 1 or more (drafter `none` is the loop without proposals)"
                )

    @property
    def forecasts(self) -> bool:
        """Whether other draft lengths are forecast: replayed over the one output that is right, at the price of
        forwards whose rows no processor takes one by one.
        """
        return self.timing == "fused" and not self.temperature and self.repetition_penalty == 1

    def sample(self, prompt_id: str, repeat: int) -> Options:
        """What every arm's generation of that prompt and repeat chooses from, and draws by if it draws."""
        penalty: Options = {
            "repetition_penalty": self.repetition_penalty,
            "repetition_context": self.repetition_context,
        }
        if not self.temperature:
            return penalty
        digest = sha256(f"{self.seed} {prompt_id} {repeat}".encode()).digest()
        return {
            **penalty,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
            "min_p": self.min_p,
            "seed": int.from_bytes(digest[:8], "big") >> 64 - SEED_BITS,
        }


@dataclass(frozen=True)
class Arm:
    """One way of decoding. `drafter` None is ordinary decoding; arms of one `spec` share a drafter, reset each time.

    draft_length: m, or most that the controller may choose. coupling, policy: as in `runtime.speculate`.
    """

    name: str
    drafter: Drafter | None
    draft_length: int
    spec: str = ""
    coupling: Coupling = "residual"
    policy: str = EXACT
    is_auto: bool = False

    @property
    def is_exact(self) -> bool:
        """Whether the output is, or is distributed as, ordinary decoding's."""
        return self.policy == EXACT

    @property
    def learns(self) -> bool:
        """Whether the drafter has to be told ordinary's output beforehand."""
        return hasattr(self.drafter, "learn")


@dataclass(frozen=True)
class PlannedPrompt:
    """A prompt of the workload, tokenised."""

    item: WorkItem
    ids: tuple[int, ...]


@dataclass(frozen=True)
class Block:
    """One repetition of one prompt, by all arms in this order."""

    prompt: PlannedPrompt
    repeat: int
    arms: tuple[Arm, ...]


@dataclass(frozen=True)
class Plan:
    """Everything a process does in a run, in its order.

    workload: the whole run's. prompts: those this process does, all of them unless the run is distributed. attributed:
    the blocks of the pass that measures stage shares.
    """

    request: Request
    workload: Workload
    prompts: tuple[PlannedPrompt, ...]
    arms: tuple[Arm, ...]
    blocks: tuple[Block, ...]
    attributed: tuple[Block, ...]

    @property
    def learns(self) -> bool:
        """Whether ordinary's output is needed beforehand, for all prompts."""
        return any(arm.learns for arm in self.arms)

    @property
    def too_few(self) -> dict[str, int]:
        """Classes with fewer prompts than a verdict takes, with how many they have."""
        counted = Counter(item.class_ for item in self.workload.items)
        return {name: n for name, n in counted.items() if n < MIN_PROMPTS}

    @property
    def n_generations(self) -> int:
        """How many generations this process makes, warm-up included."""
        warm_up = len(self.arms) + (len(self.prompts) if self.learns else 0)
        return warm_up + sum(len(block.arms) for block in (*self.blocks, *self.attributed))

    def estimate_seconds(self, seconds_per_prompt_token: float, seconds_per_step: float) -> float:
        """Time if every output went to its limit at the cost of ordinary decoding."""
        lengths = [len(block.prompt.ids) for block in (*self.blocks, *self.attributed) for _ in block.arms]
        if self.learns:
            lengths += [len(prompt.ids) for prompt in self.prompts]
        return sum(lengths) * seconds_per_prompt_token + len(lengths) * self.request.max_tokens * seconds_per_step


def make_plan(request: Request, workload: Workload, target: MlxTarget, items: Sequence[WorkItem] | None = None) -> Plan:
    """Plan a run of `workload` on `target`. items: those of its prompts that this process does; None: all.

    Raises UsageError for unknown drafters and the like, Unsupported for what the target or the drafter cannot do.
    """
    arms = _make_arms(request, target)
    prompts = _tokenise(workload.items if items is None else items, target)
    order = random.Random(request.seed)
    blocks = []
    for repeat in range(request.repeats):
        for prompt in order.sample(prompts, len(prompts)):
            blocks.append(Block(prompt, repeat, tuple(order.sample(arms, len(arms)))))
    attributed = [] if request.timing == "attributed" else _plan_attributed(prompts, arms)
    return Plan(request, workload, tuple(prompts), tuple(arms), tuple(blocks), tuple(attributed))


def _make_arms(request: Request, target: Target) -> list[Arm]:
    arms = [Arm(ORDINARY, None, 0)]
    if request.drafters:
        require_undo(target.make_cache(), "the target")
    for spec in dict.fromkeys(request.drafters):
        drafter = make_drafter(spec, target, request.draft_model)
        check = getattr(drafter, "check", None)
        if check is not None:
            check(target)
        lengths = (0,) if drafter.name == "none" else tuple(dict.fromkeys(request.draft_lengths))
        for length in lengths:
            name, most = f"{spec} m={length}", LONGEST if length == AUTO else length
            rules = _list_rules(request, most)
            arms += [Arm(name + ending, drafter, most, spec, *rule, length == AUTO) for ending, rule in rules]
    return arms


def _list_rules(request: Request, length: int) -> Iterator[tuple[str, tuple[Coupling, str]]]:
    """Every rule of acceptance that is asked for: what the arm's name ends in, then coupling and policy."""
    plain: tuple[Coupling, ...] = ("residual",)
    for policy in dict.fromkeys(request.policies if length else (EXACT,)):
        relaxed = parse_policy(policy)
        couplings = request.couplings if relaxed is None and length else plain
        for coupling in dict.fromkeys(couplings):
            yield name_rule(coupling, None if relaxed is None else relaxed.rule), (coupling, policy)


def make_drafter(spec: str, target: Target, draft_model: Target | str | None) -> Drafter:
    """The drafter of `spec`; `draft_model` (one that is loaded, or its name) goes to the drafter `assistant`."""
    if parse(spec).name == "assistant" and draft_model is not None:
        return make(spec, target, model=draft_model)
    return make(spec, target)


def _tokenise(items: Sequence[WorkItem], target: MlxTarget) -> list[PlannedPrompt]:
    prompts = [PlannedPrompt(item, tuple(encode(item, target))) for item in items]
    limit = target.max_positions
    too_long = [p for p in prompts if limit is not None and len(p.ids) >= limit]
    if too_long:
        first = too_long[0]
        raise Unsupported(
            f"prompt {first.item.id} has {len(first.ids)} tokens and the target has positions for {limit} "
            f"({len(too_long)} of {len(prompts)} prompts are too long): shorten them or leave them out"
        )
    empty = [p.item.id for p in prompts if not p.ids]
    if empty:
        raise UsageError(f"prompt {empty[0]} has no tokens")
    return prompts


def _plan_attributed(prompts: Sequence[PlannedPrompt], arms: Sequence[Arm]) -> list[Block]:
    speculative = tuple(arm for arm in arms if arm.drafter is not None)
    chosen: dict[str, list[PlannedPrompt]] = {}
    for prompt in prompts:
        chosen.setdefault(prompt.item.class_, []).append(prompt)
    if not speculative:
        return []
    return [Block(prompt, 0, speculative) for members in chosen.values() for prompt in members[:ATTRIBUTED_PER_CLASS]]
