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
from falaj.core.settings import MailSettings
from falaj.flows.http_sender import LOOPBACK_HOSTS, SEND_TIMEOUT_S

MAILTO_PREFIX = "mailto:"
MAIL_INTERVAL_S = 60.0
MAX_EVENTS, MAX_VALUE_CHARS = 200, 300
_ADDRESS_PATTERN = re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9](?:[A-Za-z0-9.-]{0,251}[A-Za-z0-9])")
_CONTROL_PATTERN = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def parse_mailto(url: str) -> str:
    """The one address in a mailto: URL; nothing else may stand in it."""
    address = url.removeprefix(MAILTO_PREFIX)
    if not _ADDRESS_PATTERN.fullmatch(address) or ".." in address:
        raise Invalid("that is no address of mail", "mailto:ops@bank.example, one address and nothing else")
    return address


class Mailer(NamedTuple):
    """How mail leaves this installation."""

    settings: MailSettings
    password: Callable[[], str]
    tls: ssl.SSLContext | None = None

    def send(self, url: str, events: Sequence[Mapping[str, Any]], id_: str) -> int:
        """One message of many events; 250 when the server took it."""
        split_server = urlsplit(self.settings.server)
        if split_server.scheme not in ("smtp", "smtps") or not split_server.hostname:
            raise Unavailable("this installation sends no mail", "whoever runs it can set mail.server")
        message = compose_mail(events, self.settings.sender, parse_mailto(url), id_)
        try:
            with self._open_connection(split_server.scheme, split_server.hostname, split_server.port) as server:
                if self.settings.user:
                    server.login(self.settings.user, self.password())
                server.send_message(message)
        except (OSError, smtplib.SMTPException) as error:
            code = getattr(error, "smtp_code", "")
            raise Unavailable(
                f"mail was not taken: {type(error).__name__} {code}".strip(), "see mail.server"
            ) from error
        return 250

    def _open_connection(self, scheme: str, host: str, port: int | None) -> smtplib.SMTP:
        tls = self.tls or ssl.create_default_context()
        if scheme == "smtps":
            return smtplib.SMTP_SSL(host, port or 465, timeout=SEND_TIMEOUT_S, context=tls)
        server = smtplib.SMTP(host, port or 587, timeout=SEND_TIMEOUT_S)
        try:
            server.ehlo()
            if server.has_extn("starttls"):
                server.starttls(context=tls)
                server.ehlo()
            elif host not in LOOPBACK_HOSTS:
                raise smtplib.SMTPNotSupportedError("no STARTTLS")
        except (OSError, smtplib.SMTPException):
            server.close()
            raise
        return server


def compose_mail(events: Sequence[Mapping[str, Any]], sender: str, recipient: str, id_: str) -> EmailMessage:
    """The message. What events say comes into its text only, or as one clean line."""
    message = EmailMessage(policy=SMTP)
    first_title = f"{events[0]['type']} {events[0]['subject']}"
    message["Subject"] = to_single_line(
        f"[falaj] {first_title}" + (f" and {len(events) - 1} more" if len(events) > 1 else "")
    )[:200]
    message["From"], message["To"] = sender, recipient
    message["Date"] = format_datetime(localtime())
    message["Message-ID"] = f"<{re.sub('[^A-Za-z0-9]', '', id_)}@falaj.invalid>"
    message["Auto-Submitted"] = "auto-generated"
    event_texts = [
        "\n".join(
            [
                f"{event_body['time']}  {to_single_line(event_body['type'])}  {to_single_line(event_body['subject'])}",
                *_format_fields(event_body["data"]),
            ]
        )
        for event_body in events[:MAX_EVENTS]
    ]
    message.set_content("\n\n".join(event_texts) + "\n")
    return message


def to_single_line(text: str) -> str:
    """One line without anything that a terminal or a mail server could take for a command."""
    return _CONTROL_PATTERN.sub(" ", text)


def _format_fields(data: Mapping[str, Any]) -> list[str]:
    return [
        f"    {to_single_line(str(name))}: {to_single_line(str(value)[:MAX_VALUE_CHARS])}"
        for name, value in data.items()
    ]
