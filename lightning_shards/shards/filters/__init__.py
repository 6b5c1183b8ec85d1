"""Samples that are left out of a run without packing the shards again."""
