/* Imports of compiled modules by compiled modules; the compiler reads this before every module.
 *
 * Cython imports each module whose types another one uses, some 600 times in all. Each time
 * CPython's own functions also ask whether another thread is executing the module, and would wait
 * for it. That takes 2 to 4 us, to no purpose: the module has been executed by then, and no other
 * thread can be executing it, because this thread holds the package's lock. CPython still imports
 * the modules of the standard library, and those of public packages, which may be imported at any
 * time (loading.py).
 */
#ifndef URINGLOOP_IMPORTING_H
#define URINGLOOP_IMPORTING_H

#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>
#include <string.h>

static inline PyObject *uringloop_import(const char *name) {
    PyObject *key = PyUnicode_FromString(name);
    PyObject *module = NULL;

    if (key == NULL)
        return NULL;
    if (strncmp(name, "uringloop._", strlen("uringloop._")) != 0)
        module = PyImport_GetModule(key);
    else
#if PY_VERSION_HEX >= 0x030D0000
        /* Without a GIL another thread may remove the module meanwhile. */
        (void)PyDict_GetItemRef(PyImport_GetModuleDict(), key, &module);
#else
        module = Py_XNewRef(PyDict_GetItemWithError(PyImport_GetModuleDict(), key));
#endif
    Py_DECREF(key);
    if (module == NULL && !PyErr_Occurred())
        return PyImport_ImportModule(name);
    return module;
}

#define PyImport_ImportModule uringloop_import

#endif
