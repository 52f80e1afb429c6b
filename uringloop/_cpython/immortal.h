/* Without a GIL: the code objects of compiled functions do not count their references; the compiler
 * reads this before every module.
 *
 * Each coroutine of a compiled function refers to the function's code object. A count that several
 * threads change moves from processor to processor; of 20,000 drops of such references, in two
 * threads that read files, 19,415 were of one code object. Nothing ever frees these objects. CPython's
 * own functions have a remedy that Cython's coroutines do not use: deferred counts.
 */
#ifndef URINGLOOP_IMMORTAL_H
#define URINGLOOP_IMMORTAL_H

#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>

#ifdef Py_GIL_DISABLED
static inline PyCodeObject *uringloop_new_code(
    int arguments, int positional_only, int keyword_only, int locals, int stack, int flags,
    PyObject *code, PyObject *constants, PyObject *names, PyObject *local_names, PyObject *free,
    PyObject *cell, PyObject *file, PyObject *name, PyObject *qualified_name, int line,
    PyObject *lines, PyObject *exceptions) {
    PyCodeObject *made = PyUnstable_Code_NewWithPosOnlyArgs(
        arguments, positional_only, keyword_only, locals, stack, flags, code, constants, names,
        local_names, free, cell, file, name, qualified_name, line, lines, exceptions);

    /* No other thread has seen it. */
    if (made != NULL)
        __atomic_store_n(&((PyObject *)made)->ob_ref_local, _Py_IMMORTAL_REFCNT_LOCAL,
                         __ATOMIC_RELAXED);
    return made;
}

#define PyUnstable_Code_NewWithPosOnlyArgs uringloop_new_code
#endif

#endif
