"""Mail over real SMTP: one message a minute, TLS or nothing, and no header but ours."""

import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from email import message_from_bytes
from email.policy import default
from pathlib import Path
from typing import Any

import pytest

from falaj.api.tls import ensure_local_certificate
from falaj.core.errors import Invalid, Unavailable
from falaj.core.settings import MailSettings
from falaj.flows.event_mail import Mailer, compose_mail, parse_mailto
from tests.flows.hooks_ground import HOOK, Telling

EVENT = {"type": "ae.falaj.monitor.alert", "subject": "endpoint:fraud/score@r1", "time": "t", "data": {"said": "drift"}}


@dataclass
class Smtp:
    """A small server of mail: what it took, and whether it offers TLS."""

    port: int
    tls: ssl.SSLContext | None
    took: list[bytes] = field(default_factory=list)
    words: list[str] = field(default_factory=list)

    def talk(self, connection: socket.socket, secure: bool = False) -> None:
        lines = connection.makefile("rwb")
        say = lambda text: (lines.write(text.encode() + b"\r\n"), lines.flush())  # noqa: E731
        if not secure:
            say("220 here")
        while line := lines.readline().decode().strip():
            word = line.upper().split(" ")[0]
            self.words.append(line)
            if word == "EHLO":
                offers = "" if secure or self.tls is None else "250-STARTTLS\r\n"
                say(f"250-here\r\n{offers}250 AUTH PLAIN")
            elif word == "STARTTLS" and self.tls is not None:
                say("220 go on")
                with self.tls.wrap_socket(connection, server_side=True) as wrapped:
                    self.talk(wrapped, secure=True)
                return
            elif word == "DATA":
                say("354 go on")
                data = b""
                while not data.endswith(b"\r\n.\r\n"):
                    data += lines.readline()
                self.took.append(data[:-5])
                say("250 taken")
            else:
                say("235 welcome" if word == "AUTH" else "221 bye" if word == "QUIT" else "250 well")


@contextmanager
def mailing(home: Path | None = None) -> Iterator[Smtp]:
    tls = None
    if home is not None:
        made = ensure_local_certificate(str(home), ("localhost", "127.0.0.1"), time.time())
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(made.cert, made.key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Smtp(listener.getsockname()[1], tls)

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection, suppress(OSError):
                    server.talk(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield server
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def test_it_is_sent_by_tls_with_a_password(tmp_path: Path) -> None:
    with mailing(tmp_path) as server:
        trusting = ssl.create_default_context(cafile=str(tmp_path / "tls" / "ca.pem"))
        settings = MailSettings(f"smtp://localhost:{server.port}", "falaj@bank.example", "falaj")
        assert Mailer(settings, lambda: "pass", trusting).send("mailto:ops@bank.example", [EVENT], "x-1") == 250
        taken = message_from_bytes(server.took[0], policy=default)
        assert (taken["to"], taken["from"]) == ("ops@bank.example", "falaj@bank.example")
        assert taken["subject"] == "[falaj] ae.falaj.monitor.alert endpoint:fraud/score@r1"
        assert "said: drift" in taken.get_content()
        assert server.words.index("STARTTLS") < next(n for n, one in enumerate(server.words) if one.startswith("AUTH"))
        with pytest.raises(Unavailable, match="SSLCertVerificationError"):
            Mailer(settings, lambda: "pass").send("mailto:ops@bank.example", [EVENT], "x")


def test_without_tls_nothing_leaves_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    with mailing() as server:
        real = socket.getaddrinfo  # a name that is not of this machine leads to it all the same
        monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **rest: real("127.0.0.1", *more, **rest))
        far = Mailer(MailSettings(f"smtp://mail.bank.example:{server.port}", "falaj@bank.example"), str)
        with pytest.raises(Unavailable, match="SMTPNotSupportedError"):
            far.send("mailto:ops@bank.example", [EVENT], "x")
        assert server.took == []
        near = Mailer(MailSettings(f"smtp://127.0.0.1:{server.port}", "falaj@bank.example"), str)
        assert near.send("mailto:ops@bank.example", [EVENT], "x") == 250
    with pytest.raises(Unavailable):
        Mailer(MailSettings(), str).send("mailto:ops@bank.example", [EVENT], "x")


@pytest.mark.parametrize(
    "url",
    ["mailto:", "mailto:a", "mailto:a@b", "mailto:a@b.c\r\nbcc: d@e.f", "mailto:a@b.example?bcc=d@e.f",
     "mailto:a@b.e,c@d.e", "mailto:<a@b.example>", "mailto:a@b..example", "mailto:\u0661@b.example",
     "mailto:a b@c.example"],
)  # fmt: skip
def test_one_address_and_nothing_else(url: str) -> None:
    with pytest.raises(Invalid):
        parse_mailto(url)


def test_what_events_say_makes_no_headers() -> None:
    evil = "x\r\nBcc: all@bank.example\r\n\r\nhello\u2028there\x1b[2J"
    made: Any = compose_mail([{**EVENT, "subject": evil, "data": {evil: evil}}] * 3, "a@b.example", "c@d.example", evil)
    parsed = message_from_bytes(bytes(made), policy=default)
    assert parsed["bcc"] is None
    assert set(parsed.keys()) >= {"Subject", "From", "To", "Message-ID"}
    assert "and 2 more" in parsed["subject"]
    assert "\x1b" not in parsed.get_content()


def test_a_minute_of_events_is_one_message(tmp_path: Path) -> None:
    with mailing() as server:
        mail = {"mail.server": f"smtp://127.0.0.1:{server.port}", "mail.sender": "falaj@bank.example"}
        telling = Telling(tmp_path / "town", **mail)
        telling.mona.flows.hook(HOOK, "mailto:ops@bank.example", ("monitor.alert",))
        telling.turn()
        for number in range(5):
            telling.say("monitor.alert", "endpoint:fraud/score", said=f"number {number}")
        telling.until(lambda: telling.view().sent == 5)
        telling.say("monitor.alert", "endpoint:fraud/score", said="later")
        for _ in range(3):
            telling.turn()
        assert len(server.took) == 1
        telling.later_s += 61
        telling.until(lambda: telling.view().sent == 6)
        assert len(server.took) == 2
        assert b"and 4 more" in server.took[0]
        telling.loop.close()
        telling.town.close()
