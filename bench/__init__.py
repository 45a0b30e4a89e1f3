"""threadkeep beside LangGraph's own savers, in one run on one machine: see `python -m bench -h`.

`measures/` has the measurements, `workloads` the data, `savers` the savers. Each saver works
in its own process (`lanes`), and the savers take turns, so that a slow phase of the machine
affects all of them. Invariant: nothing here is tuned to a saver;
all drive the same graph over the same input.
"""
