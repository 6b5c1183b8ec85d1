"""From a configuration to the source of a split, the pool of its workers and its loader."""
