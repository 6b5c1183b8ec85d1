"""From the bytes of members to values: images, arrays and numbers."""
