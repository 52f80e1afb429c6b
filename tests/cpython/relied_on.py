"""Everything that uringloop relies on inside CPython and its standard library.

A row names what is not documented: private names, modules that the documentation does not mention,
fields of C structures. It states since which Python these names exist, what their use gains, and
what runs without them. A row with a switch belongs to compiled code that replaces code of the
standard library: if `URINGLOOP_DISABLE` names the switch, or the standard library does not have the
known shape, the standard library's own code runs (`uringloop/_cpython/stdlib.pyx`).

`test_relied_on.py` fails for a private name without a row, for a row that nothing uses, and for a
name that the running Python lacks. Names that a loop offers because programs read them from
asyncio's loops, such as `_ready`, are not relied on and have no row.
"""

from __future__ import annotations

from typing import NamedTuple

# The beginning of `without` if there is no alternative.
REQUIRED = "nothing, uringloop needs it: "


class Row(NamedTuple):
    """Names of one owner that are used for one reason."""

    # A module or a class, by its dotted path; "" for modules; C for CPython's and OpenSSL's C.
    owner: str
    # Separated by blanks.
    names: str
    # The first Python that has all of them; uringloop itself needs 3.11.
    since: str
    gain: str
    without: str
    # The name that URINGLOOP_DISABLE accepts.
    switch: str | None = None
    # The last Python that has them; None for the newest.
    until: str | None = None


C = "C"

# ── the contract between asyncio and its loops ───────────────────────────────────────────────

# Loops other than asyncio's own have to take part in these.
CONTRACT = (
    Row(
        "asyncio.events",
        "_get_running_loop _set_running_loop",
        "3.7",
        "asyncio.get_running_loop() finds the loop; asyncio.__all__ has both, for implementers",
        REQUIRED + "no public function says which loop runs",
    ),
    Row(
        "asyncio.tasks",
        "_enter_task _leave_task",
        "3.7",
        "a nested run leaves the current task; asyncio.tasks.__all__ has both, for implementers",
        REQUIRED + "a nestable loop cannot run its tasks otherwise; other loops do not use it",
    ),
    Row(
        "asyncio.tasks",
        "_current_tasks",
        "3.7",
        "a nested run leaves a current task that is written in Python",
        "tasks written in Python are not left; those of C are",
    ),
    Row(
        "os._Environ",
        "_data",
        "3.0",
        "a variable that is not set is noticed in 0.1 us instead of 1 us; a new loop looks for six",
        "os.environ.get()",
    ),
    Row(
        "asyncio.tasks",
        "_set_task_name",
        "3.8",
        "a task of a factory is named as this asyncio names it",
        "set_name(), as asyncio does from 3.13 on",
        until="3.12",
    ),
    Row(
        "asyncio.Task",
        "_log_destroy_pending _source_traceback",
        "3.4",
        "run_until_complete() and create_task() report tasks as asyncio's loop does",
        REQUIRED + "asyncio's own loop sets both on its tasks",
    ),
    Row(
        "asyncio.base_events",
        "_run_until_complete_cb",
        "3.4",
        "anyio recognizes the root task by this callback",
        REQUIRED + "it is what stops a run_until_complete()",
    ),
    Row(
        "asyncio.BaseEventLoop",
        "_check_sendfile_params _sendfile_fallback _sock_sendfile_fallback",
        "3.7",
        "loop.sendfile() and loop.sock_sendfile() check, fall back and raise as asyncio's",
        REQUIRED + "asyncio's methods run on this loop and call these",
    ),
    Row(
        "asyncio.BaseEventLoop",
        "_sendfile_native _sock_sendfile_native _make_subprocess_transport _log_subprocess _debug",
        "3.7",
        "asyncio's sendfile() and subprocess_exec() run on this loop, which provides these",
        REQUIRED + "asyncio's methods call these of the loop that they run on",
    ),
    Row(
        "asyncio.base_subprocess.BaseSubprocessTransport",
        "_check_proc _closed _connect_pipes _loop _pending_calls _pipes _proc _process_exited "
        "_returncode _start",
        "3.4",
        "pipes, protocol calls and errors of child processes are asyncio's",
        REQUIRED + "the transport of child processes derives from asyncio's",
    ),
    Row(
        "asyncio.selector_events._SelectorSocketTransport",
        "_sendfile_compatible _start_tls_compatible",
        "3.7",
        "asyncio's sendfile() and start_tls() accept a transport by these",
        REQUIRED + "asyncio refuses transports without them",
    ),
    Row(
        "asyncio.constants",
        "_SendfileMode",
        "3.7",
        "the value of _sendfile_compatible",
        REQUIRED + "asyncio compares with its members",
    ),
    Row(
        "asyncio.transports",
        "_FlowControlMixin",
        "3.4",
        "the class that asyncio's own stream transports derive from",
        REQUIRED + "asyncio's sendfile() asks for a subclass of asyncio.Transport",
    ),
    Row(
        "asyncio.coroutines",
        "_is_debug_mode",
        "3.7",
        "a new loop is in debug mode when asyncio's would be",
        REQUIRED + "-X dev, PYTHONASYNCIODEBUG and the flags together decide",
    ),
    Row(
        "asyncio.format_helpers",
        "_format_callback_source",
        "3.7",
        "reports name a callback as asyncio's reports do",
        REQUIRED + "it is called when a callback has raised",
    ),
    Row(
        "asyncio.Handle",
        "_cancelled _source_traceback",
        "3.4",
        "repr() of a handle is asyncio's",
        REQUIRED + "repr() sets them on a handle of asyncio's, and returns that one's",
    ),
    Row(
        "asyncio.events",
        "_ThreadSafeHandle",
        "3.14",
        "call_soon_threadsafe() returns what asyncio's does",
        "an asyncio.Handle, as before 3.14",
    ),
    Row(
        "asyncio.events",
        "_BaseDefaultEventLoopPolicy",
        "3.14",
        "importing uringloop does not raise the warning of the public name",
        "no policy at all, as in 3.16",
        until="3.15",
    ),
    Row(
        "asyncio.DefaultEventLoopPolicy",
        "_local _loop_factory",
        "3.4",
        "the policy makes uringloop's loops, and install() warns when it is too late",
        "no policy at all, as in 3.16",
        until="3.15",
    ),
    Row(
        "asyncio.DefaultEventLoopPolicy._Local",
        "_loop",
        "3.4",
        "install() warns when this thread has another loop already",
        "no warning",
        until="3.15",
    ),
    Row(
        "asyncio.coroutines",
        "_is_coroutine",
        "3.4",
        "asyncio.iscoroutinefunction() is true for methods of files that are compiled",
        "it is false; since 3.12 inspect.markcoroutinefunction() says so",
        until="3.11",
    ),
    Row(
        "",
        "asyncio.base_events asyncio.base_subprocess asyncio.constants asyncio.coroutines "
        "asyncio.events asyncio.format_helpers asyncio.log asyncio.runners "
        "asyncio.selector_events asyncio.staggered asyncio.streams "
        "asyncio.tasks asyncio.transports asyncio.trsock asyncio.unix_events",
        "3.8",
        "constants, messages, the logger, TransportSocket and staggered_race() are asyncio's own",
        REQUIRED + "asyncio is a package of these modules since 3.8",
    ),
)

