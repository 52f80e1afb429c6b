"""call_soon() and call_soon_threadsafe() by vectorcall."""
