"""The report as one HTML file that needs no network: what a run found, in sentences, charts and tables."""

from __future__ import annotations

from dashboards.page.document import render_page, write_page

__all__ = ["render_page", "write_page"]
