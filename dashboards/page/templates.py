"""The templates of this folder and of `dashboards/view`, filled in. What a name holds is text, never markup."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from dashboards.page.drawing import BACKGROUNDS
from telemetry import roundscope_version

if TYPE_CHECKING:
    import jinja2


def fill_in(name: str, **values: object) -> str:
    """The template `name`, a path below `dashboards`, with these values."""
    return _environment().get_template(name).render(**values)


@cache
def _environment() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: files("dashboards").joinpath(name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
    )
    light, dark = BACKGROUNDS
    environment.globals.update(light=light, dark=dark, version=roundscope_version())
    return environment