# ── compiled code in place of the standard library's ─────────────────────────────────────────

# The objects of the `ssl` module.
TLS = (
    Row(
        "ssl.SSLObject",
        "_sslobj",
        "3.5",
        "OpenSSL is called without a Python function in between",
        "SSLObject.read() and write()",
    ),
    Row(
        "_ssl",
        "_SSLSocket",
        "3.5",
        "the methods of this class are found once, not at each call",
        "SSLObject.read() and write()",
    ),
    Row(
        "",
        "_ssl",
        "2.6",
        "the class of OpenSSL's connections, and the file that is linked to OpenSSL",
        REQUIRED + "the module `ssl` imports it",
    ),
    Row(
        C,
        "PySSLMemoryBIO BIO_ctrl PyTypeObject.tp_basicsize",
        "3.5",
        "OpenSSL reads records where they were received, and writes them where they are sent from",
        "MemoryBIO.read() and write(), which copy every byte once more and keep memory for it",
        "bio_memory",
    ),
    Row(
        C,
        "PyTypeObject.tp_descr_get",
        "3.0",
        "a socket's family is read without a look-up of its name",
        REQUIRED + "a slot of every CPython's types",
    ),
)

# asyncio's streams: direct writes to a StreamReader's buffer, and the end of a connection.
STREAMS = (
    Row(
        "asyncio.StreamReader",
        "_buffer _eof _limit _paused _transport _waiter",
        "3.4",
        "received bytes go into the reader's buffer without an object and without Python code",
        "StreamReaderProtocol.data_received() and StreamReader.feed_data()",
        "stream_reader",
    ),
    Row(
        "asyncio.StreamReader",
        "_wait_for_data",
        "3.4",
        "compiled streams read up to one of several separators on Pythons whose asyncio does not",
        REQUIRED + "the method waits as asyncio's own reads do",
    ),
    Row(
        "asyncio.StreamReaderProtocol",
        "_drain_helper",
        "3.4",
        "drain() of compiled streams calls the method of a derived class",
        REQUIRED + "the method waits where it must",
    ),
    Row(
        "asyncio.StreamReaderProtocol",
        "_stream_reader_wr",
        "3.8",
        "the reader of a protocol is found without Python code",
        "StreamReaderProtocol.data_received() and StreamReader.feed_data()",
        "stream_reader",
    ),
    Row(
        "asyncio.StreamReaderProtocol",
        "_closed _loop",
        "3.7",
        "the error of a lost connection is not reported as never retrieved (asyncio_reader.pyx)",
        "the report depends on the order of finalization, as with asyncio's loop",
    ),
    Row(
        "asyncio.StreamReaderProtocol",
        "_stream_reader",
        "3.8",
        "start_tls() on a server moves what the reader holds already into TLS",
        "it stays in the reader, as in asyncio before that was fixed",
    ),
)

