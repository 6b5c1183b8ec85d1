"""Writers of the indexes that this package and other tools read beside shards."""
