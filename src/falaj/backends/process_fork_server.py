"""Our end of the nursery (falaj.worker.fork_server): one process beside us that starts launchers fast."""

import contextlib
import json
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import IO, Any, NamedTuple, cast

import msgspec

from falaj.core.errors import Unavailable
from falaj.core.minimal_environment import get_minimal_environment

_SERVER_SOURCE = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); from falaj.worker.fork_server import main; sys.exit(main())"
)
_SOURCES_FOLDER = str(Path(__file__).parents[2])
_REPLY_TIMEOUT_S = 20
_MAX_PIPE_BYTES = 48 << 10
"""So many bytes of requests we let lie in the pipe, which takes a little more: nobody waits to be read."""


class LaunchRequest(NamedTuple):
    """A launcher that is wanted. Where there is a document, it is what the launcher finds in `context`, and lays down
    there."""

    context: str
    slot: int
    env: Mapping[str, str]
    document: Mapping[str, Any]

    @property
    def log(self) -> str:
        """Where the launcher itself writes."""
        return f"{self.context.rpartition('/')[0]}/slot-{self.slot}.launcher.log"

    def failed(self, reason: str) -> Unavailable:
        """It did not happen."""
        return Unavailable(f"the launcher of slot {self.slot} did not start: {reason}", f"see {self.log}")


class ForkServerClient:
    """Started when first needed, and again when it is gone."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._reply_socket: socket.socket | None = None
        self._lock = Lock()

    def begin(self, launch_requests: Sequence[LaunchRequest]) -> list[str]:
        """Start launchers, one after the other. By each, nothing: its slot is claimed; or why that did not happen."""
        with self._lock:
            return self._exchange_requests([_encode_request(launch_request) for launch_request in launch_requests])

    def close(self) -> None:
        """End it; the launchers go on."""
        process, self._process = self._process, None
        reply_socket, self._reply_socket = self._reply_socket, None
        if reply_socket is not None:
            reply_socket.close()
        if process is not None and process.stdin:
            with contextlib.suppress(OSError):
                process.stdin.close()
            process.kill()
            process.wait()

    def _exchange_requests(self, requests: Sequence[bytes]) -> list[str]:
        """What each was answered. Others are asked for before the first has answered, as long as the pipe takes them:
        whoever sleeps between two of them finds nothing of its own in the processor's memory again."""
        replies, sent_count, free_bytes, default_error, partial_line = list[str](), 0, _MAX_PIPE_BYTES, "no answer", b""
        try:
            request_pipe, reply_socket = self._ensure_process()
            while len(replies) < len(requests):
                while sent_count < len(requests) and (
                    len(requests[sent_count]) <= free_bytes or sent_count == len(replies)
                ):
                    request_pipe.write(requests[sent_count])
                    free_bytes -= len(requests[sent_count])
                    sent_count += 1
                # An answer is a byte at least, and most are no more: we sleep until all may be there.
                chunk = reply_socket.recv(sent_count - len(replies), socket.MSG_WAITALL)
                if not chunk:
                    break
                *lines, partial_line = (partial_line + chunk).split(b"\n")
                for line in lines:
                    free_bytes += len(requests[len(replies)])
                    replies.append(line.decode(errors="replace").strip())
        except OSError as error:
            if not isinstance(error, BlockingIOError):  # that is the end of our patience
                default_error = str(error.strerror)
        if len(replies) < len(requests):
            # It hangs or is gone: whether a slot began, its own files tell; another nursery is for the next.
            self.close()
        return replies + [default_error] * (len(requests) - len(replies))

    def _ensure_process(self) -> tuple[IO[bytes], socket.socket]:
        if self._process is None or self._reply_socket is None or self._process.poll() is not None:
            self.close()
            command = [sys.executable, "-I", "-S", "-c", _SERVER_SOURCE, _SOURCES_FOLDER]
            # Of a socket, and not of a pipe, so many bytes can be waited for at once.
            self._reply_socket, child_socket = socket.socketpair()
            self._reply_socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", _REPLY_TIMEOUT_S, 0))
            with child_socket:
                self._process = subprocess.Popen(  # noqa: S603  # nosec B603 - our own interpreter with our own words
                    command,
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=child_socket.fileno(),
                    env=get_minimal_environment(),
                    start_new_session=True,
                )
        return cast(IO[bytes], self._process.stdin), self._reply_socket


def _encode_request(launch_request: LaunchRequest) -> bytes:
    request_fields = {**launch_request._asdict(), "log": launch_request.log}
    try:
        encoded = msgspec.json.encode(request_fields)
    except UnicodeEncodeError:  # a variable of ours that is no text
        encoded = json.dumps(request_fields).encode()
    return len(encoded).to_bytes(4, "big") + encoded
