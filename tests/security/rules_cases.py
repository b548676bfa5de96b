"""Lines that the rules in rules.yml must find, and lines that they must leave alone. Never run, only read."""

# ruff: noqa: E401, F401, F821, I001, ICN001, PLW1510, S301, S307, S501, S506, S602, S605, S608, UP031
# mypy: ignore-errors
import asyncio, hashlib, http.client, http.server, os, pickle, ssl, subprocess
import httpx, numpy, torch, yaml
import requests  # finds: egress-has-one-door
from starlette.applications import Starlette
from falaj.console.markup import Html
from falaj.server import LocalClient


def shells(word, context, db, app, name):
    subprocess.run(f"ls {word}", shell=True, env={})  # finds: no-shell
    os.system("ls " + word)  # finds: no-shell
    asyncio.create_subprocess_shell(word)  # finds: no-shell
    subprocess.run(["ls", word], check=True, env={})

    pickle.loads(word)  # finds: no-code-in-data
    eval(word)  # finds: no-code-in-data
    numpy.load(word, allow_pickle=True)  # finds: no-code-in-data
    torch.load(word)  # finds: no-code-in-data
    torch.load(word, weights_only=True)
    numpy.load(word, allow_pickle=False)
    pickle.dumps(word)

    yaml.load(word, Loader=yaml.CLoader)  # finds: yaml-by-our-loader
    yaml.safe_load(word)

    httpx.Client()  # finds: egress-has-one-door
    http.client.HTTPConnection(word)  # finds: egress-has-one-door
    httpx.URL(word)

    db.execute(f"SELECT * FROM t WHERE a = '{name}'")  # finds: no-text-in-sql
    db.execute("SELECT * FROM t WHERE a = '%s'" % name)  # finds: no-text-in-sql
    db.execute("SELECT * FROM t WHERE a = ?", (name,))

    Html(name)  # finds: markup-escapes-by-itself
    Html(f"<b>{name}</b>")  # finds: markup-escapes-by-itself
    Html("\u2013")
    Html("a" if name else "b")

    httpx.get(word, verify=False)  # finds: certificates-are-checked, egress-has-one-door
    context.check_hostname = False  # finds: certificates-are-checked
    context.verify_mode = ssl.CERT_NONE  # finds: certificates-are-checked
    context.verify_mode = ssl.CERT_REQUIRED
    app.newest(verify=False)

    Starlette(routes=[])  # finds: routes-by-the-router
    app.mount(word, name)
    http.server.HTTPServer(word, name)  # finds: routes-by-the-router


def identities(request, table, other):
    header = request.headers.get(b"authorization", b"")
    table[header]  # finds: no-header-as-identity-key
    table.get(b"certificate " + header)  # finds: no-header-as-identity-key
    table.pop(request.headers["authorization"], None)  # finds: no-header-as-identity-key
    table[request.headers.get(b"cookie", b"")] = other  # finds: no-header-as-identity-key
    table.get(hashlib.sha256(read_bearer_token(header)).digest())
    request.headers.get(b"content-type", b"")
    table[other]


def processes(word, attempt, house, actor, self):
    subprocess.run([word])  # finds: processes-have-an-explicit-environment
    subprocess.Popen([word], stdin=subprocess.DEVNULL)  # finds: processes-have-an-explicit-environment
    asyncio.create_subprocess_exec(word)  # finds: processes-have-an-explicit-environment
    subprocess.run([word], env={"PATH": word})
    subprocess.Popen([word], env=dict(os.environ))
    asyncio.create_subprocess_exec(word, env={})

    if attempt.command[:3] == ("python", "-m", "falaj.infer"):  # finds: no-right-from-a-submitters-words
        return '"features"' in attempt.env.get("FALAJ_PARAM_SERVE", "")  # finds: no-right-from-a-submitters-words
    if attempt.kind == "replica":
        return attempt.tenant

    LocalClient(house, actor, word, "replica")  # finds: only-services-choose-the-kind-of-an-attempt
    house.context(actor, attempt_kind="replica")  # finds: only-services-choose-the-kind-of-an-attempt
    self.act(actor, word, "replica")  # finds: only-services-choose-the-kind-of-an-attempt
    self.act(actor, word)
    return LocalClient(house, actor, word)
