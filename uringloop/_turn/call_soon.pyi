"""call_soon(), call_soon_threadsafe(), call_later() and call_at(): methods of LoopCore."""
