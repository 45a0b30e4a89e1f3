"""Write-behind and a cache around any other LangGraph saver."""

from threadkeep.savers.wrap_langgraph.saver import Wrapped, wrap

__all__ = ["Wrapped", "wrap"]
