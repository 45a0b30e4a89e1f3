"""Suites that hold threadkeep to LangGraph's behaviour, through public APIs alone."""
