"""The pure heart: what a checkpoint changes, and how that is stored and read again.

No I/O, no clock, no locks and no threads here (a test checks the imports): time, tokens
and the working set's lock are handed in.
"""
