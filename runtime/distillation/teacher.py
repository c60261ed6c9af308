"""Teacher generation: the target writes on the training prompts, batch after batch, into a folder.

What is asked for settles the batches, so an interrupted run goes on where it stopped: whole batches are in the file,
what a crash left of another is taken out.
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import msgspec

from runtime.distillation.batches import BatchDecoder
from runtime.distillation.examples import EXAMPLES, SPLIT_RULE, Example, choose_split, read_examples
from runtime.distillation.identity import digest_parameters, digest_tokenizer
from runtime.distillation.labels import LABELS, LabelWriter, row_type
from runtime.distillation.manifest import MANIFEST, Manifest, hash_file, load_manifest, write_manifest
from runtime.distillation.prompts import TrainingPrompt, digest_prompts
from runtime.environment import describe_machine
from runtime.targets import MlxTarget
from runtime.workloads import encode
from telemetry.errors import UsageError

WINDOW = 16
"""Batches whose prompts are sorted by length together, so that little is padded and the classes stay mixed."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """How a target writes. UsageError for values that make no sense.

    tokens: of output, after which no batch is begun. max_tokens: of one answer. sampled: the share of prompts that get,
    beside the greedy answer, one drawn at `temperature`. batch: prompts a batch. seed: of the order and the draws. top:
    likeliest ids that are kept, with their probabilities, beside every token (`labels`); 0: none.
    """

    tokens: int = 100_000
    max_tokens: int = 128
    sampled: float = 0.25
    temperature: float = 0.7
    batch: int = 64
    seed: int = 0
    top: int = 12

    def __post_init__(self) -> None:
        if self.top < 0:
            raise UsageError(f"top is {self.top}; it must not be negative")
        for name in ("tokens", "max_tokens", "batch"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if not 0 <= self.sampled <= 1:
            raise UsageError(f"sampled is {self.sampled}; it must be from 0 to 1")
        if self.sampled and not 0.01 <= self.temperature <= 100:
            raise UsageError(f"temperature is {self.temperature}; it must be from 0.01 to 100")


class _Job(msgspec.Struct, frozen=True):
    prompt: TrainingPrompt
    ids: list[int]
    temperatures: list[float]


class Teacher:
    """Lets `target` write on `prompts` into `folder`; `source` and `python` are told in the manifest."""

    def __init__(
        self,
        target: MlxTarget,
        prompts: Sequence[TrainingPrompt],
        folder: Path,
        settings: Settings,
        *,
        source: str = "built-in",
        python: str | None = None,
        n_refused: int = 0,
    ) -> None:
        self._target, self._folder, self._settings = target, folder, settings
        if settings.top > target.vocab_size:
            raise UsageError(f"top is {settings.top}, and {target.name} has {target.vocab_size} ids: ask for fewer")
        self._batches = _plan_batches(target, prompts, settings)
        self._decoder = BatchDecoder(target)
        self._n_examples: Counter[str] = Counter()
        self._n_tokens: Counter[str] = Counter()
        self._manifest = Manifest(
            target=target.name,
            target_digest=digest_parameters(target),
            tokenizer_digest=digest_tokenizer(target),
            vocab_size=target.vocab_size,
            eos=sorted(target.eos),
            prompts=source,
            prompts_digest=digest_prompts(prompts),
            python=python,
            split_rule=SPLIT_RULE,
            settings=msgspec.to_builtins(settings),
            files={},
            n_examples={},
            n_tokens={},
            n_refused=n_refused,
            seconds=0.0,
            complete=False,
            environment=describe_machine(),
        )

    def run(self, *, resume: bool = False) -> Manifest:
        """Write until the settings' tokens are there or the prompts run out; returns the manifest in the folder.

        resume: go on with the data in the folder, if there is any. Raises UsageError if there is and `resume` is not
        set, or if it was asked for otherwise.
        """
        path = self._folder / EXAMPLES
        n_done = self._take_up(path) if resume and path.exists() else self._start(path)
        start = time.monotonic() - self._manifest.seconds
        for number, batch in enumerate(self._batches[n_done:], start=n_done):
            if self._n_tokens.total() >= self._settings.tokens:
                break
            examples, labels = self._write(batch, number)
            # Labels first: whoever takes up the folder goes by the examples, and cuts off labels that have none.
            if self._settings.top:
                with (self._folder / LABELS).open("ab") as file:
                    file.write(labels)
            with path.open("ab") as file:
                file.write(b"".join(msgspec.json.encode(example) + b"\n" for example in examples))
            self._count(examples)
            self._save(time.monotonic() - start, complete=False)
            self._report(number)
        self._save(self._manifest.seconds, complete=True)
        return self._manifest

    def _write(self, batch: Sequence[_Job], number: int) -> tuple[list[Example], bytes]:
        """The examples of a batch, and the rows of their labels."""
        import mlx.core as mx

        settings = self._settings
        key = mx.random.key(random.Random(f"{settings.seed} {number}").randrange(2**32))
        labels = LabelWriter(settings.top) if settings.top else None
        answers = self._decoder.write(
            [job.ids for job in batch], [job.temperatures for job in batch], settings.max_tokens, key, labels
        )
        examples = [
            Example(
                id=f"{job.prompt.item.id}/{i}",
                document=job.prompt.document,
                split=choose_split(job.prompt.document),
                class_=job.prompt.item.class_,
                prompt=job.ids,
                output=answer,
                temperature=temperature,
                ended=answer[-1] in self._target.eos,
            )
            for job, each in zip(batch, answers, strict=True)
            for i, (temperature, answer) in enumerate(zip(job.temperatures, each, strict=True))
        ]
        if labels is None:
            return examples, b""
        return examples, b"".join(
            labels.take((n, i)) for n, job in enumerate(batch) for i in range(len(job.temperatures))
        )

    def _start(self, path: Path) -> int:
        if path.exists() or (self._folder / MANIFEST).exists():
            raise UsageError(f"{self._folder} holds distilled data: go on with --resume, or give another folder")
        self._folder.mkdir(parents=True, exist_ok=True)
        for name in self._files:
            (self._folder / name).touch()
        self._save(0.0, complete=False)
        return 0

    def _take_up(self, path: Path) -> int:
        """Check that the folder's data are of this kind, cut off what is no whole batch; return how many are there."""
        found = load_manifest(self._folder, check=False)
        # How many tokens were asked for decides where to stop, not what is written until then.
        found.settings["tokens"] = self._manifest.settings["tokens"]
        found.settings.setdefault("top", 0)
        for name in ("target_digest", "tokenizer_digest", "prompts_digest", "settings"):
            if getattr(found, name) != getattr(self._manifest, name):
                raise UsageError(
                    f"{self._folder} was begun with another {name.replace('_', ' ')}: give the same options, or "
                    "another folder"
                )
        self._manifest = msgspec.structs.replace(self._manifest, seconds=found.seconds)
        examples = read_examples(self._folder)
        labels, row = self._folder / LABELS, row_type(self._settings.top).itemsize
        n_labels = labels.stat().st_size // row if self._settings.top and labels.exists() else 0
        n_done = size = 0
        for batch in self._batches:
            part = list(islice(examples, sum(len(job.temperatures) for job in batch)))
            if [example.id for example in part] != [
                f"{job.prompt.item.id}/{i}" for job in batch for i in range(len(job.temperatures))
            ]:
                break
            n_tokens = self._n_tokens.total() + sum(len(example.output) for example in part)
            if self._settings.top and n_tokens > n_labels:
                break
            size += sum(len(msgspec.json.encode(example)) + 1 for example in part)
            self._count(part)
            n_done += 1
        with path.open("r+b") as file:
            file.truncate(size)
        if self._settings.top:
            with labels.open("ab") as file:
                file.truncate(self._n_tokens.total() * row)
        return n_done

    @property
    def _files(self) -> list[str]:
        return [EXAMPLES, LABELS] if self._settings.top else [EXAMPLES]

    def _count(self, examples: Sequence[Example]) -> None:
        for example in examples:
            self._n_examples[example.split] += 1
            self._n_tokens[example.split] += len(example.output)

    def _save(self, seconds: float, *, complete: bool) -> None:
        self._manifest = msgspec.structs.replace(
            self._manifest,
            files={name: hash_file(self._folder / name) for name in self._files},
            n_examples=dict(self._n_examples),
            n_tokens=dict(self._n_tokens),
            seconds=round(seconds, 1),
            complete=complete,
        )
        write_manifest(self._folder, self._manifest)

    def _report(self, number: int) -> None:
        n_tokens, seconds = self._n_tokens.total(), self._manifest.seconds
        line = f"batch {number + 1}: {n_tokens} of {self._settings.tokens} tokens, {seconds:.0f} s"
        print(f"{line}, {n_tokens / max(seconds, 0.1):.0f} tokens/s", file=sys.stderr, flush=True)


