"""Retention: a policy, the choice of what it keeps, and the change that removes the rest."""
