"""What takes a path: functions of the module only, so nothing is declared for others."""