# For socket calls that wait: sock_recv() and its like.
SOCKETS = (
    Row(
        "socket.socket",
        "_closed _io_refs",
        "3.2",
        "a socket that is closed while a call waits for it stays open until the call has ended",
        "it is closed at once",
    ),
    Row(
        C,
        "PyMemberDescrObject.d_member",
        "3.0",
        "these two are read at their offset: 700 instructions less of 13,000 for a call that waits",
        "they are read and set as attributes",
        "socket_slots",
    ),
)

# ── threads ──────────────────────────────────────────────────────────────────────────────────

THREADS = (
    Row(
        "concurrent.futures.ThreadPoolExecutor",
        "_work_queue _idle_semaphore _adjust_thread_count _threads _max_workers _shutdown "
        "_shutdown_lock _initializer_failed _broken",
        "3.9",
        "the default executor is a ThreadPoolExecutor with another queue: a fifth of the time",
        "the default executor is a plain ThreadPoolExecutor",
        "job_queue",
    ),
    Row(
        "concurrent.futures.thread",
        "_global_shutdown_lock _shutdown _worker _python_exit",
        "3.9",
        "a thread that is added is one that the end of the interpreter joins",
        "the default executor is a plain ThreadPoolExecutor",
        "job_queue",
    ),
)

# ── differences between versions ─────────────────────────────────────────────────────────────

# Bug-fix releases change behaviour, too, so version numbers are not compared.
VERSIONS = (
    Row(
        "asyncio.unix_events._UnixSelectorEventLoop",
        "_sock_sendfile_update_filepos",
        "3.7",
        "sendfile() leaves a file where asyncio's would, on this Python",
        "as on the newest Python",
    ),
    Row(
        "asyncio.selector_events._SelectorSocketTransport",
        "writelines _buffer _buffer_size _conn_lost _empty_waiter _eof",
        "3.15",
        "writelines() skips or refuses an item that is false as asyncio's would, on this Python",
        "as on the newest Python",
    ),
    Row(
        "asyncio.BaseEventLoop",
        "_connect_sock",
        "3.8",
        "the message of a failed bind() is that of asyncio on this Python",
        "as on the newest Python",
    ),
    Row(
        "asyncio.selector_events._SelectorDatagramTransport",
        "sendto",
        "3.4",
        "empty datagrams, and what a queued one counts for, are as in asyncio on this Python",
        "as on the newest Python",
    ),
    Row(
        "types.FunctionType",
        "__code__",
        "3.0",
        "the names that a function of asyncio uses are its shape, in bug-fix releases too",
        "the shape counts as unknown, and the standard library's own code runs",
    ),
    Row(
        "os.link",
        "__text_signature__",
        "3.4",
        "fs.link() has the default that os.link() has on this Python",
        "the newest Python's default",
    ),
)

# ── the interpreter ──────────────────────────────────────────────────────────────────────────

