"""Registry of threads: what is known of each, and how threads are found."""
