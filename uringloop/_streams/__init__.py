"""Compiled streams: StreamReader, StreamWriter and their protocol."""
