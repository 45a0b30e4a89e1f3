"""threadkeep: a LangGraph saver that stores what changed."""
