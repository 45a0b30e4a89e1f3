"""Cold storage: archived threads and offloaded values, in a folder or on an object store."""
