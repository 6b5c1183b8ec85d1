"""The cache of fetched pieces that the processes of a node share."""
