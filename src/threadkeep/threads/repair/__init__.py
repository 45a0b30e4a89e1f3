"""Check a store, and move damaged rows to a quarantine file."""
