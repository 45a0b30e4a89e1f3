"""The engine, the codec and what validates: no I/O, no clock, no locks of its own."""
