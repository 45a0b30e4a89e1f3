CREATE TABLE IF NOT EXISTS tk_threads (
    number BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
    thread VARBINARY(1024) NOT NULL UNIQUE,
    tip BIGINT NOT NULL,             -- of the last commit
    heap BIGINT,                     -- of its segments; NULL: its own number
    state VARBINARY(16),             -- NULL: the thread is not in the registry
    created_at BIGINT,               -- microseconds since 1970, as all times
    updated_at BIGINT,
    size BIGINT NOT NULL,
    status VARBINARY(16),            -- of its head; NULL: done
    failed_node VARBINARY(1024),
    holder VARBINARY(1024),          -- of its lease
    lease_until BIGINT,
    pinned BOOLEAN NOT NULL,
    ttl BIGINT,
    origin VARBINARY(1024),
    record LONGBLOB NOT NULL,        -- the whole head; the columns are for searches
    KEY by_heap (heap), KEY by_update (updated_at),
    KEY by_status (status, updated_at), KEY by_lease (lease_until)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS tk_labels (
    number BIGINT NOT NULL,
    prefix VARBINARY(2500) NOT NULL,
    label LONGBLOB NOT NULL,         -- JSON
    PRIMARY KEY (number, prefix), KEY by_label (label(255))
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS tk_checkpoints (
    number BIGINT NOT NULL,
    ns VARBINARY(1024) NOT NULL,
    id VARBINARY(1024) NOT NULL,
    parent VARBINARY(1024),
    flags BIGINT NOT NULL,           -- 1 free, 2 nested, 4 continues, 8 hidden
    key_log BIGINT NOT NULL,
    key_pos BIGINT NOT NULL,
    metadata LONGTEXT CHARACTER SET utf8mb4 NOT NULL, -- JSON
    record LONGBLOB NOT NULL,        -- the rest
    PRIMARY KEY (number, ns, id), KEY by_parent (number, ns, parent)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS tk_writes (
    number BIGINT NOT NULL,
    ns VARBINARY(1024) NOT NULL,
    checkpoint VARBINARY(1024) NOT NULL,
    seq BIGINT NOT NULL,
    run BIGINT NOT NULL,
    record LONGBLOB NOT NULL,
    PRIMARY KEY (number, ns, checkpoint, seq)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS tk_segments (
    heap BIGINT NOT NULL,            -- see tk_threads.heap
    log BIGINT NOT NULL,
    start BIGINT NOT NULL,
    stop BIGINT NOT NULL,            -- after the last position
    data LONGBLOB NOT NULL,
    PRIMARY KEY (heap, log, stop)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS tk_items (
    path VARBINARY(1024) NOT NULL,   -- the labels of the namespace, each followed by a period
    name VARBINARY(1024) NOT NULL,
    version BIGINT NOT NULL,
    created BIGINT NOT NULL,
    updated BIGINT NOT NULL,
    ttl BIGINT,
    expires BIGINT,
    pending LONGBLOB,                -- the fields to embed later
    dims BIGINT,                     -- of the vectors
    vectors LONGBLOB,
    words LONGBLOB,
    is_json BOOLEAN NOT NULL,
    value LONGBLOB NOT NULL,
    PRIMARY KEY (path, name), KEY by_expiry (expires)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS tk_item_versions (
    path VARBINARY(1024) NOT NULL,
    name VARBINARY(1024) NOT NULL,
    version BIGINT NOT NULL,
    updated BIGINT NOT NULL,
    replaced BIGINT NOT NULL,
    deleted BOOLEAN NOT NULL,
    patch LONGBLOB NOT NULL,
    PRIMARY KEY (path, name, version)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS tk_cache (
    id VARBINARY(32) NOT NULL PRIMARY KEY,
    used BIGINT NOT NULL,
    expires BIGINT,
    size BIGINT NOT NULL,
    owner VARBINARY(64),             -- of a lease, which has no value
    value LONGBLOB,
    KEY by_use (used, size), KEY by_expiry (expires)
) ENGINE = InnoDB;
CREATE TABLE IF NOT EXISTS tk_store (
    version INT NOT NULL PRIMARY KEY,
    identity VARBINARY(32) NOT NULL, -- random
    counter BIGINT NOT NULL          -- of the versions of items
) ENGINE = InnoDB
