-- The words of messages, for `threads.find`: a row's number is that of its thread (from bit 24) and
-- a count. Threads whose newest checkpoint is not indexed are listed with the last one that is.
-- Triggers keep the list, and remove words with the thread, whichever program changes it.
CREATE VIRTUAL TABLE threadkeep_words USING fts5(
    words, detail = none, tokenize = "ascii tokenchars '-_.'"{option}
);

CREATE TABLE threadkeep_unindexed (thread INTEGER PRIMARY KEY, reach);

INSERT INTO threadkeep_unindexed SELECT number, NULL FROM tk_threads WHERE newest IS NOT NULL;

CREATE TRIGGER threadkeep_words_begun AFTER INSERT ON tk_threads WHEN new.newest IS NOT NULL BEGIN
    INSERT OR REPLACE INTO threadkeep_unindexed VALUES (new.number, NULL);
END;

CREATE TRIGGER threadkeep_words_moved AFTER UPDATE OF newest, deleted_at ON tk_threads
WHEN new.newest IS NOT old.newest OR new.deleted_at IS NOT old.deleted_at BEGIN
    DELETE FROM threadkeep_words WHERE rowid IN (
        SELECT rowid FROM threadkeep_words WHERE new.deleted_at IS NOT old.deleted_at
            AND rowid >= old.number << 24 AND rowid < (old.number + 1) << 24);
    DELETE FROM threadkeep_unindexed WHERE thread = old.number AND new.newest IS NULL;
    INSERT OR IGNORE INTO threadkeep_unindexed
        SELECT new.number, iif(new.deleted_at IS old.deleted_at, old.newest, NULL)
        WHERE new.newest IS NOT NULL;
END;

CREATE TRIGGER threadkeep_words_removed AFTER DELETE ON tk_threads BEGIN
    DELETE FROM threadkeep_words WHERE rowid IN (
        SELECT rowid FROM threadkeep_words
        WHERE rowid >= old.number << 24 AND rowid < (old.number + 1) << 24);
    DELETE FROM threadkeep_unindexed WHERE thread = old.number;
END;
