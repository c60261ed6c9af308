"""Drafters by name: the built-in ones, and others that installed packages offer.

A package offers one by an entry point of the group `roundscope.drafters`:

    [project.entry-points."roundscope.drafters"]
    mine = "my_package.drafters:make_mine"

whose object is called as `make_mine(target, **options)` and returns a `runtime.protocols.Drafter`. Its keyword
parameters are the options that a spec may set (`mine:depth=3`), converted as they are annotated: int, float or str.
A built-in name cannot be taken over.

`A+B` is a drafter as well: A's proposal where it has one, else B's (`runtime.drafters.composed`); so is `A+B+C`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from runtime.drafters.assistant import Assistant
from runtime.drafters.known import NoDrafter, Oracle, Wrong
from runtime.drafters.prompt_lookup import DEFAULT_MAX_N, DEFAULT_MIN_N, PromptLookup
from runtime.drafters.requantised import Requantised
from runtime.drafters.suffix import Suffix
from runtime.protocols import Drafter, Target
from telemetry.errors import RoundscopeError, UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

GROUP = "roundscope.drafters"
Factory = Callable[..., Drafter]
Outputs = Mapping[tuple[int, ...], Sequence[int]]

ASSISTANT_NEEDS_MODEL = (
    "the drafter assistant needs a draft model with the target's vocabulary: "
    "give --draft-model M, or model=M from Python"
)

_PARSERS: dict[str, Callable[[str], Any]] = {"int": int, "float": float}
_REQUIRED = ("name", "length", "prefix_consistent", "reset", "propose", "commit", "rewind")


def _make_none(target: Target) -> Drafter:
    return NoDrafter()


def _make_oracle(target: Target, *, outputs: Outputs | None = None) -> Drafter:
    return Oracle(outputs)


def _make_wrong(target: Target, *, outputs: Outputs | None = None) -> Drafter:
    return Wrong(target.vocab_size, outputs)


def _make_prompt_lookup(target: Target, *, max_n: int = DEFAULT_MAX_N, min_n: int = DEFAULT_MIN_N) -> Drafter:
    return PromptLookup(max_n, min_n)


def _make_suffix(target: Target, *, min_n: int = 2) -> Drafter:
    return Suffix(min_n)


def _make_self_q4(target: Target) -> Drafter:
    return Requantised(target, 4)


def _make_self_q3(target: Target) -> Drafter:
    return Requantised(target, 3)


def _make_assistant(target: Target, *, model: Target | Path | str | None = None) -> Drafter:
    if model is None:
        raise UsageError(ASSISTANT_NEEDS_MODEL)
    if isinstance(model, (str, Path)):
        from runtime.targets import load_target

        model = load_target(model)
    return Assistant(model)


def _make_ar(target: Target, *, checkpoint: Path | str | None = None) -> Drafter:
    from runtime.drafters.learned.checkpoints import find_checkpoint, read_checkpoint

    found = read_checkpoint(find_checkpoint("ar", checkpoint), "ar")
    found.check(target)
    from runtime.drafters.learned.drafters import LearnedAssistant

    return LearnedAssistant(found.network, found.tokens, found)


def _make_blocks(target: Target, *, checkpoint: Path | str | None = None) -> Drafter:
    from runtime.drafters.learned.checkpoints import find_checkpoint, read_checkpoint

    found = read_checkpoint(find_checkpoint("blocks", checkpoint), "blocks")
    found.check(target)
    from runtime.drafters.learned.drafters import Blocks

    return Blocks(found.network, found.tokens, found)


def _make_ncm(
    target: Target,
    *,
    checkpoint: Path | str | None = None,
    decoder: str = "context",
    latent_temperature: float | None = None,
    point: int = 0,
) -> Drafter:
    from runtime.backend import prepare

    prepare()
    from runtime.drafters.ncm import NcmDrafter, NcmSampler
    from runtime.ncm.text.checkpoints import find_text_checkpoint, read_text_model
    from runtime.ncm.text.model import parse_decoder

    way = parse_decoder(decoder)
    found = read_text_model(find_text_checkpoint(checkpoint))
    if point:
        drafter: NcmDrafter = NcmDrafter(found.model, way, trained_for=found.trained_for)
    else:
        drafter = NcmSampler(found.model, way, latent_temperature, trained_for=found.trained_for)
    drafter.check(target)
    return drafter


_BUILT_IN: dict[str, Factory] = {
    "none": _make_none,
    "oracle": _make_oracle,
    "wrong": _make_wrong,
    "prompt-lookup": _make_prompt_lookup,
    "suffix": _make_suffix,
    "assistant": _make_assistant,
    "self-q4": _make_self_q4,
    "self-q3": _make_self_q3,
    "ar": _make_ar,
    "blocks": _make_blocks,
    "ncm": _make_ncm,
}


@dataclass(frozen=True, slots=True)
class Spec:
    """A drafter's name and the options that its text sets, converted and known to exist; of `A+B`, those of its parts
    are in the factory.
    """

    name: str
    options: dict[str, Any]
    factory: Factory


def names() -> list[str]:
    """All names that `make` takes: the built-in drafters, then those of installed packages."""
    return [*_BUILT_IN, *sorted(point.name for point in _find_plugins() if point.name not in _BUILT_IN)]


def parse(spec: str) -> Spec:
    """Read `name` or `name:key=value,key=value`, or two of them joined by `+`, without needing a target.

    Raises UsageError, listing what there is, for an unknown name, an unknown option or a value of another type, and
    RoundscopeError for an entry point that cannot be loaded.
    """
    first, plus, second = _split(spec)
    if plus:
        return _parse_composed(first, second)
    name, colon, text = spec.partition(":")
    factory = _find_factory(name)
    allowed = _list_options(factory)
    given = {}
    for part in text.split(",") if colon else ():
        key, equals, value = part.partition("=")
        if not equals or not key:
            raise UsageError(f"drafter {spec!r}: {part!r} is not of the form key=value")
        given[key] = _convert(name, key, value, allowed)
    return Spec(name, given, factory)


def make(spec: str, target: Target, **options: Any) -> Drafter:
    """The drafter that `spec` names, for `target`; `options` from Python go before those in the text.

    Raises what `parse` raises, and what the drafter itself refuses.
    """
    parsed = parse(spec)
    allowed = _list_options(parsed.factory)
    for key in options:
        _require_option(parsed.name, key, allowed)
    drafter = parsed.factory(target, **{**parsed.options, **options})
    missing = [member for member in _REQUIRED if not hasattr(drafter, member)]
    if missing:
        raise RoundscopeError(
            f"what makes the drafter {parsed.name} returned a {type(drafter).__name__} without {', '.join(missing)}"
        )
    return drafter


def _split(spec: str) -> tuple[str, str, str]:
    """The two specs that a `+` joins, or `spec` and nothing: a `+` before no drafter's name is one of a file's name."""
    for found in re.finditer(r"\+([\w-]+)(?=[:+]|$)", spec):
        if found[1] in names():
            return spec[: found.start()], "+", spec[found.start() + 1 :]
    return spec, "", ""


def _parse_composed(first: str, second: str) -> Spec:
    from runtime.drafters.composed import Composed

    parts = parse(first), parse(second)

    def make_composed(target: Target) -> Drafter:
        return Composed(*(part.factory(target, **part.options) for part in parts))

    return Spec("+".join(part.name for part in parts), {}, make_composed)


def _find_plugins() -> list[EntryPoint]:
    from importlib.metadata import entry_points

    return list(entry_points(group=GROUP))


def _find_factory(name: str) -> Factory:
    if name in _BUILT_IN:
        return _BUILT_IN[name]
    for point in _find_plugins():
        if point.name == name:
            return _load(point)
    raise UsageError(f"there is no drafter {name!r}: take one of {', '.join(names())}")


def _load(point: EntryPoint) -> Factory:
    try:
        factory = point.load()
    except Exception as error:
        fault = f"{type(error).__name__}: {error}"
    else:
        if callable(factory):
            return cast(Factory, factory)
        fault = f"an object of type {type(factory).__name__} cannot be called"
    owner = point.dist.name if point.dist else "an installed package"
    raise RoundscopeError(
        f"the drafter {point.name} ({point.value} of {owner}) cannot be loaded: {fault}. Repair or remove that package"
    )


def _list_options(factory: Factory) -> dict[str, str] | None:
    """Each option of `factory` with the text of its annotation, None if it takes whatever is given."""
    parameters = list(inspect.signature(factory).parameters.values())[1:]
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name: _name_type(p.annotation) for p in parameters}


def _name_type(annotation: Any) -> str:
    if annotation is inspect.Parameter.empty:
        return "str"
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))


def _require_option(name: str, key: str, allowed: Mapping[str, str] | None) -> None:
    if allowed is None or key in allowed:
        return
    known = f"its options are {', '.join(allowed)}" if allowed else "it has none"
    raise UsageError(f"drafter {name} has no option {key!r}: {known}")


def _convert(name: str, key: str, value: str, allowed: Mapping[str, str] | None) -> Any:
    _require_option(name, key, allowed)
    kind = "str" if allowed is None else allowed[key]
    alternatives = [part.strip() for part in kind.split("|")]
    if not {"str", "int", "float"} & set(alternatives):
        raise UsageError(f"drafter {name}: option {key} can only be given from Python, not as text")
    parse_value = next((_PARSERS[part] for part in alternatives if part in _PARSERS), str)
    try:
        return parse_value(value)
    except ValueError:
        raise UsageError(f"drafter {name}: option {key} is {value!r}, which is no {kind}") from None
