"""Where the time of a fit goes: what is counted, and what is said of it."""
