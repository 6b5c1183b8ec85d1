"""What the package asks of the operating system: processors, files, the end of processes."""
