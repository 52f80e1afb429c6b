/* How a compiled module finds the others; the compiler reads this before every module.
 *
 * Cython imports each module whose types another one knows, 160 times in all. CPython's call for
 * that looks at the package too, and waits for the end of its import by a function in Python: 2 to
 * 4 us, for nothing, because the thread that waits is the one that imports it. The module itself has
 * been loaded by then, and nobody else can be loading it: that thread holds the package's lock.
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
