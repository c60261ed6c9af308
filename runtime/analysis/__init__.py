"""Arithmetic that needs no model: operation counts of the NCM configurations, and the residual rule in fractions.

`artifact.json` holds what came out, bound to the configurations by their digests; `roundscope analyze --check` computes
it again and compares.
"""
