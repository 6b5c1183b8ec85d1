"""Batches of samples that are read by their offsets: the loop over them, and their rows."""
