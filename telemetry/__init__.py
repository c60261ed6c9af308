"""Placeholder header; see the module."""
