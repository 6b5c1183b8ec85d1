"""Everything about shards on disk: URLs, tar archives, counts. No torch."""
