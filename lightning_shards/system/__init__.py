"""What the package asks of the operating system: processors, and the end of processes."""
