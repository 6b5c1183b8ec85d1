"""The configuration: what YAML, omegaconf and the command line fill, checked; it stops here."""
