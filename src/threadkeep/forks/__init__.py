"""Forks of threads: begin, merge back, show as a tree."""
