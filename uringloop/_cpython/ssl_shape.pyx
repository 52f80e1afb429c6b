"""The parts of the standard library's TLS that the compiled way of the bytes stands in for.

`data_path.pyx` replaces methods of asyncio's SSLProtocol and shares their fields. That is right
only as long as the methods use the names that they used when it was written, which is looked at
when this module is imported.
"""

import ssl
from asyncio import sslproto


# The names that each method uses, from 3.11 on. Those that differ are of no consequence.
SHAPE = {
    sslproto.SSLProtocol.buffer_updated: {
        "_incoming", "write", "_ssl_buffer_view", "_state", "SSLProtocolState", "DO_HANDSHAKE",
        "_do_handshake", "WRAPPED", "_do_read", "FLUSHING", "_do_flush", "SHUTDOWN",
        "_do_shutdown",
    },
    sslproto.SSLProtocol._do_read: {
        "_state", "SSLProtocolState", "WRAPPED", "FLUSHING", "_app_reading_paused",
        "_app_protocol_is_buffer", "_do_read__buffered", "_do_read__copied", "_write_backlog",
        "_do_write", "_process_outgoing", "_control_ssl_reading", "Exception", "_fatal_error",
    },
    sslproto.SSLProtocol._do_read__buffered: {
        "_app_protocol_get_buffer", "_get_read_buffer_size", "len", "_sslobj", "read", "_loop",
        "call_soon", "SSLAgainErrors", "_app_protocol_buffer_updated", "_call_eof_received",
        "_start_shutdown",
    },
    sslproto.SSLProtocol._do_read__copied: {
        "_sslobj", "read", "max_size", "append", "SSLAgainErrors", "_app_protocol",
        "data_received", "join", "_call_eof_received", "_start_shutdown",
    },
    sslproto.SSLProtocol._do_write: {
        "_write_backlog", "_sslobj", "write", "len", "_write_buffer_size", "SSLAgainErrors",
        "_process_outgoing",
    },
    sslproto.SSLProtocol._process_outgoing: {
        "_ssl_writing_paused", "_outgoing", "read", "len", "_transport", "write",
        "_control_app_writing",
    },
    sslproto.SSLProtocol._resume_reading: {"_app_reading_paused", "_loop", "call_soon"},
    sslproto.SSLProtocol._do_flush: {
        "_do_read", "_set_state", "SSLProtocolState", "SHUTDOWN", "_do_shutdown",
    },
    sslproto.SSLProtocol._do_shutdown: {
        "_eof_received", "_sslobj", "unwrap", "SSLAgainErrors", "_process_outgoing", "ssl",
        "SSLError", "_on_shutdown_complete", "_call_eof_received",
    },
    sslproto.SSLProtocol._get_write_buffer_size: {"_outgoing", "pending", "_write_buffer_size"},
    sslproto.SSLProtocol._get_read_buffer_size: {"_incoming", "pending"},
    sslproto.SSLProtocol._get_app_transport: {
        "_app_transport", "_app_transport_created", "RuntimeError", "_SSLProtocolTransport",
        "_loop",
    },
    sslproto._SSLProtocolTransport.write: {
        "isinstance", "bytes", "bytearray", "memoryview", "TypeError", "type", "__name__",
        "_ssl_protocol", "_write_appdata",
    },
    ssl.SSLObject.read: {"_sslobj", "read"},
    ssl.SSLObject.write: {"_sslobj", "write"},
}
# In a nested function before 3.13; from 3.16 on, for the alert that is sent when reading fails.
OTHER_NAMES = {"_do_read", "ssl", "SSLError"}

cdef bint known = all(
    set(function.__code__.co_names) - OTHER_NAMES == names - OTHER_NAMES
    for function, names in SHAPE.items())


def shape_is_known():
    """Return whether the standard library's methods are those that `secure` knows."""
    return known
