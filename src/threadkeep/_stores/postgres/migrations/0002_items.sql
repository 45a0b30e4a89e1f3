-- Items of stores (items.py). Times and lifetimes are microseconds, times since 1970.

CREATE SEQUENCE {schema}.store_counter;

-- A JSON value is stored twice: as its exact text, which jsonb does not keep (floats, the order of
-- keys), and as jsonb, for filters. Earlier versions are patches of the text.
CREATE TABLE {schema}.store_items (
    path text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    ttl bigint,
    expires_at bigint,
    pending text COLLATE "C",
    value jsonb,
    body bytea NOT NULL,
    words tsvector,
    PRIMARY KEY (path, key)
);
COMMENT ON COLUMN {schema}.store_items.path IS 'the labels of its namespace, each with a period behind it';
COMMENT ON COLUMN {schema}.store_items.pending IS 'the fields to embed later';
COMMENT ON COLUMN {schema}.store_items.body IS 'the value: UTF-8 of its JSON, or what the codec made of it';
COMMENT ON COLUMN {schema}.store_items.value IS 'the same for filters, where it is JSON';
CREATE INDEX store_items_expiring ON {schema}.store_items (expires_at)
    WHERE expires_at IS NOT NULL;
CREATE INDEX store_items_pending ON {schema}.store_items (path, key)
    WHERE pending IS NOT NULL;

CREATE TABLE {schema}.store_item_versions (
    path text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    version bigint NOT NULL,
    updated_at bigint NOT NULL,
    replaced_at bigint NOT NULL,
    deleted boolean NOT NULL,
    patch bytea NOT NULL,
    PRIMARY KEY (path, key, version)
);

ALTER TABLE {schema}.store_items ALTER COLUMN body SET STORAGE EXTERNAL;
ALTER TABLE {schema}.store_item_versions ALTER COLUMN patch SET STORAGE EXTERNAL;
