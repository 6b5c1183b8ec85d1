"""What travels beside a message: its tensors, found wherever they are in it."""
