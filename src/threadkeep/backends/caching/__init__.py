"""What was read or stored a moment ago, kept at hand in front of a store.

Segments never change under a thread's generation, so that what is kept is always right:
whoever asks for them has just read from the store which ones, and under which generation.
"""

from threadkeep.backends.caching.admission import HotTier
from threadkeep.backends.caching.front import CacheLayer
from threadkeep.backends.caching.shelf import Cache

__all__ = ["Cache", "CacheLayer", "HotTier"]
