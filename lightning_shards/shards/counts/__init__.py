"""Counts that others leave beside shards, and our own cache of them."""
