-- A message's key is the number of its thread (from bit 40), its position (28 bits) and a lane
-- (12 bits): keys are in the order of hits. Records of one lane do not overlap. Those of branches
-- do, and use higher lanes. An edit is a record of one message, with its position in its name. A
-- record without messages is in a lane that messages never have.
-- Triggers remove a thread's messages with the saver's thread, whichever program deletes it.
CREATE TABLE threadkeep_memory_threads (number INTEGER PRIMARY KEY, thread TEXT NOT NULL UNIQUE);

CREATE TABLE threadkeep_memory_records (
    thread INTEGER NOT NULL, lane INTEGER NOT NULL, start INTEGER NOT NULL, record TEXT NOT NULL,
    PRIMARY KEY (thread, lane, start), UNIQUE (thread, record)
) WITHOUT ROWID;

CREATE TABLE threadkeep_memory_messages (key INTEGER PRIMARY KEY, id TEXT);

CREATE INDEX threadkeep_memory_ids ON threadkeep_memory_messages (id);

CREATE VIRTUAL TABLE threadkeep_memory_text USING fts5(
    words, detail = none, tokenize = "ascii tokenchars '-_.'"{option}
);

CREATE TRIGGER threadkeep_memory_removed AFTER DELETE ON threadkeep_memory_threads BEGIN
    DELETE FROM threadkeep_memory_text WHERE rowid IN (
        SELECT key FROM threadkeep_memory_messages
        WHERE key >= old.number << 40 AND key < (old.number + 1) << 40);
    DELETE FROM threadkeep_memory_messages
        WHERE key >= old.number << 40 AND key < (old.number + 1) << 40;
    DELETE FROM threadkeep_memory_records WHERE thread = old.number;
END;

CREATE TRIGGER threadkeep_memory_deleted AFTER UPDATE OF deleted_at ON tk_threads BEGIN
    DELETE FROM threadkeep_memory_threads WHERE thread = old.thread;
END;

CREATE TRIGGER threadkeep_memory_replaced AFTER DELETE ON tk_threads BEGIN
    DELETE FROM threadkeep_memory_threads WHERE thread = old.thread;
END;
