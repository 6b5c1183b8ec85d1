"""From samples to shards: equal samples give equal bytes, and a killed run goes on."""
