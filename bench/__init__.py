"""threadkeep beside LangGraph's own savers, in one run on one machine: see `python -m bench -h`.

What is measured is in `measures/`, on what in `workloads`, with what in `savers`; each
saver works in a process of its own (`lanes`), and the savers take turns, so that a
machine that slows down slows down all of them. Invariant: nothing here is tuned to a
saver; every one drives the same graph over the same input.
"""
