"""Columns from elsewhere: tables matched with the keys of samples, and kept in the cache folder."""
