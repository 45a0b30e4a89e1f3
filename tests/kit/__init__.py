"""Helpers of the tests: servers, stores, layers, damage, and savers driven by hand."""
