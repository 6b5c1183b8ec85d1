"""The tar format: headers, members, and how they are found fast."""
