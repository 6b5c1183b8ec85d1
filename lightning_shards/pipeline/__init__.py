"""From shards to batches, inside a worker: read, decode, transform, collate."""
