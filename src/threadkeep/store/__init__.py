"""Long-term memory: stores of items, with search by filter, meaning and words."""
