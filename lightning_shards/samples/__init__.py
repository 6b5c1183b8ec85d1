"""One sample and one batch: fields, transforms, images, collation, and the memory of a batch."""
