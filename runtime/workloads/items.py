"""What a workload is made of, and how one of its prompts becomes token ids."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from telemetry.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a chat. `role`: system, user or assistant."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class WorkItem:
    """One prompt. `content` is a text, which is sent as one user message, or the messages of a chat.

    `id` is unique in its workload; verdicts are given by `class_`.
    """

    id: str
    class_: str
    content: str | tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Workload:
    """The prompts of a run, in order."""

    name: str
    items: tuple[WorkItem, ...]

    @property
    def classes(self) -> tuple[str, ...]:
        """The classes, in the order in which they first occur."""
        return tuple(dict.fromkeys(item.class_ for item in self.items))

    @property
    def digest(self) -> str:
        """SHA-256 (hex) over ids, classes and contents in order; the workload's name plays no part in it."""
        return hashlib.sha256(msgspec.json.encode(self.items)).hexdigest()


class ChatTarget(Protocol):
    """What `encode` needs of a target."""

    @property
    def has_chat_template(self) -> bool:
        """Whether `encode_chat` can render messages."""

    def encode(self, text: str) -> list[int]:
        """Token ids of `text` as it stands."""

    def encode_chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a chat, with the opening of the answer."""


def encode(item: WorkItem, target: ChatTarget) -> list[int]:
    """The ids of `item` for `target`: rendered by its chat template, or, without one, a text as it stands.

    Raises `Unsupported` for messages where the target has no chat template.
    """
    if target.has_chat_template:
        return target.encode_chat([{"role": m.role, "content": m.content} for m in _as_messages(item)])
    if isinstance(item.content, str):
        return target.encode(item.content)
    raise Unsupported(
        f"prompt {item.id} is made of messages, and the target has no chat template to render them: "
        'give the prompt as "text", or take a model with a chat template'
    )


def _as_messages(item: WorkItem) -> tuple[Message, ...]:
    return (Message("user", item.content),) if isinstance(item.content, str) else item.content
