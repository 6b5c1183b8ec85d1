"""One thin file per command of `lightning-shards`; the only layer that prints."""