# CPython itself: its frames, its structures, its reference counts.
INTERPRETER = (
    Row(
        "sys",
        "_getframe",
        "3.0",
        "debug mode keeps where a callback was scheduled",
        REQUIRED + "asyncio's debug mode uses it too",
    ),
    Row(
        "sys",
        "_is_gil_enabled",
        "3.13",
        "the doctor and the benchmark say whether a free-threaded build runs without the GIL",
        "the GIL counts as on, as in every build before 3.13",
    ),
    Row(
        "sys",
        "_current_frames",
        "3.0",
        "the monitor shows what a loop executes, and what blocks it",
        REQUIRED + "programs that do not use the monitor never call it",
    ),
    Row(
        "",
        "posix",
        "3.0",
        "servers remove a socket's file by functions that tools for blocking calls do not replace",
        REQUIRED + "the module `os` imports it",
    ),
    Row(
        C,
        "PyBytesObject.ob_shash Py_REFCNT",
        "3.0",
        "a message is received into the memory of an earlier one without other references",
        "a new bytes object for each message",
        "kept_bytes",
    ),
    Row(
        "asyncio.tasks",
        "_all_tasks",
        "3.7",
        "a task is put into the set of all tasks without Python code",
        "WeakSet's own methods, and from 3.12 on the same set by another name",
        until="3.11",
    ),
    Row(
        "asyncio.tasks",
        "_scheduled_tasks",
        "3.12",
        "the same; from 3.14 on tasks of asyncio's class in C are not in it",
        "WeakSet's own methods",
    ),
    Row(
        "weakref.WeakSet",
        "_commit_removals _iterating _pending_removals _remove",
        "3.7",
        "compiled methods of the set of all tasks do what its own ones do",
        "WeakSet's own methods",
        "task_set",
        until="3.13",
    ),
    Row(
        C,
        "PyMethodDescrObject.d_method PyTypeObject.tp_dict",
        "3.0",
        "call_soon() gets its arguments by vectorcall",
        REQUIRED + "a compile-time error: the fields are part of the public structures",
    ),
    Row(
        C,
        "PyTypeObject.tp_name",
        "3.0",
        "a trace names the class that owns an operation",
        REQUIRED + "a compile-time error: the field is part of the public structure",
    ),
    Row(
        C,
        "PyTypeObject.tp_iternext",
        "3.0",
        "awaiting what is there makes no traceback",
        REQUIRED + "a compile-time error: the field is part of the public structure",
    ),
    Row(
        C,
        "PyTypeObject.tp_as_async PyAsyncMethods.am_send PyAsyncMethods.am_anext",
        "3.10",
        "awaiting what is there makes no exception for the result",
        REQUIRED + "a compile-time error: the fields are part of the public structure",
    ),
    Row(
        C,
        "PyTypeObject.tp_traverse",
        "3.0",
        "the garbage collector sees callbacks, timers and operations in flight as the loop's",
        REQUIRED + "a compile-time error: the field is part of the public structure",
    ),
    Row(
        C,
        "PyTypeObject.tp_flags PyTypeObject.tp_clear PyTypeObject.tp_free",
        "3.0",
        "without a GIL, the garbage collector does not visit the handles of other threads",
        "it visits them, and call_soon_threadsafe() takes 1.5 times as long",
    ),
    Row(
        C,
        "PyObject.ob_tid PyObject.ob_ref_local PyObject.ob_ref_shared _Py_REF_MERGED "
        "_Py_REF_SHARED _Py_ThreadId",
        "3.14",
        "without a GIL, the loop frees a handle that another thread has made",
        "the loop sends each handle back to its thread, which frees it",
    ),
    Row(
        C,
        "PyUnstable_Object_EnableDeferredRefcount",
        "3.14",
        "without a GIL, threads that call a loop do not change the same count",
        "they do, and call_soon_threadsafe() from four threads takes 1.2 times as long",
    ),
    Row(
        C,
        "PyUnstable_Code_NewWithPosOnlyArgs _Py_IMMORTAL_REFCNT_LOCAL",
        "3.14",
        "without a GIL, threads that use files do not change the same counts",
        "each coroutine of a compiled function changes the count of the function's code",
    ),
    Row(
        C,
        "PyTypeObject.tp_weaklistoffset",
        "3.0",
        "a handle that has run is used again if nothing refers to it, not even weakly",
        REQUIRED + "a compile-time error: the field is part of the public structure",
    ),
    Row(
        C,
        "PyTupleObject.ob_item",
        "3.0",
        "arguments are passed on without a copy",
        REQUIRED + "a compile-time error: the field is part of the public structure",
    ),
    Row(
        C,
        "_PyBytes_Resize",
        "3.0",
        "a bytes object that is not full gives back its memory; documented despite its name",
        REQUIRED + "a compile-time error",
    ),
    Row(
        C,
        "PyThreadState.context",
        "3.7",
        "a nested run leaves the contexts that are entered, and enters them again; "
        "call_soon_threadsafe() makes no copy of a context without variables",
        REQUIRED + "a compile-time error; PyContext_Exit() wants the context that is current",
    ),
)

# All rows.
TABLE = (*CONTRACT, *TLS, *STREAMS, *SOCKETS, *THREADS, *VERSIONS, *INTERPRETER)
