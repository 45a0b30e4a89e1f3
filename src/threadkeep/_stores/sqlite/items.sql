-- Items of stores. An item's path is the labels of its namespace, each followed by a period. Its
-- number is for its vectors and words. Triggers remove vectors, also if a store without an index
-- deletes an item.
CREATE TABLE tk_store (counter INTEGER NOT NULL);

INSERT INTO tk_store VALUES (0);

CREATE TABLE tk_items (
    number INTEGER PRIMARY KEY, path TEXT NOT NULL, key TEXT NOT NULL,
    version INTEGER NOT NULL, created INTEGER NOT NULL, updated INTEGER NOT NULL,
    ttl INTEGER, expires INTEGER, pending TEXT, value NOT NULL, UNIQUE (path, key)
);

CREATE INDEX tk_items_expiring ON tk_items (expires) WHERE expires IS NOT NULL;

CREATE INDEX tk_items_pending ON tk_items (path, key) WHERE pending IS NOT NULL;

CREATE TABLE tk_item_vectors (item INTEGER NOT NULL, field TEXT NOT NULL, vector BLOB NOT NULL);

CREATE INDEX tk_item_vectors_of ON tk_item_vectors (item);

CREATE TRIGGER tk_items_replaced AFTER UPDATE OF version ON tk_items BEGIN
    DELETE FROM tk_item_vectors WHERE item = old.number;
END;

CREATE TRIGGER tk_items_deleted AFTER DELETE ON tk_items BEGIN
    DELETE FROM tk_item_vectors WHERE item = old.number;
END;

CREATE TABLE tk_item_versions (
    path TEXT NOT NULL, key TEXT NOT NULL, version INTEGER NOT NULL, updated INTEGER NOT NULL,
    replaced INTEGER NOT NULL, deleted INTEGER NOT NULL, patch BLOB NOT NULL,
    PRIMARY KEY (path, key, version)
) WITHOUT ROWID;
