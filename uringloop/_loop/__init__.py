"""What the class Loop is made of, above the turn."""
