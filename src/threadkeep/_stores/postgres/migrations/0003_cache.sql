-- Results of nodes: see threadkeep.cache.
--
-- An unlogged table costs no write-ahead log, and is empty after a crash of the server, as a cache
-- may be. Replicas do not have it.

CREATE UNLOGGED TABLE {schema}.cache (
    id bytea PRIMARY KEY,
    used bigint NOT NULL,
    expires bigint,
    size integer NOT NULL,
    owner bytea,
    value bytea
);
ALTER TABLE {schema}.cache ALTER COLUMN value SET STORAGE EXTERNAL;
COMMENT ON COLUMN {schema}.cache.id IS 'digests of the namespace, 8 bytes, and of the key, 16';
COMMENT ON COLUMN {schema}.cache.used IS 'microseconds since 1970';
COMMENT ON COLUMN {schema}.cache.expires IS 'of the value, or of the lease';
COMMENT ON COLUMN {schema}.cache.owner IS 'has a lease: is computing the value';
CREATE INDEX cache_used ON {schema}.cache (used) INCLUDE (size);
CREATE INDEX cache_expiring ON {schema}.cache (expires) WHERE expires IS NOT NULL;
