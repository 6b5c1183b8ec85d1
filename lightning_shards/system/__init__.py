"""What the package asks of the operating system: processors, files, signals, ends of processes."""
