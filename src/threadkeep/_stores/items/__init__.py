"""Items of long-term stores: records, filters and ranking that all databases share."""
