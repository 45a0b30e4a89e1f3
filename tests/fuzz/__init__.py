"""Hostile bytes for every decoder: `make fuzz`, and the same in short in `make test`.

`targets.py` has the decoders, `mutations.py` changes inputs, `worker.py` runs inputs in a process
with limits, `__main__.py` starts workers. `corpus/` has the inputs to begin with, a folder for each
target; `make_corpus.py` writes them.
"""
