/* The module `uringloop._compiled`, which names the compiled modules in its file.
 *
 * The compiled modules are linked into one file, each with a PyInit function; `loading.py` creates
 * the modules. The build writes compiled_modules.h from the sources: a module comes after those
 * that it imports.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "_cpython/membio.h"
#include "compiled_modules.h"

/* One variable for all modules that include membio.h. */
membio_function membio_ctrl = NULL;

static const char *const MODULES[] = {URINGLOOP_COMPILED_MODULES};

static int add_modules(PyObject *module) {
    const Py_ssize_t count = sizeof(MODULES) / sizeof(MODULES[0]);
    PyObject *names = PyTuple_New(count);
    int failed;

    if (names == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *name = PyUnicode_FromString(MODULES[i]);

        if (name == NULL) {
            Py_DECREF(names);
            return -1;
        }
        PyTuple_SET_ITEM(names, i, name);
    }
    failed = PyModule_AddObjectRef(module, "MODULES", names);
    Py_DECREF(names);
    return failed;
}

/* Larger than what transports receive at once: 256 KiB here, in asyncio and in aiofastnet; and than
 * what asyncio.StreamReader keeps with its default limit. */
#define LARGE_BLOCK (1024 * 1024)

/* Lets glibc's malloc() keep the memory of large blocks.
 *
 * malloc() maps each block of 128 KiB or more anew, until one is freed; from then on it takes
 * blocks of that size from its heap (mallopt(3), M_MMAP_THRESHOLD). A receive never causes that:
 * its block is cut to the size of the message before it is freed. Until a program happens to free a
 * large block, every such receive would take three system calls and the page faults of fresh
 * memory. */
static int keep_large_blocks(PyObject *Py_UNUSED(module)) {
    PyMem_RawFree(PyMem_RawMalloc(LARGE_BLOCK));
    return 0;
}

static PyModuleDef_Slot SLOTS[] = {
    {Py_mod_exec, add_modules},
    {Py_mod_exec, keep_large_blocks},
#ifdef Py_GIL_DISABLED
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static PyModuleDef DEFINITION = {
    PyModuleDef_HEAD_INIT,
    .m_name = "uringloop._compiled",
    .m_doc = "The file that the compiled modules share.",
    .m_slots = SLOTS,
};

PyMODINIT_FUNC PyInit__compiled(void) {
    return PyModuleDef_Init(&DEFINITION);
}
