"""Sample counts: files that other tools leave beside shards, and our own cache of scans."""
