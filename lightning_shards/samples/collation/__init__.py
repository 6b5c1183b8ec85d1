"""How columns are collated that are no plain stack: numbers, and what has to be padded."""
