"""Backends: stores of rows behind one protocol."""
