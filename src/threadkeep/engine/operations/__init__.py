"""Every operation that a saver offers, each a generator over the backend's reads and changes."""
