"""Writing of shards: equal samples give equal bytes, and a killed run can be continued."""
