"""How an operation runs: layers, groups of commits, for blocking and awaiting callers."""
