"""The files beside shards that say what is in them: ours, and those of other tools."""
