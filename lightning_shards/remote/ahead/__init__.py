"""What is fetched ahead of the batches from remote shards: which pieces, and when."""
