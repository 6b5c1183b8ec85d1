"""Readers of mixtures, and what the components of one batch must have in common."""
