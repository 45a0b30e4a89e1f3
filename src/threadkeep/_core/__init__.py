"""The engine, the codec and validation: no I/O, no clock, no locks of its own."""
