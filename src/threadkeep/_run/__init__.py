"""Running operations: layers and groups of commits, for blocking and awaiting callers."""
