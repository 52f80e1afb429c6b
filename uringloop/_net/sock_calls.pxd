"""The sock_* methods: module functions only, so nothing is declared for other modules."""
