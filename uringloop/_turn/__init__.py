"""One turn of the loop: handles, timers, the ready queue, and the table of descriptors."""
