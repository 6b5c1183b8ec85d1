"""What the package asks of the operating system: processors, locks, the end of processes."""
