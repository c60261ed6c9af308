"""The dashboard about the telemetry itself: is anything lost, and who writes?"""

from __future__ import annotations

from dashboards.grafana.shown import JOB, Dashboard, Shown, total

TELEMETRY_HEALTH = Dashboard(
    "telemetry-health",
    "roundscope: telemetry health",
    "Whether what the other dashboards show is whole.",
    (
        (
            "What was lost",
            (
                Shown(
                    "Dropped since counting began",
                    "Records and lines of journals that could not be written or read, and spans not delivered. "
                    "Anything above 0 of sink journal is missing in the figures; spans can be exported again.",
                    "short",
                    [(total("telemetry_dropped_total", JOB, "sink, reason"), "{{sink}} {{reason}}")],
                    "stat",
                ),
                Shown(
                    "Dropped in the last hour",
                    "The same, as it grew.",
                    "short",
                    [
                        (
                            f"sum by (sink, reason) (increase(roundscope_telemetry_dropped_total{{{JOB}}}[1h]))",
                            "{{sink}} {{reason}}",
                        )
                    ],
                ),
            ),
        ),
        (
            "Who writes",
            (
                Shown(
                    "Journals",
                    "Journals that are followed. running: their process lives; ended: it has gone; unknown: another "
                    "machine's.",
                    "short",
                    [(total("journals", JOB, "writer"), "{{writer}}")],
                ),
                Shown(
                    "Runs that began",
                    "By kind, since counting began.",
                    "short",
                    [(total("runs_started_total", JOB, "kind"), "{{kind}}")],
                    "stat",
                ),
                Shown(
                    "Runs that ended",
                    "By outcome, since counting began.",
                    "short",
                    [(total("runs_total", JOB, "outcome"), "{{outcome}}")],
                    "stat",
                ),
                Shown(
                    "Counting program",
                    "The roundscope that counts, and the version of the records it knows.",
                    "none",
                    [(f"roundscope_build_info{{{JOB}}}", "{{version}}, records {{schema_version}}")],
                    "stat",
                ),
                Shown(
                    "Endpoint",
                    "1 while Prometheus can read it.",
                    "none",
                    [(f"up{{{JOB}}}", "{{instance}}")],
                ),
            ),
        ),
    ),
)
