"""One module for each peer.

A module has `LOADERS`: name to a function that takes a `Job` and gives an iterable over the batches
of one epoch, from `job.position` on. Where it has `prepare(job)`, that is run once for a data set;
where it has `save_state(loader, job)`, a loader continues from that state, otherwise it finds its
position by itself.
"""
