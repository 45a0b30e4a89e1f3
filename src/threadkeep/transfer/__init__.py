"""Moving threads between stores, files and other people's savers.

What is moved, and in which steps, lives here; what a store does with it is the engine's.
Invariant: each way is a plan (see `plans`), written once, for blocking and awaiting callers.
"""
