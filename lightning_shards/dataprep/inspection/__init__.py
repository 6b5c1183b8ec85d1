"""What is in shards, what is wrong with them, and what can be saved."""
