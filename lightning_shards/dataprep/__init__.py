"""Preparing data: packing, inspection, and indexes for other tools; training imports none of it."""
