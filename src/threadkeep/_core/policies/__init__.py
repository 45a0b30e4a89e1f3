"""Limits that programs give: what retention keeps, what is moved to the cold store."""
