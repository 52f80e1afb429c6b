"""The parts of CPython's C API that Cython's own declarations lack or wrap with overhead.

A function that returns ``PyObject *`` returns a new reference, or NULL with an exception set,
unless its name ends in ``_borrowed``. All functions need the GIL.
"""

from cpython.object cimport PyObject


ctypedef int (*visitproc)(PyObject *, void *) noexcept
ctypedef int (*traverseproc)(PyObject *, visitproc, void *) noexcept


cdef extern from "Python.h":
    size_t PY_VECTORCALL_ARGUMENTS_OFFSET
    PyObject *PyObject_Vectorcall(
        object callable, PyObject *const *args, size_t nargs, PyObject *kwnames)
    # These take the callable as a pointer: threads that share it need not change its count.
    object PyObject_Call(PyObject *callable, object args, object options)
    object PyObject_CallNoArgs(PyObject *callable)
    object call_vector "PyObject_Vectorcall" (
        PyObject *callable, PyObject *const *args, size_t nargs, PyObject *names)
    PyObject *PyObject_CallMethodOneArg(object target, object name, object argument)
    PyObject *PyObject_CallMethodNoArgs(object target, object name)
    PyObject *PyObject_VectorcallMethod(
        object name, PyObject *const *args, size_t nargs, PyObject *kwnames)
    object PyContext_New()
    object PyContext_CopyCurrent()
    bint has_no_variables "uringloop_has_no_variables" ()
    int PyContext_Enter(object context) except -1
    # Returns a negative number with the exception set; the caller handles it.
    int PyContext_TryEnter "PyContext_Enter" (object context)
    int PyContext_Exit(object context) except -1
    void Py_DECREF_owned "Py_DECREF" (PyObject *reference)
    PyObject *PyBytes_New "PyBytes_FromStringAndSize" (
        const char *bytes, Py_ssize_t size) except NULL
    PyObject *PyUnicode_New(Py_ssize_t size, Py_UCS4 widest) except NULL
    Py_UCS4 PyUnicode_MAX_CHAR_VALUE(object text)
    Py_ssize_t PyUnicode_FindChar(
        object text, Py_UCS4 char, Py_ssize_t start, Py_ssize_t end, int direction) except -2
    bint PyUnicode_Check(PyObject *target)
    object PyUnicode_DecodeLocale(const char *text, const char *errors)
    # If *overflow* is NULL, a number that does not fit becomes the nearest one that does.
    Py_ssize_t PyNumber_AsSsize_t(object number, PyObject *overflow) except? -1
    # For two str it does not fail.
    int PyUnicode_Compare(PyObject *one, object other)
    object PyUnicode_Substring(object text, Py_ssize_t start, Py_ssize_t end)
    # `to` must be new, with no other reference.
    Py_ssize_t PyUnicode_CopyCharacters(
        PyObject *to, Py_ssize_t to_start, object text, Py_ssize_t start, Py_ssize_t count
    ) except -1
    PyObject *PyList_GET_ITEM_borrowed "PyList_GET_ITEM" (list items, Py_ssize_t index)
    PyObject *PyTuple_GET_ITEM_borrowed "PyTuple_GET_ITEM" (tuple items, Py_ssize_t index)
    Py_ssize_t PyTuple_GET_SIZE(tuple items)
    # Takes a pointer: Cython counts a reference to an attribute that it passes as an object.
    Py_ssize_t list_size "PyList_GET_SIZE" (PyObject *items)
    int PyList_SetSlice(list items, Py_ssize_t start, Py_ssize_t end, PyObject *to) except -1
    int PyErr_CheckSignals() except -1
    # What sys.exception() returns; NULL for none.
    void PyErr_SetHandledException(PyObject *exception)
    Py_ssize_t Py_REFCNT(PyObject *target)
    # True only if no other reference exists, in any thread. Without a GIL this is also false for an
    # object that another thread has made.
    bint is_only_reference "uringloop_is_only_reference" (PyObject *target)
    bint has_weak_references "uringloop_has_weak_references" (PyObject *target)
    void give_away "uringloop_give_away" (PyObject *target)
    bint is_given "uringloop_is_given" (PyObject *target)
    void hide_from_collector "uringloop_hide_from_collector" (object type)
    void keep_for_ever "uringloop_keep_for_ever" (object target)
    void leave_to_collector "uringloop_leave_to_collector" (object target)
    PyObject *type_of "(PyObject *)Py_TYPE" (PyObject *target)
    bint PyObject_IS_GC(PyObject *target)
    bint PyObject_GC_IsTracked(PyObject *target)
    void PyObject_GC_Track(object target)
    void PyObject_GC_UnTrack(object target)
    bint PyCFunction_Check(object target)
    # What threading.get_ident() returns.
    unsigned long this_thread "(unsigned long)pthread_self" ()


