"""create_task() by vectorcall."""
