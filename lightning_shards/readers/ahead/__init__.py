"""What a reader lets its storage fetch ahead of the batches: which pieces, and when."""
