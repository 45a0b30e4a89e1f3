"""The pure part: computing, storing and reading a checkpoint's changes.

No I/O, clock or threads (a test checks the imports): time, tokens and locks are passed in.
"""
