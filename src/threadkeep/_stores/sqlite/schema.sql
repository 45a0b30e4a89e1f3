CREATE TABLE tk_threads (
    number INTEGER PRIMARY KEY,
    thread TEXT NOT NULL UNIQUE,
    generation INTEGER,
    deleted_at INTEGER,            -- microseconds since 1970; NULL: never
    tips BLOB,                     -- of the last commits, newest first, 8 bytes each
    life INTEGER,                  -- tip of the last deletion
    seq INTEGER,                   -- of the last write
    newest,                        -- no checkpoint of the root namespace has a greater id
    logs BLOB,                     -- the ends of its logs (see moves.py)
    state TEXT,                    -- NULL: the thread is not in the registry
    created_at INTEGER,
    updated_at INTEGER,
    size INTEGER,
    revision INTEGER,
    pinned INTEGER,
    ttl INTEGER,
    origin TEXT,
    origin_checkpoint,
    heap INTEGER,                  -- tk_heap_segments.thread of its segments; NULL: its own number
    status TEXT,                   -- of the newest checkpoint; NULL: done
    status_at,                     -- the checkpoint of a failure or a question
    failed_node TEXT,
    holder TEXT,                   -- name and token of the guard that holds it
    lease_until INTEGER,           -- the end of its lease; 1: due (see engine/leases.py)
    attempts INTEGER               -- deaths and failures since the last checkpoint
);
CREATE TABLE tk_checkpoints (
    thread INTEGER NOT NULL,       -- tk_threads.number, here and below
    ns TEXT NOT NULL,
    id NOT NULL,                   -- packed, as all ids
    parent,
    run INTEGER,
    seen INTEGER,
    flags INTEGER,                 -- 1 free, 2 nested, 4 continues, 8 hidden
    ts NOT NULL,                   -- microseconds since 1970, or text
    source TEXT,                   -- of plain metadata (see records.py)
    step INTEGER,
    metadata TEXT,                 -- JSON, where it is not plain
    exact BLOB,
    key_log INTEGER,
    key_pos INTEGER,
    manifest BLOB NOT NULL,
    PRIMARY KEY (thread, ns, id)
) WITHOUT ROWID;
CREATE TABLE tk_writes (
    thread INTEGER NOT NULL,
    ns TEXT NOT NULL,
    checkpoint NOT NULL,
    seq INTEGER NOT NULL,
    run INTEGER,
    seen INTEGER,
    task NOT NULL,
    path TEXT,
    body BLOB NOT NULL,
    PRIMARY KEY (thread, ns, checkpoint, seq)
) WITHOUT ROWID;
CREATE TABLE tk_heap_segments (
    thread INTEGER NOT NULL,       -- whose segments these are, see tk_threads.heap
    log INTEGER NOT NULL,
    start INTEGER NOT NULL,
    count INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (thread, log, start)
);
CREATE TABLE tk_labels (
    thread INTEGER NOT NULL,
    beginning TEXT NOT NULL,       -- see engine/thread_entry.py
    label TEXT NOT NULL,           -- JSON: a tag's text, or metadata's key and value
    PRIMARY KEY (thread, beginning)
) WITHOUT ROWID;
CREATE INDEX tk_labels_by_label ON tk_labels (label, thread);
CREATE INDEX tk_threads_by_update ON tk_threads (updated_at, thread)
    WHERE state <> 'deleted';
CREATE INDEX tk_threads_by_creation ON tk_threads (created_at, thread)
    WHERE state <> 'deleted';
CREATE INDEX tk_threads_by_state ON tk_threads (state, updated_at, thread);
CREATE INDEX tk_threads_by_status ON tk_threads (status, updated_at, thread)
    WHERE status IS NOT NULL;
CREATE INDEX tk_threads_by_lease ON tk_threads (lease_until) WHERE lease_until IS NOT NULL;
CREATE INDEX tk_threads_by_origin ON tk_threads (origin) WHERE origin IS NOT NULL;
CREATE INDEX tk_threads_by_heap ON tk_threads (heap) WHERE heap IS NOT NULL;
CREATE INDEX tk_threads_by_ttl ON tk_threads (ttl) WHERE ttl IS NOT NULL;
