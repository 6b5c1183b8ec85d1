"""From the bytes of members to values: images, clips, arrays and numbers."""
