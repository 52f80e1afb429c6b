"""Questions to the C library's resolver, asked in threads that need no GIL."""

cimport cython

from uringloop._kernel.libc cimport sockaddr_in6
from uringloop._turn.turn cimport LoopCore


cdef extern from "<netdb.h>" nogil:
    struct addrinfo:
        int ai_flags
        int ai_family
        int ai_socktype
        int ai_protocol
        unsigned int ai_addrlen
        void *ai_addr
        char *ai_canonname
        addrinfo *ai_next

    void freeaddrinfo(addrinfo *found)
    const char *gai_strerror(int status)
    int AI_ADDRCONFIG
    int AI_NUMERICHOST
    int EAI_NONAME
    int EAI_SYSTEM
    int NI_NUMERICHOST
    int NI_NUMERICSERV


cdef extern from "_net/name_threads.h" nogil:
    struct name_threads:
        unsigned int process

    struct name_query:
        name_threads *threads
        void *handle
        char *host
        char *service
        addrinfo hints
        sockaddr_in6 address
        unsigned int address_size
        int flags
        int status
        int error
        addrinfo *found
        char *found_host
        char *found_service
        double took_s

    name_threads *name_open(
        int (*tell)(void *inbox, void *handle) noexcept nogil, void *inbox, unsigned int process)
    void name_close(name_threads *threads)
    void name_resolve(name_query *query)
    int name_ask(name_threads *threads, name_query *query)
    void *name_withdraw(name_query *query)
    void *name_leave(name_query *query)


@cython.final
cdef class Names:
    cdef name_threads *threads  # owned; NULL before the first question for them
    cdef dict queries           # those in flight, by question

    cdef object in_flight(self, LoopCore loop, Query query, tuple question)
    cdef void leave_threads(self) noexcept


@cython.final
cdef class Query:
    cdef name_query *asked      # owned; NULL once left
    cdef LoopCore loop          # None before the question goes to the threads
    cdef dict queries           # of the loop: those in flight
    cdef tuple question         # the key in it
    cdef dict waiters           # the futures of all who wait, in their order

    cdef int ask(self, bytes host, bytes service) except -1
    cdef int hand_over(self, name_threads *threads) except -1
    cdef int resolve(self, waiter) except -1
    cdef object answer(self)
    cdef int leave(self) except -1
    cdef int drop(self, void *handle) except -1
