"""Upgrades of services under load: from uvloop, between two versions of uringloop, and back."""
