"""Backends: stores of rows with one protocol."""
