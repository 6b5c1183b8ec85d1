"""What is on disk: URLs, tar archives, counts. No torch."""
