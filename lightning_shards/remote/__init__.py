"""Remote shards: how bytes are fetched from object stores, the web and other machines."""
