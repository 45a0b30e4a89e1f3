"""The one error that ends the demo with one clear line."""


class DemoError(Exception):
    """The demo cannot go on: the message says why and what to do."""
