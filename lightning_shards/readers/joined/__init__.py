"""What reads joined columns beside the members of samples."""
