"""What was read or stored a moment ago, kept at hand in front of a store.

Segments never change under a thread's generation, so that what is kept is always right:
whoever asks for them has just read from the store which ones, and under which generation.
"""

from threadkeep.cache.admission import HotTier
from threadkeep.cache.layer import CacheLayer
from threadkeep.cache.lru import Cache

__all__ = ["Cache", "CacheLayer", "HotTier"]