cdef extern from *:
    """
    /* Whether this is a build of CPython without the GIL. */
    #ifdef Py_GIL_DISABLED
    #define URINGLOOP_FREE_THREADED 1
    #else
    #define URINGLOOP_FREE_THREADED 0
    #endif
    #include <pthread.h>

    #if PY_VERSION_HEX < 0x030D0000
    /* Nothing uses it in these versions: handles for other threads have their own class from 3.14
     * on. */
    typedef struct { char unused; } PyMutex;
    #define PyMutex_Lock(mutex) ((void)(mutex))
    #define PyMutex_Unlock(mutex) ((void)(mutex))
    #endif

    /* Whether the caller has the only reference. If so, the caller sees all that another thread did
     * before it dropped its reference. */
    static inline int uringloop_is_only_reference(PyObject *object) {
    #ifdef Py_GIL_DISABLED
        return __atomic_load_n(&object->ob_tid, __ATOMIC_RELAXED) == _Py_ThreadId()
            && __atomic_load_n(&object->ob_ref_local, __ATOMIC_RELAXED) == 1
            && __atomic_load_n(&object->ob_ref_shared, __ATOMIC_ACQUIRE) == 0;
    #else
        return Py_REFCNT(object) == 1;
    #endif
    }

    /* Whether an object of one of our types, which have room for the list, has weak references. */
    static inline int uringloop_has_weak_references(PyObject *object) {
        return *(PyObject **)((char *)object + Py_TYPE(object)->tp_weaklistoffset) != NULL;
    }

    /* Whether the current context has no variables: a copy of it is like a new one. */
    static inline int uringloop_has_no_variables(void) {
        PyObject *context = PyThreadState_Get()->context;

        return context == NULL || PyObject_Size(context) == 0;
    }

    /* The next five functions are for builds without a GIL, and do nothing in others.
     *
     * In such a build an object belongs to the thread that has made it. That thread counts its own
     * references without atomics, and another thread that drops the last one asks it to free the
     * object.
     *
     * This one lets whoever drops the last reference free the object. The caller has made the
     * object, and no other thread has seen it. The counts get the state that CPython gives them
     * when the owner has dropped its references. */
    static inline void uringloop_give_away(PyObject *object) {
    #ifdef Py_GIL_DISABLED
        if (object->ob_tid == _Py_ThreadId() && object->ob_ref_shared == 0) {
            object->ob_ref_shared = _Py_REF_SHARED(object->ob_ref_local, _Py_REF_MERGED);
            object->ob_ref_local = 0;
            object->ob_tid = 0;
        }
    #endif
    }

    /* Whether the caller has the only reference to an object that was given away. */
    static inline int uringloop_is_given(PyObject *object) {
    #ifdef Py_GIL_DISABLED
        return __atomic_load_n(&object->ob_ref_shared, __ATOMIC_ACQUIRE)
            == _Py_REF_SHARED(1, _Py_REF_MERGED);
    #else
        return 0;
    #endif
    }

    /* Takes one of our types, which has no derived ones, from the garbage collector. */
    static void uringloop_hide_from_collector(PyObject *type) {
    #ifdef Py_GIL_DISABLED
        PyTypeObject *hidden = (PyTypeObject *)type;

        hidden->tp_flags &= ~Py_TPFLAGS_HAVE_GC;
        hidden->tp_traverse = NULL;
        hidden->tp_clear = NULL;
        hidden->tp_free = PyObject_Free;
    #endif
    }

    /* Keeps an object that this thread has made, and no other has seen, for ever. */
    static inline void uringloop_keep_for_ever(PyObject *object) {
    #ifdef Py_GIL_DISABLED
        uringloop_make_immortal(object);
    #endif
    }

    /* Leaves an object to the garbage collector: from now on the interpreter does not count most
     * references to it. Otherwise threads that count references to the same object wait for each
     * other. */
    static inline void uringloop_leave_to_collector(PyObject *object) {
    #ifdef Py_GIL_DISABLED
        PyUnstable_Object_EnableDeferredRefcount(object);
    #endif
    }

    /* Calls *changed* before each change of a dict; with a GIL there is no need. */
    #ifdef Py_GIL_DISABLED
    static int uringloop_watch(PyObject *dict, PyDict_WatchCallback changed) {
        int watcher = PyDict_AddWatcher(changed);

        return watcher < 0 ? -1 : PyDict_Watch(watcher, dict);
    }
    #else
    #define uringloop_watch(dict, changed) ((void)(dict), (void)(changed), 0)
    #if PY_VERSION_HEX < 0x030C0000
    typedef int PyDict_WatchEvent;
    #endif
    #endif

    /* Reads an attribute of an object through its descriptor, which is an attribute of the type. */
    #define uringloop_get_attribute(descriptor, object) \
        Py_TYPE(descriptor)->tp_descr_get(descriptor, object, (PyObject *)Py_TYPE(object))

    /* The items of a tuple, as the arguments of a vectorcall. */
    #define uringloop_tuple_items(t) (((PyTupleObject *)(t))->ob_item)

    /* Adds a method that takes vectorcall arguments to one of our types: Cython's parsing of
     * `*args` and keywords takes four times as long. The text begins with the signature. */
    typedef PyObject *(*uringloop_method)(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);
    static int uringloop_add_method(PyObject *type, PyMethodDef *definition, const char *name,
                                    const char *text, uringloop_method method) {
        PyTypeObject *owner = (PyTypeObject *)type;
        PyObject *descriptor;
        int res;

        definition->ml_name = name;
        definition->ml_doc = text;
        definition->ml_meth = (PyCFunction)(void (*)(void))method;
        definition->ml_flags = METH_FASTCALL | METH_KEYWORDS;
        descriptor = PyDescr_NewMethod(owner, definition);
        if (descriptor == NULL)
            return -1;
        res = PyDict_SetItemString(owner->tp_dict, name, descriptor);
        Py_DECREF(descriptor);
        PyType_Modified(owner);
        return res;
    }

    /* The C function of a method with exactly these flags; NULL if there is none. */
    static inline PyCFunction uringloop_function_of(PyObject *method, int flags) {
        PyMethodDef *definition;

        if (!Py_IS_TYPE(method, &PyMethodDescr_Type))
            return NULL;
        definition = ((PyMethodDescrObject *)method)->d_method;
        return definition->ml_flags == flags ? definition->ml_meth : NULL;
    }

    /* Sets the traverse function of one of our types, which derived types call too; returns the
     * previous one. */
    static traverseproc uringloop_set_traverse(PyObject *type, traverseproc traverse) {
        traverseproc before = ((PyTypeObject *)type)->tp_traverse;

        ((PyTypeObject *)type)->tp_traverse = traverse;
        return before;
    }

    /* Clears the cached hash of a bytes object that is written again. The field is deprecated. */
    static inline void uringloop_forget_hash(PyObject *bytes) {
        _Pragma("GCC diagnostic push")
        _Pragma("GCC diagnostic ignored \\"-Wdeprecated-declarations\\"")
        ((PyBytesObject *)bytes)->ob_shash = -1;
        _Pragma("GCC diagnostic pop")
    }

    /* Shortens a new bytes object, which nobody else has a reference to, to *size* bytes. Memory
     * that is hardly longer stays with the object: realloc() would cut off pieces that malloc()
     * does not join with their neighbours again, and a freed object would not fit its successor. */
    static inline int uringloop_cut_bytes(PyObject **bytes, Py_ssize_t size) {
        if (PyBytes_GET_SIZE(*bytes) - size > PyBytes_GET_SIZE(*bytes) >> 4)
            return _PyBytes_Resize(bytes, size);
        Py_SET_SIZE((PyVarObject *)*bytes, size);
        PyBytes_AS_STRING(*bytes)[size] = '\\0';
        return 0;
    }

    /* Called when PyContext_Enter has failed because the context is entered already. If it is the
     * current context, nothing is entered; if it was entered further out, a copy is entered.
     * Returns the argument of uringloop_leave_nested, or NULL with an exception. */
    static inline PyObject *uringloop_enter_nested(PyObject *context) {
        PyObject *copy;

        PyErr_Clear();
        /* Only the current context can be left. */
        if (PyContext_Exit(context) == 0)
            return PyContext_Enter(context) < 0 ? NULL : Py_NewRef(Py_None);
        PyErr_Clear();
        copy = PyContext_Copy(context);
        if (copy != NULL && PyContext_Enter(copy) < 0)
            Py_CLEAR(copy);
        return copy;
    }
    static inline void uringloop_leave_nested(PyObject *entered) {
        if (entered != Py_None)
            PyContext_Exit(entered);
        Py_DECREF(entered);
    }

    /* Returns what a weak reference refers to, or None. */
    static inline PyObject *uringloop_weakly_referenced(PyObject *reference) {
        PyObject *found;

    #if PY_VERSION_HEX >= 0x030D0000
        if (PyWeakref_GetRef(reference, &found) < 0)
            return NULL;
        return found == NULL ? Py_NewRef(Py_None) : found;
    #else
        found = PyWeakref_GetObject(reference);
        return Py_XNewRef(found);
    #endif
    }

    /* Prefetches the memory of an object that is used soon. */
    #define uringloop_prefetch(o) (__builtin_prefetch(o), __builtin_prefetch((char *)(o) + 64))

    /* Take and restore the pending exception; NULL if there is none. */
    #if PY_VERSION_HEX >= 0x030C0000
    #define uringloop_take_pending() PyErr_GetRaisedException()
    #define uringloop_set_pending(e) PyErr_SetRaisedException(e)
    #else
    static inline PyObject *uringloop_take_pending(void) {
        PyObject *type, *value, *traceback;

        PyErr_Fetch(&type, &value, &traceback);
        if (type == NULL)
            return NULL;
        PyErr_NormalizeException(&type, &value, &traceback);
        if (traceback != NULL)
            PyException_SetTraceback(value, traceback);
        Py_DECREF(type);
        Py_XDECREF(traceback);
        return value;
    }
    static inline void uringloop_set_pending(PyObject *exc) {
        if (exc == NULL) {
            PyErr_Clear();
            return;
        }
        PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(exc)), exc, PyException_GetTraceback(exc));
    }
    #endif
    """
    const bint FREE_THREADED "URINGLOOP_FREE_THREADED"

    # Since Python 3.13. A thread that waits lets others run.
    ctypedef struct PyMutex:
        pass
    void PyMutex_Lock(PyMutex *mutex)
    void PyMutex_Unlock(PyMutex *mutex)

    ctypedef struct PyMethodDef:
        pass
    ctypedef int PyDict_WatchEvent
    int watch "uringloop_watch" (
        dict watched,
        int (*changed)(PyDict_WatchEvent, PyObject *, PyObject *, PyObject *) noexcept) except -1
    int add_method "uringloop_add_method" (
        object type, PyMethodDef *definition, const char *name, const char *text,
        object (*method)(object, PyObject *const *, Py_ssize_t, PyObject *)) except -1
    ctypedef PyObject *(*PyCFunction)(PyObject *, PyObject *) noexcept
    int METH_VARARGS
    int METH_O
    PyCFunction function_of "uringloop_function_of" (object method, int flags)
    traverseproc set_traverse "uringloop_set_traverse" (object type, traverseproc traverse)
    void forget_hash "uringloop_forget_hash" (PyObject *bytes)
    int cut_bytes "uringloop_cut_bytes" (PyObject **bytes, Py_ssize_t size) except -1
    object weakly_referenced "uringloop_weakly_referenced" (object reference)
    void prefetch "uringloop_prefetch" (PyObject *target)
    PyObject *const *tuple_items "uringloop_tuple_items" (object items)
    PyObject *get_attribute "uringloop_get_attribute" (object descriptor, object target)
    PyObject *enter_nested "uringloop_enter_nested" (object context)
    void leave_nested "uringloop_leave_nested" (PyObject *entered)
    PyObject *take_pending "uringloop_take_pending" ()
    void set_pending "uringloop_set_pending" (PyObject *exception)


cdef inline int raise_pending() except -1:
    """Turn a pending C-level exception into one that Cython's ``except`` can see."""
    return -1


cdef inline str take_text(PyObject *result):
    """Convert a new reference that a C function returned to a str."""
    cdef str taken = <str>result
    Py_DECREF_owned(result)
    return taken


cdef inline PyObject *enter(object context) except NULL:
    """Enter *context*, even if it is entered already; pass the result to `leave`."""
    cdef PyObject *entered = <PyObject*>context
    if PyContext_TryEnter(context) < 0:
        entered = enter_nested(context)
        if entered == NULL:
            raise_pending()
    return entered


cdef inline int leave(object context, PyObject *entered) except -1:
    if entered == <PyObject*>context:
        return PyContext_Exit(context)
    leave_nested(entered)
    return 0


cdef inline bytes take_bytes(PyObject *result):
    """Convert a new reference that a C function returned to bytes."""
    cdef bytes taken = <bytes>result
    Py_DECREF_owned(result)
    return taken
