"""The wake-up that ends a loop's sleep from outside."""

from typing_extensions import disjoint_base

@disjoint_base
class WakeUp: ...
