/* The memory of a MemoryBIO of the `ssl` module, exchanged for other memory while OpenSSL is called.
 *
 * A MemoryBIO copies what is written to it, and what is read from it into an object. OpenSSL lets
 * the memory of such a BIO be exchanged (BIO_set_mem_buf(3)): lent memory is read where it is, or
 * written to by one connection after the other.
 *
 * That takes the place where CPython's object keeps its BIO, which no API tells, and of OpenSSL one
 * function that does no more than call the BIO's own. membio_find looks for both; without them a
 * program on this loop does the same with more copies. Linking to OpenSSL instead would bring a
 * second one into the process.
 */
#ifndef URINGLOOP_MEMBIO_H
#define URINGLOOP_MEMBIO_H

#include <Python.h>
#include <dlfcn.h>

/* BUF_MEM of openssl/buffer.h. */
typedef struct membio_memory {
    size_t length;
    char *data;
    size_t max;
    unsigned long flags;
} membio_memory;

/* PySSLMemoryBIO of CPython's Modules/_ssl.c, since 3.5. */
typedef struct {
    PyObject_HEAD void *bio;
    int eof_written;
} membio_object;

/* Commands of openssl/bio.h. */
#define MEMBIO_INFO 3
#define MEMBIO_SET_CLOSE 9
#define MEMBIO_PENDING 10
#define MEMBIO_SET_MEMORY 114
#define MEMBIO_GET_MEMORY 115

typedef long (*membio_function)(void *bio, int command, long number, void *pointer);

/* Defined in compiled.c, once for the modules that include this; NULL until membio_find. */
extern membio_function membio_ctrl;

/* Finds what is needed, of the type of MemoryBIO and of the loaded library at `path`, which is the
 * module that it is from; 0 if something is not there, or is something else. */
static inline int membio_find(PyObject *type, const char *path) {
    void *library;

    if (((PyTypeObject *)type)->tp_basicsize != sizeof(membio_object))
        return 0;
    library = dlopen(path, RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return 0;
    membio_ctrl = (membio_function)dlsym(library, "BIO_ctrl");
    dlclose(library);
    return membio_ctrl != NULL;
}

static inline long membio_call(PyObject *object, int command, long number, void *pointer) {
    return membio_ctrl(((membio_object *)object)->bio, command, number, pointer);
}

/* Returns the number of bytes that wait to be read. */
static inline Py_ssize_t membio_pending(PyObject *object) {
    return membio_call(object, MEMBIO_PENDING, 0, NULL);
}

/* As membio_pending, and where they are. */
static inline Py_ssize_t membio_unread(PyObject *object, char **start) {
    return membio_call(object, MEMBIO_INFO, 0, start);
}

/* Returns the memory that the BIO has. */
static inline membio_memory *membio_memory_of(PyObject *object) {
    membio_memory *memory = NULL;

    membio_call(object, MEMBIO_GET_MEMORY, 0, &memory);
    return memory;
}

/* Has `lent` stand for memory to read from, which the caller keeps until membio_return. */
static inline void membio_show(membio_memory *lent, const char *data, Py_ssize_t size) {
    lent->data = (char *)data;
    lent->length = size;
    lent->max = size;
    lent->flags = 0;
}

/* Lends memory to a BIO, and returns the BIO's own, which membio_return takes. What is lent may be
 * written to only if it is some BIO's own: OpenSSL makes it larger. */
static inline membio_memory *membio_lend(PyObject *object, membio_memory *lent) {
    membio_memory *own = membio_memory_of(object);

    /* Else what the BIO has would be freed for what it gets. */
    membio_call(object, MEMBIO_SET_CLOSE, 0, NULL);
    membio_call(object, MEMBIO_SET_MEMORY, 0, lent);
    return own;
}

static inline void membio_return(PyObject *object, membio_memory *own) {
    membio_call(object, MEMBIO_SET_MEMORY, 1, own);
}

#endif
