"""Tests the simulation with mutants: bugs are put in, one at a time, and each must be found.

    nox -s mutants

A bug that no program of the simulation can show has a test that must find it. The mutants are built
in build/mutants; the report is build/mutants.md.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "build" / "mutants"
SOURCES = ("uringloop", "tests", "setup.py", "pyproject.toml", "README.md", "LICENSE", "licenses")
PACKAGE = "uringloop"
# Seeds within which a mutant must be found, and the time limit for them in seconds.
SEEDS = 2000
PATIENCE_S = 300
# Lines of comments in a Cython file; a line of C's preprocessor has no blank behind its #.
COMMENTS = r"(?:^ *#(?: .*)?\n)*"


@dataclass(frozen=True)
class Mutant:
    """A bug: *wrong* takes the place of *right*, code of *file*; comments in it are left out.

    The test *test* must find it, or else the simulation.
    """

    name: str
    file: str
    right: str
    wrong: str
    test: str = ""


MUTANTS = (
    Mutant(
        "no receive is armed after ENOBUFS",
        "_net/stream_transport.pyx",
        "            self.return_to_polls()\n            return self.want_recv()\n",
        "            self.return_to_polls()\n            return 0\n",
    ),
    Mutant(
        "no receive is armed after a multishot has ended",
        "_net/stream_transport.pyx",
        '            return self.end_reading(os_error(res, ""))\n        return self.want_recv()',
        '            return self.end_reading(os_error(res, ""))\n        return 0',
    ),
    Mutant(
        "the bytes of a multishot's last completion are dropped",
        "_net/stream_transport.pyx",
        "        if res > 0:\n            return self.deliver_buffer(res, flags)\n"
        "        self.loop.pool",
        "        if res > 0:\n            return 0\n        self.loop.pool",
    ),
    Mutant(
        "a buffer is given back twice",
        "_net/stream_transport.pyx",
        "        finally:\n            self.loop.pool.give_back(flags)\n",
        "        finally:\n            self.loop.pool.give_back(flags)\n"
        "            self.loop.pool.give_back(flags)\n",
    ),
    Mutant(
        "bytes that arrive while reading is paused are lost",
        "_transport/read_transport.pyx",
        "        self.stash.append(item)\n",
        "",
    ),
    Mutant(
        "the rest of a stash item moves behind the other items",
        "_transport/read_transport.pyx",
        "self.stash.insert(0, item)",
        "self.stash.append(item)",
    ),
    # The transitions between polls and receives by the ring.
    Mutant(
        "no poll watches for the end beside a multishot receive",
        "_net/stream_transport.pyx",
        "        self.watch_end()\n        return True\n",
        "        return True\n",
    ),
    Mutant(
        "the end that a poll reports does not lead back to polls",
        "_net/stream_transport.pyx",
        "            self.may_multishot = False\n            return self.return_to_polls()\n",
        "            return 0\n",
    ),
    Mutant(
        "a connection whose multishot receive is stopped does not go back to polls",
        "_transport/read_transport.pyx",
        "        self.polls_left = POLLS_FIRST\n        return self.cancel_multishot()\n",
        "        return self.cancel_multishot()\n",
    ),
    Mutant(
        "a pause does not cancel the receive",
        "_transport/read_transport.pyx",
        "        store_int(&self.paused, True)\n        self.return_to_polls()\n",
        "        store_int(&self.paused, True)\n",
    ),
    Mutant(
        "what a poll reports is received while reading is paused",
        "_transport/read_transport.pyx",
        "        if not self.may_receive():\n            return 0\n        if self.served",
        "        if self.receiving == ENDED or self.life >= CLOSING:\n            return 0\n"
        "        if self.served",
    ),
    Mutant(
        "what a poll reports in a busy turn is received at once",
        "_transport/read_transport.pyx",
        "        if self.served_this_turn():\n"
        "            self.readable = True\n            return 0\n",
        "",
    ),
    Mutant(
        "what a poll reports for large messages in a busy turn is received at once",
        "_net/stream_transport.pyx",
        "return 0 if self.served_this_turn() else self.recv_available()",
        "return self.recv_available()",
    ),
    Mutant(
        "what was put off in a busy turn is not received later",
        "_transport/read_transport.pyx",
        "            return self.loop.add_delivery(self)\n        return self.submit_recv()",
        "            return 0\n        return self.submit_recv()",
    ),
    Mutant(
        "the end is told in the turn of the last bytes",
        "_net/stream_transport.pyx",
        "        if self.served_this_turn():\n            return self.stash_item",
        "        if False:\n            return self.stash_item",
    ),
    Mutant(
        "the whole stash is delivered in one turn",
        "_transport/read_transport.pyx",
        "                self.deliver_item(item)\n            elif",
        "                self.deliver_item(item)\n"
        "                while self.stash and not self.paused and self.life < CLOSING:\n"
        "                    self.deliver_item(self.stash.pop(0))\n            elif",
    ),
    Mutant(
        "the rest of the stash is not delivered",
        "_transport/read_transport.pyx",
        "                if self.stash:\n                    self.loop.add_delivery(self)\n",
        "",
    ),
    Mutant(
        "resume_reading receives in its own turn",
        "_transport/read_transport.pyx",
        "        self.served_turn = self.loop.counters.turns\n        if self.stash:\n",
        "        if self.stash:\n",
    ),
    Mutant(
        "a delivery that was queued before a pause is made in the turn of resume_reading",
        "_transport/read_transport.pyx",
        "        if self.served_this_turn():\n            return self.loop.add_delivery(self)\n",
        "",
    ),
    Mutant(
        "a cancelled receive delivers in the turn of resume_reading",
        "_net/stream_transport.pyx",
        "            self.polls_left != 0 and self.served_this_turn())\n",
        "            False)\n",
    ),
    Mutant(
        "deliveries that are due are not made",
        "_turn/turn.pyx",
        "            item.deliver_more()\n",
        "",
    ),
    Mutant(
        "a detached socket comes without the bytes that were taken from it",
        "_net/stream_transport.pyx",
        'return b"".join([item for item in self.stash or () if item is not EOF])',
        'return b""',
    ),
    Mutant(
        "no receive of datagrams is armed after ENOBUFS",
        "_net/datagram_transport.pyx",
        "        if res == -ENOBUFS:\n            return self.starve()\n",
        "        if res == -ENOBUFS:\n            return 0\n",
    ),
    Mutant(
        "no datagram is received after a poll",
        "_net/datagram_transport.pyx",
        "            return self.on_readable() if res > 0 else 0\n",
        "            return 0\n",
    ),
    # State transitions that are left out.
    Mutant(
        "a transport never becomes OPEN",
        "_transport/transport.pyx",
        "            store_life(&self.life, OPEN)\n",
        "            pass\n",
    ),
    Mutant(
        "a transport whose send has failed does not become BROKEN",
        "_transport/transport.pyx",
        "        store_life(&self.life, BROKEN)\n",
        "",
    ),
    Mutant(
        "a closed transport does not become CLOSING",
        "_transport/transport.pyx",
        "        store_life(&self.life, CLOSING)\n",
        "",
    ),
    Mutant(
        "a transport does not become ENDING",
        "_transport/transport.pyx",
        "        store_life(&self.life, ENDING)\n",
        "",
    ),
    Mutant(
        "a transport does not become LOST",
        "_transport/transport.pyx",
        "            store_life(&self.life, LOST)\n",
        "",
    ),
    Mutant(
        "a receive that was started stays IDLE",
        "_transport/read_transport.pyx",
        "        self.receiving = state\n        self.served_turn",
        "        self.served_turn",
    ),
    Mutant(
        "a receive without a free buffer does not become STARVED",
        "_transport/read_transport.pyx",
        "        assert self.receiving == IDLE\n        self.receiving = STARVED\n",
        "",
    ),
    Mutant(
        "a receive that has ended does not become IDLE",
        "_transport/read_transport.pyx",
        "        if self.receiving != ENDED:\n            self.receiving = IDLE\n",
        "        pass\n",
    ),
    Mutant(
        "a STARVED receive is never armed again",
        "_transport/read_transport.pyx",
        "        if self.receiving == STARVED:\n            self.receiving = IDLE\n",
        "        if self.receiving == STARVED:\n",
    ),
    Mutant(
        "the input does not become ENDED at EOF",
        "_transport/read_transport.pyx",
        "        self.cancel_recv()\n        self.receiving = ENDED\n",
        "        self.cancel_recv()\n",
    ),
    Mutant(
        "nothing follows the last completion of a receive",
        "_transport/read_transport.pyx",
        "            elif is_last:\n                self.on_recv_end(res)\n",
        "",
    ),
    Mutant(
        "the output does not become EOF_WRITTEN",
        "_transport/write_transport.pyx",
        "        self.output = EOF_WRITTEN\n",
        "",
    ),
    Mutant(
        "the output does not become EOF_SENT",
        "_transport/write_transport.pyx",
        "        self.output = EOF_SENT\n",
        "",
    ),
    Mutant(
        "the watch of a pipe does not become WATCHED",
        "_net/pipe.pyx",
        "        self.watching = WATCHED\n",
        "",
    ),
    Mutant(
        "a listener does not become PAUSED at EMFILE",
        "_net/listener.pyx",
        "        self.state = PAUSED\n",
        "",
    ),
    Mutant(
        "a listener that has paused does not become ACCEPTING",
        "_net/listener.pyx",
        "        assert self.state == PAUSED\n        self.state = ACCEPTING\n",
        "        assert self.state == PAUSED\n",
    ),
    Mutant(
        "a server at its limit goes on accepting",
        "_net/listener.pyx",
        "            self.state = HELD\n",
        "",
    ),
    Mutant(
        "a server below its limit does not accept again",
        "_net/listener.pyx",
        "            self.state = ACCEPTING\n            self.loop.add_flush(self)\n",
        "            self.state = ACCEPTING\n",
    ),
    Mutant(
        "a closed listener does not become CLOSED",
        "_net/listener.pyx",
        "        self.state = CLOSED\n",
        "",
    ),
    Mutant(
        "two sends of one socket are in flight",
        "_transport/write_transport.pyx",
        "        if self.send_op.in_flight:\n            return 0\n        if self.queue.count:\n",
        "        if self.queue.count:\n",
    ),
    Mutant(
        "the count of a short send is ignored",
        "_transport/write_transport.pyx",
        "return self.queue_sent(res)",
        "return self.queue_sent(self.queue.data_size)",
    ),
    Mutant(
        "a failed quiet send counts as complete",
        "_ring/ring.pyx",
        "            if user_data & QUIET:\n",
        "            if user_data & QUIET and False:\n",
    ),
    Mutant(
        "an item that was partly sent is sent again from its start",
        "_transport/write_queue.pyx",
        "            self.data = PyBytes_AS_STRING(<bytes>item) + offset\n",
        "            self.data = PyBytes_AS_STRING(<bytes>item)\n",
    ),
    Mutant(
        "close() drops queued bytes",
        "_transport/write_transport.pyx",
        "        self.stop_reading()\n        if not self.queue.count:\n",
        "        self.stop_reading()\n        if True:\n",
    ),
    Mutant(
        "write_eof() shuts down before the queued bytes are sent",
        "_transport/write_transport.pyx",
        "        if not self.queue.count and self.life < BROKEN:\n            self.send_eof()\n",
        "        if self.life < BROKEN:\n            self.send_eof()\n",
    ),
    Mutant(
        "a completion that was reaped is dispatched again",
        "_ring/ring.pyx",
        "                cqe.user_data = 0\n                flags = cqe.flags\n",
        "                flags = cqe.flags\n",
    ),
    Mutant(
        "the listener does not accept again after EMFILE",
        "_net/listener.pyx",
        "        self.retry = self.loop.call_later(constants.ACCEPT_RETRY_DELAY, "
        "self._retry_accept)\n",
        "",
    ),
    Mutant(
        "the listener does not arm again after its multishot has ended",
        "_net/listener.pyx",
        "        return self.loop.add_flush(self)",
        "        return 0",
    ),
    Mutant(
        "only one of several simultaneous connections is accepted",
        "_net/listener.pyx",
        "more = uring_may_accept(self.fd)",
        "more = False",
    ),
    Mutant(
        "connections left after a turn's accepts are not accepted later",
        "_net/listener.pyx",
        "            elif self.accepts() and more:\n                self.loop.add_flush(self)",
        "            elif self.accepts() and more:\n                pass",
    ),
    Mutant(
        "connections that waited during EMFILE are not accepted",
        "_net/listener.pyx",
        "            self.start()\n            self.accept_waiting(ACCEPTS_MAX)\n",
        "            self.start()\n",
    ),
    Mutant(
        "the wake-up's poll is not armed again",
        "_ring/wakeup.pyx",
        '                    raise os_error(res, "poll")\n                self.arm()',
        '                    raise os_error(res, "poll")',
    ),
    Mutant(
        "a timer runs early",
        "_turn/timers.pyx",
        "while self.count and self.entries[0].ns <= now_ns:",
        "while self.count and self.entries[0].ns <= now_ns + 1000000:",
    ),
    Mutant(
        "a short write to a file counts as complete",
        "files/open_file.pyx",
        "                operation = self.start_write(view, written, start + written)\n"
        "                if operation.stage != ENDED:\n"
        "                    await operation.run()\n"
        "                written += self.written_of(operation, written)\n",
        "                operation = self.start_write(view, written, start + written)\n"
        "                if operation.stage != ENDED:\n"
        "                    await operation.run()\n"
        "                self.written_of(operation, written)\n"
        "                written = size\n",
    ),
    Mutant(
        "an operation of a file does not become BEGUN",
        "files/operation.pyx",
        "        self.stage = BEGUN\n",
        "",
    ),
    Mutant(
        "an operation of a file does not become ENDED",
        "files/operation.pyx",
        "        self.stage = ENDED\n",
        "",
    ),
    # The states of a request on the software ring, and of what the threads do with it.
    Mutant(
        "on the software ring, a request does not become WAITING",
        "_softring/waits.c",
        "    request->state = SOFT_WAITING;\n",
        "",
    ),
    Mutant(
        "on the software ring, a request that leaves its watch stays WAITING",
        "_softring/waits.c",
        "    request->state = SOFT_NEW;\n",
        "",
    ),
    Mutant(
        "on the software ring, a request does not become GIVEN",
        "_softring/threads.c",
        "        request->state = SOFT_GIVEN;\n",
        "",
    ),
    Mutant(
        "on the software ring, a request that is withdrawn stays GIVEN",
        "_softring/threads.c",
        "        request->state = SOFT_NEW;\n",
        "",
    ),
    Mutant(
        "on the software ring, a second request does not become LINKED",
        "_softring/files.c",
        "        request->work = SOFT_WORK_LINKED;\n",
        "",
    ),
    Mutant(
        "on the software ring, work does not become QUEUED",
        "_softring/threads.c",
        "    chain->work = SOFT_WORK_QUEUED;\n",
        "",
    ),
    Mutant(
        "on the software ring, work that is withdrawn stays QUEUED",
        "_softring/threads.c",
        "    chain->work = SOFT_WORK_NONE;\n",
        "",
    ),
    Mutant(
        "on the software ring, work does not become RUNNING",
        "_softring/threads.c",
        "        chain->work = SOFT_WORK_RUNNING;\n",
        "",
    ),
    Mutant(
        "on the software ring, work does not become INTERRUPTED",
        "_softring/threads.c",
        "    request->work = SOFT_WORK_INTERRUPTED;\n",
        "",
    ),
    Mutant(
        "on the software ring, work does not become DISCARDED",
        "_softring/threads.c",
        "    request->work = SOFT_WORK_DISCARDED;\n",
        "",
    ),
    Mutant(
        "on the software ring, work does not become DONE",
        "_softring/threads.c",
        "        chain->work = SOFT_WORK_DONE;\n",
        "",
    ),
    Mutant(
        "the first read of TLS stays scheduled",
        "_tls/ssl_protocol.pyx",
        "        self.enter_state(OPEN)\n        try:\n",
        "        try:\n",
    ),
    Mutant(
        "what comes with the handshake of TLS is not delivered",
        "_tls/ssl_protocol.pyx",
        "            self.go_on_soon()\n            self.send_pending()\n",
        "            self.send_pending()\n",
    ),
    # Each transition in the drawing of _tls/ssl_protocol.pyx, and what TLS promises.
    Mutant(
        "the handshake of TLS does not begin",
        "_tls/ssl_protocol.pyx",
        "        self.enter_state(HANDSHAKE)\n",
        "",
    ),
    Mutant(
        "the handshake of TLS does not become TELLING",
        "_tls/ssl_protocol.pyx",
        "        self.enter_state(TELLING)\n",
        "",
    ),
    Mutant(
        "TLS does not become FIRST_READ",
        "_tls/ssl_protocol.pyx",
        "            self.enter_state(FIRST_READ)\n",
        "",
    ),
    Mutant(
        "the first bytes of TLS come before the program has its transport",
        "_tls/ssl_protocol.pyx",
        "            self.go_on_soon()\n            self.send_pending()\n",
        "            self.read_first()\n            self.send_pending()\n",
    ),
    Mutant(
        "the first read of TLS does not pass on the end behind it",
        "_tls/ssl_protocol.pyx",
        "            if self.at_eof:\n                self.loop.schedule(",
        "            if False:\n                self.loop.schedule(",
    ),
    Mutant(
        "a close of TLS within connection_made() is forgotten",
        "_tls/ssl_protocol.pyx",
        "        if self.state < TELLING or self.state > OPEN:\n            return 0\n",
        "        if self.state < FIRST_READ or self.state > OPEN:\n            return 0\n",
    ),
    Mutant(
        "a close of TLS before the first read is forgotten",
        "_tls/ssl_protocol.pyx",
        "        if self.state < TELLING or self.state > OPEN:\n            return 0\n",
        "        if self.state < TELLING or self.state == FIRST_READ or self.state > OPEN:\n"
        "            return 0\n",
    ),
    Mutant(
        "TLS does not answer close_notify",
        "_tls/ssl_protocol.pyx",
        "        self.tell_eof()\n        return self.begin_shutdown()\n",
        "        self.tell_eof()\n        return 0\n",
    ),
    Mutant(
        "the end of a stream of TLS without close_notify is not told",
        "_tls/ssl_protocol.pyx",
        "        elif self.state == OPEN:\n"
        "            self.begin_flush()\n"
        "            self.flush()\n",
        "",
    ),
    Mutant(
        "TLS does not become FLUSHING",
        "_tls/ssl_protocol.pyx",
        "        self.enter_state(FLUSHING)\n",
        "",
    ),
    Mutant(
        "TLS does not become SHUTDOWN",
        "_tls/ssl_protocol.pyx",
        "        self.enter_state(SHUTDOWN)\n",
        "",
    ),
    Mutant(
        "a close of TLS at the end of the stream waits for resume_reading()",
        "_tls/ssl_protocol.pyx",
        "        if self.state == FLUSHING:\n            return self.go_on_soon()\n",
        "        if self.state == FLUSHING:\n            return 0\n",
    ),
    Mutant(
        "TLS drops what is unread at its end while reading is paused",
        "_tls/ssl_protocol.pyx",
        "        if self.at_eof and self.app_reading_paused and not self.is_closed():\n"
        "            return 0\n"
        "        if self.loop.nestable:\n"
        "            self.go_on_soon()\n"
        "        self.read()\n"
        "        while self.state == FLUSHING and self.has_unread_end():\n",
        "        self.read()\n        while False:\n",
    ),
    Mutant(
        "TLS drops what a small buffer leaves unread at the end",
        "_tls/ssl_protocol.pyx",
        "        while self.state == FLUSHING and self.has_unread_end():\n",
        "        while False:\n",
    ),
    Mutant(
        "TLS within TLS fills a small buffer once at the end",
        "_tls/ssl_protocol.pyx",
        "            if type(self.transport) is SSLTransport and not self.app_reading_paused:\n",
        "            if False:\n",
    ),
    Mutant(
        "TLS goes on after a record that fails",
        "_tls/ssl_protocol.pyx",
        "        if self.state != ENDED:\n            self.records.raise_failure()\n",
        "",
    ),
    Mutant(
        "a close of TLS drops the writes that are held",
        "_tls/ssl_protocol.pyx",
        "        self.enter_state(FLUSHING)\n        self.keep_held()\n",
        "        self.enter_state(FLUSHING)\n        self.drop_writes()\n",
    ),
    Mutant(
        "the shutdown of TLS does not read what comes before close_notify",
        "_tls/ssl_protocol.pyx",
        "            if not self.at_eof and not self.drop_unread():\n",
        "            if not self.at_eof:\n",
    ),
    Mutant(
        "the shutdown of TLS answers an alert by close_notify",
        "_tls/ssl_protocol.pyx",
        "                raise\n            self.at_eof = True\n",
        "                raise\n",
        "tls/test_tls_ends.py::test_close_needs_no_close_notify_of_the_peer",
    ),
    Mutant(
        "the end of the stream does not end the shutdown of TLS",
        "_tls/ssl_protocol.pyx",
        "        elif self.state == SHUTDOWN:\n            self.do_shutdown()\n"
        "        return self.state == FLUSHING\n",
        "        return self.state == FLUSHING\n",
        "tls/test_tls_ends.py::test_close_needs_no_close_notify_of_the_peer",
    ),
    Mutant(
        "the shutdown of TLS leaves the transport below paused",
        "_tls/ssl_protocol.pyx",
        "        if self.reading_paused:\n"
        "            self.reading_paused = False\n"
        "            self.transport.resume_reading()\n",
        "",
    ),
    Mutant(
        "the shutdown of TLS does not go on with what the peer sends",
        "_tls/ssl_protocol.pyx",
        "        elif self.state == SHUTDOWN:\n            self.do_shutdown()\n        return 0\n",
        "        return 0\n",
    ),
    Mutant(
        "TLS does not close the transport below",
        "_tls/ssl_protocol.pyx",
        "                self.loop.call_soon(self.transport.close)\n",
        "                pass\n",
    ),
    Mutant(
        "a cancelled handshake of TLS does not end the connection",
        "_tls/ssl_protocol.pyx",
        "        if self.state == HANDSHAKE:\n            return self.abort(None)\n",
        "        if self.state == HANDSHAKE:\n            return 0\n",
    ),
    Mutant(
        "a handshake of TLS that fails does not become ENDED",
        "_tls/ssl_protocol.pyx",
        "        self.stop_timer()\n        self.enter_state(ENDED)\n",
        "        self.stop_timer()\n",
    ),
    Mutant(
        "a handshake of TLS that fails sends no alert",
        "_tls/ssl_protocol.pyx",
        "        self.enter_state(ENDED)\n        try:\n            self.pass_records()\n",
        "        self.enter_state(ENDED)\n        try:\n            pass\n",
    ),
    Mutant(
        "a handshake of TLS that fails goes on if its alert ends the run",
        "_tls/ssl_protocol.pyx",
        "        finally:\n            self.fail(\n",
        "        except ValueError:\n            pass\n        else:\n            self.fail(\n",
        "tls/test_tls_interruptions.py"
        "::test_a_refused_handshake_ends_after_the_alert_ended_the_run",
    ),
    Mutant(
        "TLS does not go on after its records have ended the run",
        "_tls/ssl_protocol.pyx",
        "            # The next run goes on.\n            self.go_on_soon()\n",
        "",
        "tls/test_tls_interruptions.py::test_the_connection_ends_after_close_notify_ended_the_run",
    ),
    Mutant(
        "the end of the stream in a handshake of TLS is no failure",
        "_tls/ssl_protocol.pyx",
        "            self.fail_handshake(ConnectionResetError())\n",
        "            pass\n",
    ),
    Mutant(
        "the end of the connection in a handshake of TLS does not wake the waiter",
        "_tls/ssl_protocol.pyx",
        "        self.stop_timer()\n        self.wake_waiter(exc)\n",
        "        self.stop_timer()\n",
    ),
    Mutant(
        "the end of the connection in a handshake of TLS is told to the program",
        "_tls/ssl_protocol.pyx",
        "        if self.state != HANDSHAKE and (self.told",
        "        if (self.told",
    ),
    Mutant(
        "an aborted TLS does not become ENDED",
        "_tls/ssl_protocol.pyx",
        "        self.enter_state(ENDED)\n        try:\n            self.release()\n",
        "        try:\n            self.release()\n",
    ),
    Mutant(
        "an abort of TLS does not reach the transport below",
        "_tls/ssl_protocol.pyx",
        "            if transport is not None:\n                transport._force_close(exc)\n",
        "            pass\n",
    ),
    Mutant(
        "TLS does not become ENDED when the connection is lost",
        "_tls/ssl_protocol.pyx",
        "        self.enter_state(ENDED)\n        self.use_transport(None)\n",
        "        self.use_transport(None)\n",
    ),
    Mutant(
        "TLS that fails does not become ENDED",
        "_tls/ssl_protocol.pyx",
        "            self.enter_state(ENDED)\n        if self.transport is not None:\n",
        "            pass\n        if self.transport is not None:\n",
    ),
    Mutant(
        "a bad record of TLS is not answered by an alert",
        "_tls/ssl_protocol.pyx",
        "            self.drop_writes()\n            try:\n                self.pass_records()\n",
        "            self.drop_writes()\n            try:\n                pass\n",
    ),
    Mutant(
        "a handshake of TLS does not time out",
        "_tls/ssl_protocol.pyx",
        "        self.timer = self.loop.call_later("
        "self.handshake_timeout, self._check_handshake_timeout)\n",
        "",
    ),
    Mutant(
        "the timer of a handshake of TLS is not stopped",
        "_tls/ssl_protocol.pyx",
        "        self.stop_timer()\n        if self.loop.in_debug_mode():\n",
        "        if self.loop.in_debug_mode():\n",
    ),
    Mutant(
        "a shutdown of TLS does not time out",
        "_tls/ssl_protocol.pyx",
        "        self.timer = self.loop.call_later("
        "self.shutdown_timeout, self._check_shutdown_timeout)\n",
        "",
    ),
    Mutant(
        "a timer of TLS outlives its connection",
        "_tls/ssl_protocol.pyx",
        "        self.stop_timer()\n        self.wake_waiter(exc)\n",
        "        self.wake_waiter(exc)\n",
    ),
    Mutant(
        "TLS does not know that it has called connection_made()",
        "_tls/ssl_protocol.pyx",
        "            self.told = CONNECTED\n",
        "",
    ),
    Mutant(
        "TLS tells the end twice",
        "_tls/ssl_protocol.pyx",
        "        self.told = AT_EOF\n",
        "",
    ),
    Mutant(
        "resume_reading() of TLS delivers nothing",
        "_tls/ssl_protocol.pyx",
        "            if self.state != TELLING and self.state != FIRST_READ:\n",
        "            if False:\n",
    ),
    Mutant(
        "TLS leaves the transport below paused",
        "_tls/ssl_protocol.pyx",
        "        elif size <= self.read_low_water:\n"
        "            self.reading_paused = False\n"
        "            self.transport.resume_reading()\n",
        "        elif size <= self.read_low_water:\n            self.reading_paused = False\n",
    ),
    Mutant(
        "TLS forgets what is written in the handshake",
        "_tls/ssl_protocol.pyx",
        "        if self.backlog_size and TELLING <= self.state <= FLUSHING:\n",
        "        if False:\n",
    ),
    Mutant(
        "TLS does not go on when the transport below has room",
        "_tls/ssl_protocol.pyx",
        "        self.writing_paused = False\n        self.send_pending()\n",
        "        self.writing_paused = False\n",
    ),
    Mutant(
        "TLS leaves the writes that wait when the transport below has room",
        "_tls/ssl_protocol.pyx",
        "        self.writing_paused = False\n        self.send_pending()\n",
        "        self.writing_paused = False\n        self.send_records()\n",
    ),
    Mutant(
        "close() of TLS forgets what waits for a full transport",
        "_tls/ssl_protocol.pyx",
        "(not self.writing_paused or self.state == FLUSHING)",
        "not self.writing_paused",
    ),
    Mutant(
        "TLS within TLS keeps what waits when the outer connection ends",
        "_tls/ssl_protocol.pyx",
        "                while self.backlog and self.encrypt_first(None):\n",
        "                while False:\n",
        "tls/test_start_tls.py"
        "::test_the_end_of_the_outermost_tls_follows_the_bytes_of_the_innermost",
    ),
    Mutant(
        "a closed connection of TLS resumes its writer before its records are sent",
        "_tls/ssl_protocol.pyx",
        "                and not (self.writing_paused and self.state >= FLUSHING)):\n",
        "                ):\n",
        "tls/test_tls_ends.py::test_close_resumes_the_writer_when_little_is_left",
    ),
    Mutant(
        "TLS writes the beginning of what waits again",
        "_tls/ssl_protocol.pyx",
        "        self.backlog_done += count\n",
        "",
    ),
    Mutant(
        "the shutdown of TLS does not wait for the peer's close_notify",
        "_tls/ssl_protocol.pyx",
        "            return self.send_records()\n        except Exception as exc:\n"
        "            try:\n                self.pass_records()\n",
        "            pass\n        except Exception as exc:\n"
        "            try:\n                self.pass_records()\n",
    ),
    Mutant(
        "a cancel that has missed its operation is not repeated",
        "_ring/ring.pyx",
        "            if op.unwanted:\n                self.cancel(op)\n",
        "            if False:\n                self.cancel(op)\n",
    ),
    Mutant(
        "EBUSY from io_uring_enter is not retried",
        "_ring/ring.pyx",
        "res == -EAGAIN or res == -EBUSY\n",
        "res == -EAGAIN\n",
    ),
    Mutant(
        "a thread that takes a call wakes no other one",
        "_loop/jobs.pyx",
        "        else:\n            self.wake_one()\n        return item\n",
        "        return item\n",
        "loop/test_default_executor.py"
        "::test_a_call_that_waits_does_not_keep_others_from_idle_threads",
    ),
    Mutant(
        "a thread of the pool performs call after call without a pause for others",
        "_loop/jobs.pyx",
        "                act_between_calls()\n",
        "",
        "loop/test_default_executor.py::test_functions_in_c_do_not_keep_the_loop_from_running",
    ),
    Mutant(
        "a turn runs callback after callback without a pause for others",
        "_turn/turn.pyx",
        "        if self.handles_run % HANDLES_BETWEEN_ACTS == 0:\n",
        "        if False:\n",
        "turn/test_functions_in_c.py",
    ),
    Mutant(
        "a cancelled call runs",
        "_loop/jobs.pyx",
        "        if self.awaited.cancelled():\n",
        "        if False:\n",
        "loop/test_default_executor.py::test_a_cancelled_call_does_not_run",
    ),
    Mutant(
        "a forked child counts the threads of its parent",
        "_loop/jobs.pyx",
        "            self.parked_count = 0\n",
        "",
        "loop/test_default_executor.py::test_a_forked_child_knows_that_the_threads_are_gone",
    ),
    Mutant(
        "the result of a call is given to nobody",
        "_loop/jobs.pyx",
        "            awaited.set_result(self.result)\n",
        "",
    ),
    Mutant(
        "a thread that has a slow name calls no other one",
        "_net/name_threads.h",
        "        if (threads->first)\n            name_call_thread(threads);\n",
        "",
        "net/test_slow_names.py::test_slow_names_do_not_stop_a_fast_one",
    ),
    Mutant(
        "a name that nobody awaits is resolved",
        "_net/names.pyx",
        "        handle = name_withdraw(self.asked)\n",
        "        handle = NULL\n",
        "net/test_slow_names.py::test_names_that_nobody_awaits_any_more_are_not_resolved",
    ),
    Mutant(
        "equal questions are asked twice",
        "_net/names.pyx",
        "        if equal is not None:\n            return equal\n",
        "",
        "net/test_slow_names.py::test_equal_questions_share_one_call",
    ),
    Mutant(
        "threads for names stay behind their loop",
        "_net/name_threads.h",
        "    while (!threads->first && !threads->closed && !timed_out) {\n",
        "    while (!threads->first && !timed_out) {\n",
        "net/test_slow_names.py::test_a_loop_that_closes_ends_its_threads",
    ),
    Mutant(
        "a forked child takes the lock of its parent's threads",
        "_net/names.pyx",
        "    return threads != NULL and threads.process != PROCESS\n",
        "    return False\n",
        "net/test_slow_names.py::test_a_forked_child_closes_a_loop_whose_thread_has_the_lock",
    ),
)


def build() -> None:
    """Compile the modules that have changed."""
    environment = {**os.environ, "URINGLOOP_DEBUG": "1"}
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=FOLDER, env=environment, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stdout[-2000:] + done.stderr[-2000:])


def simulate(seeds: int) -> str | None:
    """Run seeds until one fails; return the failure, or None."""
    status, printed = run("simulation.run", "--seeds", str(seeds), "--stop")
    if status == 0:
        return None
    told = [line for line in printed.splitlines() if line.startswith("found: ")]
    return told[0].removeprefix("found: ") if told else f"status {status}"


def run_test(test: str) -> str | None:
    """Run one test; return its name if it fails, or None."""
    options = ("-q", "-p", "no:cacheprovider", "-c", str(FOLDER / "pyproject.toml"))
    status, printed = run("pytest", *options, f"{FOLDER}/tests/{test}")
    if status > 1:
        # No test has run.
        raise SystemExit(printed[-2000:])
    return test.rpartition("::")[2] if status else None


def run(module: str, *arguments: str) -> tuple[int, str]:
    """Run *module* with the mutant; return its status and output."""
    with subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=FOLDER / "build",
        env={**os.environ, "PYTHONPATH": f"{FOLDER}:{FOLDER}/tests"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        process_group=0,
    ) as running:
        try:
            printed, _ = running.communicate(timeout=PATIENCE_S)
        except subprocess.TimeoutExpired:
            # Its workers end with it.
            os.killpg(running.pid, signal.SIGKILL)
            return -signal.SIGKILL, "found: does not end"
    return running.returncode, printed


def mutated(text: str, mutant: Mutant) -> str:
    """Return *text*, the contents of the mutant's file, with the bug in it."""
    lines = map(re.escape, mutant.right.splitlines(keepends=True))
    places = list(re.finditer(COMMENTS.join(lines), text, re.MULTILINE))
    if len(places) != 1:
        raise SystemExit(f"{mutant.name}: the code does not occur exactly once")
    begin, end = places[0].span()
    return text[:begin] + mutant.wrong + text[end:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=SEEDS, help="at most (%(default)s)")
    parser.add_argument("names", nargs="*", help="parts of mutants' names; all by default")
    options = parser.parse_args()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, FOLDER / name, ignore=shutil.ignore_patterns("*.so"))
        else:
            shutil.copy(source, FOLDER / name)
    build()
    if (how := simulate(options.seeds // 4)) is not None:
        print(f"without a mutant: {how}")
        return 1
    rows = ["| Mutant | In | Found, and how | |", "|---|---|---|---|"]
    missed = 0
    for mutant in MUTANTS:
        if options.names and not any(name in mutant.name for name in options.names):
            continue
        file = FOLDER / PACKAGE / mutant.file
        text = file.read_text()
        file.write_text(mutated(text, mutant))
        build()
        began = time.monotonic()
        how = run_test(mutant.test) if mutant.test else simulate(options.seeds)
        took = time.monotonic() - began
        file.write_text(text)
        missed += how is None
        rows.append(f"| {mutant.name} | `{mutant.file}` | {how or '**missed**'} | {took:.0f} s |")
        print(rows[-1], flush=True)
    (ROOT / "build" / "mutants.md").write_text("\n".join(rows) + "\n")
    print(f"{missed} missed")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
