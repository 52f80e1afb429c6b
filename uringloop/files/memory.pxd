"""The memory that a file is read into or written from."""

from cpython.object cimport PyObject


cdef const char *start_of(object data) noexcept
cdef char *view_data(object view) noexcept
cdef bytes shortened(PyObject *data, Py_ssize_t size)
cdef bytes vectors_of(list views, Py_ssize_t skip)
