"""What a loop has done so far, and which loops there are."""
