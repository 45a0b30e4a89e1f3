"""The suite `short`: many short threads, beside LangGraph's own savers, in rounds.

Every part runs the floor, LangGraph's saver and ours in turn, each in a fresh process
(`worker`, which `processes` starts) on a fresh store, and repeats that for some rounds.
With `--before CHECKOUT` the threadkeep of another checkout runs among them. Invariant: a
ratio compares figures of the same round, so that a machine that slows down slows both.
"""
