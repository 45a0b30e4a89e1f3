"""The pages, one module each, with their routes."""
