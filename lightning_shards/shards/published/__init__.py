"""What others than a scan say of the members of shards: tables and indexes that lie beside them."""
