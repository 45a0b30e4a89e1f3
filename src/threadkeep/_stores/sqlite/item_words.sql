-- Words of items, for full-text searches. Triggers remove them with their item.
CREATE VIRTUAL TABLE tk_item_words USING fts5(
    words, detail = column, tokenize = "ascii tokenchars '-_.'");

CREATE TRIGGER tk_item_words_replaced AFTER UPDATE OF version ON tk_items BEGIN
    DELETE FROM tk_item_words WHERE rowid = old.number;
END;

CREATE TRIGGER tk_item_words_deleted AFTER DELETE ON tk_items BEGIN
    DELETE FROM tk_item_words WHERE rowid = old.number;
END;
