"""Dashboards for Grafana over roundscope's metrics, as the JSON files of this folder.

`python -m dashboards.grafana` writes them from the descriptions here; a test holds the files to it.
"""
