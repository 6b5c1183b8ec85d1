"""Where sources run: inline or in processes, and how batches come back in step order."""
