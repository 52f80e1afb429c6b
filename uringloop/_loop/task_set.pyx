"""asyncio's set of all tasks, with compiled methods.

Before Python 3.14 every task is put into a WeakSet, for asyncio.all_tasks(), by a method of the
set, and leaves it by another, the callback of its weak reference. Both methods are Python code and
take a seventh of the instructions of a task that ends at once. This module replaces them, in that
one object, by methods that do the same. The set belongs to asyncio, so these methods also put tasks
of other loops into it. Any thread that has the GIL may call them.
"""

from weakref import WeakSet

cimport cython
from cpython.weakref cimport PyWeakref_NewRef

from uringloop._cpython.stdlib cimport TASK_SET, uses
from uringloop._cpython.stdlib import ALL_TASKS


# A C global: module dictionaries may be cleared at shutdown. None until a loop needs it.
cdef TaskSet compiled = None


@cython.final
cdef class TaskSet:

    def __init__(self, tasks not None):
        self.tasks = tasks
        self.references = tasks.data
        self.iterating = tasks._iterating
        self.pending = tasks._pending_removals
        self.stock_remove = tasks._remove
        self.add_method = self.add
        self.remove_method = self.remove

    def add(self, item):
        """Do what WeakSet.add() does."""
        if self.pending:
            WeakSet._commit_removals(self.tasks)
        self.references.add(PyWeakref_NewRef(item, self.remove_method))

    def remove(self, item):
        """Remove the weak reference *item*, whose task no longer exists."""
        if self.iterating:
            # The set's next add(), or the end of the iteration, removes it.
            self.pending.append(item)
        else:
            self.references.discard(item)

    cdef int install(self) except -1:
        # A program may have a method of its own there.
        if "add" not in vars(self.tasks):
            self.tasks._remove = self.remove_method
            self.tasks.add = self.add_method
        return 0

    cdef int uninstall(self) except -1:
        if vars(self.tasks).get("add") is self.add_method:
            del self.tasks.add
            self.tasks._remove = self.stock_remove
        return 0


def choose_methods():
    """Have compiled methods keep the set, or its own ones if the part is disabled or absent."""
    global compiled
    if uses(TASK_SET):
        if compiled is None:
            compiled = TaskSet(ALL_TASKS)
        compiled.install()
    elif compiled is not None:
        compiled.uninstall()
