"""The pools that run sources: inline, in threads or in processes; batches come in step order."""
