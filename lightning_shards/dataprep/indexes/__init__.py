"""The indexes that this package and other tools want beside shards, written."""
