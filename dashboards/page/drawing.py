"""Charts as inline SVG: Vega-Altair describes them, vl-convert draws them without a browser or the network.

Text and lines take the page's own colour; the inks stand out from white and from the dark background alike (3:1 or
more). Every chart is as wide as the narrowest phone, so that its letters are never scaled down.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from telemetry.errors import Unsupported

if TYPE_CHECKING:
    import altair as alt

    from dashboards.report.rows import Row

WIDTH = 326
"""Pixels: 390 less the page's margins."""
INKS = ("#3b7dc4", "#c2660a", "#2f8f57", "#b4508c", "#7a6fd0", "#8a7a1f")
LONG = 20
"""Letters of a name that two columns of a legend have room for."""
SHAPES = ("circle", "square", "triangle-up", "diamond", "cross")
BACKGROUNDS = ("#ffffff", "#15181d")
"""The page's, light and dark."""
CURRENT = "currentColor"
_TAG = re.compile(r"<[^>]*>")
_NEEDLESS = re.compile(r' (?:xmlns(?::\w+)?|version|class|role|aria-\w+|pointer-events)="[^"]*"')


def require_library() -> None:
    """Unsupported, with the cure, where the drawing libraries are not installed."""
    try:
        import altair
        import jinja2
        import vl_convert
    except ImportError as error:
        raise Unsupported(
            f"the page needs {error.name or 'altair'} to draw its charts; install it: "
            "pip install 'roundscope[page]' (in a clone: pip install --editable '.[page]')"
        ) from error
    del altair, jinja2, vl_convert


def draw(chart: alt.Chart | alt.LayerChart | alt.FacetChart, title: str, height: int) -> str:
    """The chart as an SVG element of WIDTH pixels, `height` of them for the drawing itself, with its title."""
    import altair as alt
    import vl_convert

    # The browser's letters may be wider than those that the drawing was measured with.
    room = {"left": 16, "right": 8, "top": 5, "bottom": 5}
    fit = alt.AutoSizeParams(type="fit-x", contains="padding")
    fitted = chart.properties(width=WIDTH, height=height, autosize=fit, padding=room)
    svg = vl_convert.vegalite_to_svg(_dress(fitted).to_dict())
    # To a reader of the page a chart is one image with a title; the table below it says the rest.
    first, rest = _TAG.sub(lambda tag: _NEEDLESS.sub("", tag[0]), svg).split(">", 1)
    return f'{first} role="img" aria-label="{escape(title)}"><title>{escape(title)}</title>{rest}'


def _dress(chart: Any) -> Any:
    line = {"labelColor": CURRENT, "titleColor": CURRENT, "labelFontSize": 11, "titleFontSize": 12}
    axis = {"gridColor": CURRENT, "gridOpacity": 0.15, "domainColor": CURRENT, "tickColor": CURRENT, "labelLimit": 110}
    return (
        chart.configure(background="transparent", font="sans-serif", aria=False)
        .configure_axis(**line, **axis, titleFontWeight="normal", labelOverlap=True)
        .configure_legend(
            **line, orient="bottom", columns=2, columnPadding=24, labelLimit=130, title=None, symbolOpacity=1
        )
        .configure_view(stroke=None)
    )


def data_of(rows: Sequence[Row], fields: Sequence[str]) -> alt.InlineData:
    """These fields of the rows, written into the chart."""
    import altair as alt

    return alt.InlineData(values=[{name: row[name] for name in fields} for row in rows])


def color_by(field: str, domain: Sequence[str]) -> alt.Color:
    """A colour for each name, in their order."""
    import altair as alt

    inks = [INKS[i % len(INKS)] for i in range(len(domain))]
    return alt.Color(f"{field}:N", legend=_fit_legend(domain)).scale(domain=list(domain), range=inks)


def shape_by(field: str, domain: Sequence[str]) -> alt.Shape:
    """A shape for each name: 30 names differ in colour or shape."""
    import altair as alt

    shapes = [SHAPES[i % len(SHAPES)] for i in range(len(domain))]
    return alt.Shape(f"{field}:N", legend=_fit_legend(domain)).scale(domain=list(domain), range=shapes)


def name_arms(arms: Sequence[str]) -> alt.Y:
    """Arms from top to bottom, with room for what tells couplings and policies apart."""
    import altair as alt

    return alt.Y("arm:N", sort=list(arms), title=None, axis=alt.Axis(labelLimit=WIDTH // 2))


def _fit_legend(names: Sequence[str]) -> alt.Legend:
    """One column where a name is too long for two: that an arm is not exact must not be cut off."""
    import altair as alt

    is_long = max(map(len, map(str, names)), default=0) > LONG
    return alt.Legend(columns=1, labelLimit=WIDTH - 60) if is_long else alt.Legend()


def unique(rows: Sequence[Row], field: str) -> list[Any]:
    """The different values of a field, in their order."""
    return list(dict.fromkeys(row[field] for row in rows))
