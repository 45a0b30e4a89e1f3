"""Partial output of answers that are being streamed: its rows, and how it is saved."""
