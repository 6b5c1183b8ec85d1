"""Lightning callbacks: set_epoch, exact resume, digest, throughput, and writing predictions."""
