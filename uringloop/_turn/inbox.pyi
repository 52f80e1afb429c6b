"""Handles from other threads, and the loop's sleep."""

from typing import final

@final
class Inbox: ...
