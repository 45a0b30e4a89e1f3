"""What a saver gives, as people read it: plain records, for whatever draws them.

Pure functions of values and of LangGraph's `CheckpointTuple`; nothing here reads a store or
draws. Invariant: a value of any type has a readable form, and none is changed.
"""
