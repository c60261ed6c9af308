"""Ratios measured side by side in one run. `python -m benchmarks [NAME ...]`; `make bench` runs them all."""
