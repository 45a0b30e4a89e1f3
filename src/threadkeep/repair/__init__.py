"""Check a store, repair it, and quarantine what is damaged."""
