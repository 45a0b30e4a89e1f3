"""Measures: one module a question, each returning plain records of numbers."""
