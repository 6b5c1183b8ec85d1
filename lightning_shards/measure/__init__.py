"""Profiling: the times of a fit, the rates computed from them, and the report."""
