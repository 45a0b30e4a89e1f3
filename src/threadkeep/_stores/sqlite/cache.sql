-- Cached results of nodes, and leases.
CREATE TABLE IF NOT EXISTS tk_cache (
    id BLOB PRIMARY KEY, used INTEGER NOT NULL, expires INTEGER, size INTEGER NOT NULL,
    owner BLOB, value BLOB);

CREATE INDEX IF NOT EXISTS tk_cache_used ON tk_cache (used, size);

CREATE INDEX IF NOT EXISTS tk_cache_expiring ON tk_cache (expires)
    WHERE expires IS NOT NULL;
