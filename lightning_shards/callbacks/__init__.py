"""Lightning callbacks: the epoch for foreign loaders, and who waits for whom."""
