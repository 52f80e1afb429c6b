"""The services that are upgraded."""
