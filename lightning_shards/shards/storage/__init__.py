"""Where the bytes of shards are: the protocol, the local files, what can only be streamed."""
