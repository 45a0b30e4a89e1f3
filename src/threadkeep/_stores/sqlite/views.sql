-- Views of a threadkeep database, to read in any SQLite tool.
CREATE VIEW IF NOT EXISTS threads AS SELECT
    t.thread AS thread_id,
    (SELECT count(*) FROM tk_checkpoints c WHERE c.thread = t.number) AS checkpoints,
    (SELECT count(*) FROM tk_writes w WHERE w.thread = t.number) AS writes,
    (SELECT coalesce(sum(length(s.data)), 0) FROM tk_heap_segments s
        WHERE s.thread = coalesce(t.heap, t.number)) AS segment_bytes,
    time_text(t.deleted_at) AS deleted_at,
    t.state AS state,
    time_text(t.created_at) AS created_at,
    time_text(t.updated_at) AS updated_at,
    coalesce(t.size, 0) AS bytes,
    (SELECT json_group_array(json(l.label)) FROM tk_labels l
        WHERE l.thread = t.number AND substr(l.label, 1, 1) = '"') AS tags,
    -- The value is the label's text between the key and the closing bracket.
    (SELECT json_group_object(json_extract(l.label, '$[0]'), json(substr(
            l.label, length(l.beginning) + 4, length(l.label) - length(l.beginning) - 4)))
        FROM tk_labels l WHERE l.thread = t.number AND substr(l.label, 1, 1) = '[') AS metadata,
    coalesce(t.pinned, 0) AS pinned,
    t.ttl / 1000000 AS ttl_seconds,
    t.origin AS forked_from,
    id_text(t.origin_checkpoint) AS forked_from_checkpoint,
    coalesce(t.status, CASE WHEN t.state IN ('active', 'forked', 'archived') THEN 'done' END)
        AS status,
    id_text(t.status_at) AS status_checkpoint,
    t.failed_node AS failed_node,
    t.holder AS holder,
    time_text(t.lease_until) AS lease_until,
    coalesce(t.attempts, 0) AS attempts
FROM tk_threads t
WHERE t.thread <> 'threadkeep$statistics';  -- (the last statistics, see threads/last_statistics.py)
CREATE VIEW IF NOT EXISTS checkpoints AS SELECT
    t.thread AS thread_id,
    c.ns AS checkpoint_ns,
    id_text(c.id) AS checkpoint_id,
    id_text(c.parent) AS parent_checkpoint_id,
    time_text(c.ts) AS ts,
    coalesce(c.metadata,
        '{"source":"' || c.source || '","step":' || c.step || ',"parents":{}}') AS metadata,
    coalesce(c.flags & 8, 0) <> 0 AS hidden,
    length(c.manifest) AS manifest_bytes
FROM tk_checkpoints c JOIN tk_threads t ON t.number = c.thread;
CREATE VIEW IF NOT EXISTS writes AS SELECT
    t.thread AS thread_id,
    w.ns AS checkpoint_ns,
    id_text(w.checkpoint) AS checkpoint_id,
    w.seq AS seq,
    id_text(w.task) AS task_id,
    coalesce(w.path, '') AS task_path,
    length(w.body) AS bytes
FROM tk_writes w JOIN tk_threads t ON t.number = w.thread
WHERE t.thread <> 'threadkeep$statistics';
CREATE VIEW IF NOT EXISTS segments AS SELECT
    t.thread AS thread_id,
    s.log AS log,
    s.start AS start,
    s.count AS count,
    length(s.data) AS bytes
FROM tk_heap_segments s JOIN tk_threads t ON coalesce(t.heap, t.number) = s.thread;
