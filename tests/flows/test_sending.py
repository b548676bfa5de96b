"""The one way out: where it goes, where it never goes, and how long it waits."""

from pathlib import Path

import pytest

from falaj.core.errors import Denied, FalajError, Invalid, Unavailable
from falaj.flows.http_sender import WebhookPoster, is_private_allowed, is_public_address, parse_webhook_url
from tests.flows.receiver import HOST, free_port, receiving

NEAR = ("127.0.0.0/8",)
HOSTILE = [
    "127.0.0.1", "127.8.9.1", "0.0.0.0", "10.0.0.1",  # noqa: S104
    "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "100.100.100.200", "168.63.129.16", "192.0.0.192", "192.0.2.1", "198.18.0.1", "203.0.113.1", "224.0.0.1",
    "240.0.0.1", "255.255.255.255", "::1", "::", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254",
    "::ffff:10.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001::1", "2001:db8::1", "fc00::1",
    "fd00:ec2::254", "fe80::1", "fe80::1%eth0", "ff02::1", "nonsense", "", "2130706433", "0x7f.1",
]  # fmt: skip


@pytest.mark.parametrize("address", HOSTILE)
def test_no_name_leads_inside(address: str) -> None:
    asked: list[str] = []

    def resolver(host: str, port: int) -> list[str]:
        asked.append(host)
        return ["93.184.215.14", address]  # one good address among them changes nothing

    assert not is_public_address(address)
    with pytest.raises(Denied, match="not a place"):
        WebhookPoster(resolve=resolver, timeout_s=1.0).send("https://innocent.example/x", {}, b"{}")
    assert asked == ["innocent.example"]


def test_open_addresses_are_open_and_own_ones_are_those_that_are_said() -> None:
    assert all(map(is_public_address, ("93.184.215.14", "8.8.8.8", "2606:4700:4700::1111", "::ffff:8.8.8.8")))
    assert is_private_allowed("127.0.0.1", NEAR)
    assert is_private_allowed("::ffff:127.0.0.1", NEAR)
    assert not is_private_allowed("10.0.0.1", NEAR)
    assert not is_private_allowed("127.0.0.1", ())
    with pytest.raises(Invalid, match="no network"):
        is_private_allowed("127.0.0.1", ("here",))


BAD = [
    "http://hooks.bank.example/x", "https://hooks.bank.example:22/x", "https://u:p@hooks.bank.example/", "ftp://a/b",
    "https://", "https:///x", "file:///etc/passwd", "https://a\\b/", "https://a b/", "https://a/\r\nx: y", "gopher://a",
    "https://a/#f", "https://a:99999/", "https://[::1", "javascript:1", "//a/b", "https://xn--\u0661/",
    "https://a/" + "b" * 3000,
]  # fmt: skip


@pytest.mark.parametrize("url", BAD)
def test_what_is_no_address_of_a_hook_is_refused(url: str) -> None:
    with pytest.raises(Invalid):
        parse_webhook_url(url)


def test_plain_http_goes_to_this_machine_only_and_only_where_it_is_allowed() -> None:
    assert parse_webhook_url("http://127.0.0.1:8080/x", NEAR).port == 8080
    for url, private in (("http://127.0.0.1/x", ()), ("http://hooks.bank.example/x", NEAR)):
        with pytest.raises(Invalid):
            parse_webhook_url(url, private)
    with pytest.raises(Denied):  # an odd port of the open internet
        WebhookPoster(NEAR, resolve=lambda host, port: ["93.184.215.14"]).send(
            "https://hooks.bank.example:2222/", {}, b""
        )
    with pytest.raises(Denied):  # localhost that is not here
        WebhookPoster(NEAR, resolve=lambda host, port: ["10.0.0.1"]).send("http://localhost/", {}, b"")


def test_a_name_that_means_something_else_a_moment_later_changes_nothing(tmp_path: Path) -> None:
    with receiving(tmp_path) as receiver:
        answers = iter([["127.0.0.1"], ["169.254.169.254"]])
        post = WebhookPoster(NEAR, resolve=lambda host, port: next(answers), ca=str(tmp_path / "tls" / "ca.pem"))
        assert post.send(receiver.url(HOST), {"webhook-id": "a"}, b"{}") == 200
        headers, body, path = receiver.got[0]
        assert (headers["host"], body, path) == (f"{HOST}:{receiver.port}", b"{}", "/hear")
        with pytest.raises(Denied):
            post.send(receiver.url(HOST), {}, b"{}")
        with pytest.raises(Unavailable, match="SSLCertVerificationError"):  # another authority than we trust
            WebhookPoster(NEAR, resolve=lambda host, port: ["127.0.0.1"]).send(receiver.url(HOST), {}, b"{}")
        with pytest.raises(Unavailable, match="SSLCertVerificationError"):  # another name than it shows
            post._replace(resolve=lambda host, port: ["127.0.0.1"]).send(receiver.url("other.example"), {}, b"{}")
        assert len(receiver.got) == 1


def test_redirects_are_answers_and_not_orders() -> None:
    with receiving() as receiver, receiving() as other:
        receiver.answers, receiver.location = [302, 307], other.url()
        assert [WebhookPoster(NEAR).send(receiver.url(), {}, b"x") for _ in range(2)] == [302, 307]
        assert other.got == []


def test_who_answers_slowly_for_ever_is_left() -> None:
    with receiving() as receiver:
        receiver.drip = True
        with pytest.raises(Unavailable):  # it drips every 50 ms, for ever
            WebhookPoster(NEAR, timeout_s=0.4).send(receiver.url(), {}, b"x")


def test_nobody_there_and_bad_headers_are_said() -> None:
    with pytest.raises(Unavailable):
        WebhookPoster(NEAR, timeout_s=2.0).send(f"http://127.0.0.1:{free_port()}/", {}, b"x")
    with receiving() as receiver, pytest.raises(FalajError):
        WebhookPoster(NEAR).send(receiver.url(), {"x": "a\r\nhost: evil"}, b"x")
    assert receiver.got == []
