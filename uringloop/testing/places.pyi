"""What a loop for tests knows of callbacks: their tasks, and where the seed may put them."""
