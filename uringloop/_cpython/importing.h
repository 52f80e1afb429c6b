/* Imports of compiled modules by compiled modules; the compiler reads this before every module.
 *
 * Cython imports each module whose types another one uses, some 400 times in all. CPython's own
 * function also waits, by a function in Python, until the package's import has ended: 2 to 4 us
 * each, to no purpose, because the thread that waits is the one that imports the package. The module
 * has been loaded by then, and no other thread can be loading it: this thread holds the package's
 * lock.
 */
#ifndef URINGLOOP_IMPORTING_H
#define URINGLOOP_IMPORTING_H

#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>

static inline PyObject *uringloop_import(const char *name) {
    PyObject *key = PyUnicode_FromString(name);
    PyObject *module;

    if (key == NULL)
        return NULL;
    module = PyImport_GetModule(key);
    Py_DECREF(key);
    if (module == NULL && !PyErr_Occurred())
        return PyImport_ImportModule(name);
    return module;
}

#define PyImport_ImportModule uringloop_import

#endif
