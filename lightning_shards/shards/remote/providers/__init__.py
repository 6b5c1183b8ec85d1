"""What must be known of the providers of stores: endpoints, errors, tokens and commits."""