def _plan_batches(target: MlxTarget, prompts: Sequence[TrainingPrompt], settings: Settings) -> list[list[_Job]]:
    """The prompts in batches: shuffled, then sorted by length within a window of batches."""
    jobs = list(_make_jobs(target, prompts, settings))
    rng = random.Random(f"order {settings.seed}")
    rng.shuffle(jobs)
    batches = []
    for start in range(0, len(jobs), WINDOW * settings.batch):
        window = sorted(jobs[start : start + WINDOW * settings.batch], key=lambda job: len(job.ids))
        cut = [window[first : first + settings.batch] for first in range(0, len(window), settings.batch)]
        rng.shuffle(cut)
        batches += cut
    return batches


def _make_jobs(target: MlxTarget, prompts: Sequence[TrainingPrompt], settings: Settings) -> Iterator[_Job]:
    for prompt in prompts:
        ids = encode(prompt.item, target)
        positions = target.max_positions
        if positions is not None and len(ids) + settings.max_tokens > positions:
            raise UsageError(
                f"prompt {prompt.item.id} has {len(ids)} tokens, and with {settings.max_tokens} of an answer they are "
                f"beyond the target's {positions} positions: shorten it, or take it out"
            )
        drawn = random.Random(f"sampled {settings.seed} {prompt.item.id}").random() < settings.sampled
        yield _Job(prompt, ids, [0.0, settings.temperature] if drawn else [0.0])
