"""Inspection of shards: their contents, their faults, and the repair of damaged ones."""
