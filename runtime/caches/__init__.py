"""Caches the loop can trust: what they hold is known token by token, and every way back is exact or refused."""

from __future__ import annotations

from runtime.caches.files import load_cache, save_cache
from runtime.caches.kept import KeptCache
from runtime.caches.kinds import CacheError, Kind, kind_of
from runtime.caches.undo import Undo, require_undo

__all__ = ["CacheError", "KeptCache", "Kind", "Undo", "kind_of", "load_cache", "require_undo", "save_cache"]
