"""The one error that ends a benchmark with one clear line."""


class BenchError(Exception):
    """The benchmark cannot go on: the message says why and what to do."""
