/* Exchanges the memory of a MemoryBIO of the `ssl` module while OpenSSL is called.
 *
 * MemoryBIO.write() and read() copy. OpenSSL allows the memory of such a BIO to be exchanged
 * (BIO_set_mem_buf(3)): received records are read in place, and memory to write to is used by one
 * connection after the other.
 *
 * This needs the BIO pointer in CPython's object, which no API returns, and OpenSSL's BIO_ctrl,
 * which only calls the BIO's own function. membio_find looks for both; without them the records are
 * copied. Linking to OpenSSL instead would load a second OpenSSL into the process.
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

/* Checks the type of MemoryBIO and finds BIO_ctrl in the loaded module at `path`, which is `_ssl`;
 * returns 0 if either is not as expected. */
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

/* Returns the number of unread bytes. */
static inline Py_ssize_t membio_pending(PyObject *object) {
    return membio_call(object, MEMBIO_PENDING, 0, NULL);
}

/* Like membio_pending; sets `start` to the first unread byte. */
static inline Py_ssize_t membio_unread(PyObject *object, char **start) {
    return membio_call(object, MEMBIO_INFO, 0, start);
}

/* Returns the BIO's current memory, which stays the BIO's. */
static inline membio_memory *membio_memory_of(PyObject *object) {
    membio_memory *memory = NULL;

    membio_call(object, MEMBIO_GET_MEMORY, 0, &memory);
    return memory;
}

/* Sets `lent` to memory to read from, which the caller keeps until membio_return. */
static inline void membio_show(membio_memory *lent, const char *data, Py_ssize_t size) {
    lent->data = (char *)data;
    lent->length = size;
    lent->max = size;
    lent->flags = 0;
}

/* Returns the BIO's own memory. Until membio_give_back the BIO does not free that memory, as it
 * would when its memory is exchanged. */
static inline membio_memory *membio_borrow(PyObject *object) {
    membio_call(object, MEMBIO_SET_CLOSE, 0, NULL);
    return membio_memory_of(object);
}

static inline void membio_give_back(PyObject *object) {
    membio_call(object, MEMBIO_SET_CLOSE, 1, NULL);
}

/* Lends memory to a BIO that is empty and whose own memory is borrowed. The BIO may be written to
 * only if the lent memory is another BIO's, because OpenSSL enlarges it. */
static inline void membio_lend(PyObject *object, membio_memory *lent) {
    membio_call(object, MEMBIO_SET_MEMORY, 0, lent);
}

/* Gives the BIO its own memory again, empty. */
static inline void membio_return(PyObject *object, membio_memory *own) {
    own->length = 0;
    membio_call(object, MEMBIO_SET_MEMORY, 0, own);
}

#endif
