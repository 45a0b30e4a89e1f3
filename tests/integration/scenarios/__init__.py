"""Uses of graphs, as a table: name -> scenario (see `table`)."""

from . import chat, deltas, fanout, functional, nested, pauses, places, shapes, travel
from .table import SCENARIOS, Scenario

__all__ = [
    "SCENARIOS",
    "Scenario",
    "chat",
    "deltas",
    "fanout",
    "functional",
    "nested",
    "pauses",
    "places",
    "shapes",
    "travel",
]
