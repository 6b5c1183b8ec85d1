"""Shards, local and remote: URLs, tars, counts, tables, storage, filters and joins. No torch."""
