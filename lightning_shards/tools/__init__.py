"""The commands of `lightning-shards`, one thin file each; this is the only layer that prints."""
