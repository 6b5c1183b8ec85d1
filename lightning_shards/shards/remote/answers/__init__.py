"""What comes back from a store: answers of HTTP, calls without limits, memory for bodies."""
