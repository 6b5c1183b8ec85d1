"""Fetching what batches need of remote objects, and ahead of them what they will need soon."""
