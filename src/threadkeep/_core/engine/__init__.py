"""The pure part: computing, storing and reading what a checkpoint changes.

No I/O, clock or threads (a test checks the imports): time, tokens and locks are passed in.
"""
