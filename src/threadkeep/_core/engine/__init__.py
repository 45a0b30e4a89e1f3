"""The pure part: what a checkpoint changes, and how that is stored and read again.

No I/O, no clock, no threads (a test checks the imports): time, tokens and locks are handed in.
"""
