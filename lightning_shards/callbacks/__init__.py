"""Lightning callbacks: set_epoch, exact resume, the digest of an epoch, throughput."""
