"""create_task(), a method of LoopCore."""
