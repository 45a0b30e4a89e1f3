"""Savers, their options and their maintenance."""
