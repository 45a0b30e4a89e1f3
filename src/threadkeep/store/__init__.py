"""An open store: its layers, the driver of operations, and workflows."""
