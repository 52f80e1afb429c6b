"""Delivery: how received bytes reach a protocol, by its kind."""
