"""Mail: events of a minute in one message, over TLS."""

import re
import smtplib
import ssl
from collections.abc import Callable, Mapping, Sequence
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime, localtime
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from falaj.core.errors import Invalid, Unavailable
from falaj.core.settings import Mail
from falaj.flows.sending import LOOPBACK, TIMEOUT_S

MAILTO = "mailto:"
EVERY_S = 60.0
MOST_EVENTS, MOST_VALUE = 200, 300
_ADDRESS = re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def read_mailto(url: str) -> str:
    """The one address in a mailto: URL; nothing else may stand in it."""
    address = url.removeprefix(MAILTO)
    if not _ADDRESS.fullmatch(address) or ".." in address:
        raise Invalid("that is no address of mail", "mailto:ops@bank.example, one address and nothing else")
    return address


class Mailer(NamedTuple):
    """How mail leaves this installation."""

    settings: Mail
    password: Callable[[], str]
    tls: ssl.SSLContext | None = None

    def send(self, url: str, events: Sequence[Mapping[str, Any]], id_: str) -> int:
        """One message of many events; 250 when the server took it."""
        parts = urlsplit(self.settings.server)
        if parts.scheme not in ("smtp", "smtps") or not parts.hostname:
            raise Unavailable("this installation sends no mail", "whoever runs it can set mail.server")
        message = written(events, self.settings.sender, read_mailto(url), id_)
        try:
            with self._connected(parts.scheme, parts.hostname, parts.port) as server:
                if self.settings.user:
                    server.login(self.settings.user, self.password())
                server.send_message(message)
        except (OSError, smtplib.SMTPException) as error:
            code = getattr(error, "smtp_code", "")
            raise Unavailable(
                f"mail was not taken: {type(error).__name__} {code}".strip(), "see mail.server"
            ) from error
        return 250

    def _connected(self, scheme: str, host: str, port: int | None) -> smtplib.SMTP:
        tls = self.tls or ssl.create_default_context()
        if scheme == "smtps":
            return smtplib.SMTP_SSL(host, port or 465, timeout=TIMEOUT_S, context=tls)
        server = smtplib.SMTP(host, port or 587, timeout=TIMEOUT_S)
        try:
            server.ehlo()
            if server.has_extn("starttls"):
                server.starttls(context=tls)
                server.ehlo()
            elif host not in LOOPBACK:
                raise smtplib.SMTPNotSupportedError("no STARTTLS")
        except (OSError, smtplib.SMTPException):
            server.close()
            raise
        return server


def written(events: Sequence[Mapping[str, Any]], sender: str, to: str, id_: str) -> EmailMessage:
    """The message. What events say comes into its text only, or as one clean line."""
    message = EmailMessage(policy=SMTP)
    first = f"{events[0]['type']} {events[0]['subject']}"
    message["Subject"] = line(f"[falaj] {first}" + (f" and {len(events) - 1} more" if len(events) > 1 else ""))[:200]
    message["From"], message["To"] = sender, to
    message["Date"] = format_datetime(localtime())
    message["Message-ID"] = f"<{re.sub('[^A-Za-z0-9]', '', id_)}@falaj.invalid>"
    message["Auto-Submitted"] = "auto-generated"
    shown = [
        "\n".join([f"{one['time']}  {line(one['type'])}  {line(one['subject'])}", *_said(one["data"])])
        for one in events[:MOST_EVENTS]
    ]
    message.set_content("\n\n".join(shown) + "\n")
    return message


def line(text: str) -> str:
    """One line without anything that a terminal or a mail server could take for a command."""
    return _CONTROL.sub(" ", text)


def _said(data: Mapping[str, Any]) -> list[str]:
    return [f"    {line(str(name))}: {line(str(value)[:MOST_VALUE])}" for name, value in data.items()]
