"""From shards to batches: the two readers, and what they share."""
