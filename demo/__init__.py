"""An agent that reads a folder, on threadkeep: killed, resumed, forked and measured.

`python -m demo` tells the story (`story`) and shows it (`screen`); the agent itself runs
in a process of its own (`worker`), so that killing it is real. Invariant: the agent is
an ordinary LangGraph program; the saver is the only thing that differs between runs.
"""
