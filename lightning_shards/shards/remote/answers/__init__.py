"""What comes back on a connection of HTTP."""
