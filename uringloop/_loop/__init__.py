"""The parts of class Loop that stand on the turn and do no I/O."""
