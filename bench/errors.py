"""The one error that ends a benchmark with one clear line."""


class BenchError(Exception):
    """The benchmark cannot continue: the message has the reason and the remedy."""
