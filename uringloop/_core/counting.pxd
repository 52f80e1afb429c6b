"""What a loop has done so far."""
