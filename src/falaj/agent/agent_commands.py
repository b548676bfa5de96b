"""Work: what the platform asks, done by the zone's own executor and store. Every order may come twice.

An attempt gets a token that is good at this agent's door and nowhere else; the platform's stays with the agent, who
renews it while the attempt runs.
"""

import base64
import hmac
import json
import re
import secrets
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from falaj.agent.agent_identity import write_private_file
from falaj.agent.platform_link import PlatformLink
from falaj.agent.zone_vault import ZoneVault
from falaj.api.agent_channel import TOKEN_PATH
from falaj.core.errors import Denied, FalajError, Invalid, NotFound
from falaj.core.executor import FINISHED_PHASES, Attempt, Executor, Slot, SupportsOutbox
from falaj.store.codec import from_plain, to_plain
from falaj.worker.launcher_archive import get_launcher_archive

MAX_LISTED_PIECES = 100_000
_ATTEMPT_ID_PATTERN = re.compile(r"[a-z0-9-]{1,60}")
UNEXPECTED_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    OSError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a faulty executor, or an order of another release, may raise beside our own errors."""


_LOCAL_ID_PREFIX = "fjz-"


class TokenMap:
    """Which local token stands for which of the platform's; kept, so that a restart of the agent ends no attempt."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._tokens_by_attempt: dict[str, dict[str, str]] = _read_json_file(path)
        self._derivation_secret = _load_secret(path.with_name("door.key"))

    def local(self, attempt_id: str, platform_token: str) -> str:
        """The token that an attempt is given for its own. It follows from the attempt, so that it need not be written
        down before the attempt begins: an order that comes twice gives the same."""
        derived = (
            base64.urlsafe_b64encode(hmac.digest(self._derivation_secret, attempt_id.encode(), "sha256"))
            .decode()
            .rstrip("=")
        )
        with self._lock:
            local_token = self._tokens_by_attempt.get(attempt_id, {}).get("local") or f"{_LOCAL_ID_PREFIX}{derived}"
            self._tokens_by_attempt = {
                **self._tokens_by_attempt,
                attempt_id: {"local": local_token, "real": platform_token},
            }
        return local_token

    def keep(self) -> None:
        """Write down what is known."""
        with self._lock:
            self._save_tokens(self._tokens_by_attempt)

    def real(self, local_token: str) -> str:
        """The platform's token behind a local one; what is not local is passed on as it is."""
        token_pairs = self._tokens_by_attempt.values()
        return next(
            (
                token_pair["real"]
                for token_pair in token_pairs
                if secrets.compare_digest(token_pair["local"], local_token)
            ),
            local_token,
        )

    def may_pass(self, token: str) -> bool:
        """False for a token of this door that it does not know; whose any other one is, the platform says."""
        return not token.startswith(_LOCAL_ID_PREFIX) or self.real(token) != token

    def renew(self, link: PlatformLink) -> None:
        """Every attempt's next token. One that cannot be had now is asked for again in time."""
        for attempt_id in list(self._tokens_by_attempt):
            self._renew_token(link, attempt_id)

    def revive(self, link: PlatformLink, local_token: str) -> bool:
        """The next token of the attempt that holds this one, which ended while the link was down; False without one."""
        return any(
            self._renew_token(link, attempt_id)
            for attempt_id, token_pair in list(self._tokens_by_attempt.items())
            if token_pair["local"] == local_token
        )

    def _renew_token(self, link: PlatformLink, attempt_id: str) -> bool:
        token_pair = self._tokens_by_attempt.get(attempt_id)
        if token_pair is None:
            return False
        body = json.dumps({"attempt": attempt_id, **_read_run_claims(token_pair["real"])}).encode()
        response = link.send("POST", TOKEN_PATH, {"content-type": "application/json"}, body)
        if response.status != 200:
            return False
        with self._lock:
            if attempt_id in self._tokens_by_attempt:
                self._save_tokens(
                    {**self._tokens_by_attempt, attempt_id: {**token_pair, "real": json.loads(response.body)["token"]}}
                )
        return True

    def forget(self, attempt_id: str) -> None:
        """It is over."""
        with self._lock:
            if attempt_id in self._tokens_by_attempt:
                self._save_tokens(
                    {name: token_pair for name, token_pair in self._tokens_by_attempt.items() if name != attempt_id}
                )

    def _save_tokens(self, tokens_by_attempt: dict[str, dict[str, str]]) -> None:
        write_private_file(self._path, json.dumps(tokens_by_attempt).encode(), is_durable=False)
        self._tokens_by_attempt = tokens_by_attempt


class HandleMap:
    """What the executor calls attempts, where it has names of its own; the platform calls them by their ids."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._handle_by_attempt: dict[str, str] = _read_json_file(path)

    def of(self, attempt_id: str) -> str:
        """The executor's handle."""
        return self._handle_by_attempt.get(attempt_id, attempt_id)

    def note(self, attempt_id: str, handle: str) -> None:
        """Remember it."""
        self._save_handles({**self._handle_by_attempt, attempt_id: handle})

    def forget(self, attempt_id: str) -> None:
        """It is settled."""
        if attempt_id in self._handle_by_attempt:
            self._save_handles({name: handle for name, handle in self._handle_by_attempt.items() if name != attempt_id})

    def _save_handles(self, handle_by_attempt: dict[str, str]) -> None:
        with self._lock:
            write_private_file(self._path, json.dumps(handle_by_attempt).encode(), is_durable=False)
            self._handle_by_attempt = handle_by_attempt


class AgentCommands:
    """Does one question at a time for each thread that asks."""

    def __init__(self, executor: Executor, vault: ZoneVault, home: Path, token_map: TokenMap, proxy_url: str) -> None:
        object_store = vault.store
        self._vault = vault
        self._executor = executor
        self._object_store = object_store
        self._token_map = token_map
        self._proxy_url = proxy_url
        self._home = home
        self._handles = HandleMap(home / "handles.json")
        self.tells_logs = True
        self._command_functions: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
            "capacity": lambda arguments: executor.capacity(),
            "launch": lambda arguments: self._launch_attempt(arguments["attempt"]),
            "poll": lambda arguments: self._poll_attempts(arguments["handles"]),
            "checkpoint": lambda arguments: executor.checkpoint(self._handles.of(arguments["handle"])),
            "stop": lambda arguments: executor.stop(self._handles.of(arguments["handle"]), arguments["grace_s"]),
            "logs": self._read_logs,
            "outbox": lambda arguments: self._read_outbox(arguments["handle"], arguments["after"]),
            "forget": lambda arguments: self._forget_attempt(arguments["handle"]),
            "stat": lambda arguments: {
                key: object_stat.size for key, object_stat in object_store.stat(arguments["keys"]).items()
            },
            "list": lambda arguments: self._list_pieces(arguments["prefix"]),
            "delete": lambda arguments: object_store.delete(arguments["key"]),
            "look": self._inspect_tree,
        }

    def do(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a question, as it goes back; an error is one, too."""
        request_number = str(command.get("id", ""))
        try:
            command_function = self._command_functions.get(str(command.get("do")))
            if command_function is None:
                raise Invalid("this agent does not know that question", "use the same release on both sides")
            return {"id": request_number, "result": to_plain(command_function(command["given"]))}
        except FalajError as error:
            error_fields = {"code": error.code, "message": error.message, "hint": error.hint, "ref": ""}
        except UNEXPECTED_ERRORS as error:
            error_fields = {
                "code": "unavailable",
                "message": f"the agent failed: {error!r:.200}",
                "hint": "see its log",
                "ref": "",
            }
        return {"id": request_number, "error": error_fields}

    def _launch_attempt(self, plain_attempt: Mapping[str, Any]) -> str:
        requested_attempt = _parse_attempt(plain_attempt)
        platform_env = dict(requested_attempt.platform_env)
        if platform_token := platform_env.get("FALAJ_TOKEN"):
            platform_env = {
                "FALAJ_TOKEN": self._token_map.local(requested_attempt.id, platform_token),
                "FALAJ_URL": self._proxy_url,
            }
        context = dict(requested_attempt.context)
        context["address"] = ""  # what it says is fetched from here, also after a time without a link
        for name in ("stage", "after"):
            commands: Any = context.get(name) or ()
            context[name] = [["-m", "falaj.agent.retry_command", *command_words] for command_words in commands]
        # The owner of the platform's folder is not the owner of this machine, so every attempt is sandboxed.
        attempt = replace(
            requested_attempt,
            by_owner=False,
            platform_env=platform_env,
            context=context,
            launcher=get_launcher_archive(),
        )
        handle = self._executor.launch(attempt)
        if platform_token:
            self._token_map.keep()
        if handle != requested_attempt.id:
            self._handles.note(requested_attempt.id, handle)
        return requested_attempt.id

    def _poll_attempts(self, attempt_ids: list[str]) -> Any:
        statuses = self._executor.poll([self._handles.of(attempt_id) for attempt_id in attempt_ids])
        for polled_id, status in zip(attempt_ids, statuses, strict=True):
            if status.phase in FINISHED_PHASES:
                self._token_map.forget(polled_id)
                self._delete_plain_files(polled_id)
        return [replace(status, handle=polled_id) for polled_id, status in zip(attempt_ids, statuses, strict=True)]

    def _delete_plain_files(self, attempt_id: str) -> None:
        """Nothing stays in the clear of what was brought to an attempt, or made by it and published; its logs do."""
        if _ATTEMPT_ID_PATTERN.fullmatch(attempt_id):
            for name in ("code", "inputs", "outputs", "transfer"):
                shutil.rmtree(self._home / "attempts" / attempt_id / name, ignore_errors=True)

    def _read_logs(self, arguments: Mapping[str, Any]) -> Any:
        if not self.tells_logs:
            raise Denied("this agent gives out no logs", "read them in the zone: they may hold what must not leave it")
        return self._executor.logs(
            self._handles.of(arguments["handle"]), arguments["slot"], arguments["after"], arguments["limit"]
        )

    def _read_outbox(self, handle: str, after: str) -> Any:
        if not isinstance(self._executor, SupportsOutbox):
            raise NotFound("this executor carries nothing", "its launchers tell the door themselves")
        return self._executor.outbox(self._handles.of(handle), after)

    def _forget_attempt(self, handle: str) -> None:
        self._token_map.forget(handle)
        self._executor.forget(self._handles.of(handle))
        self._handles.forget(handle)

    def _inspect_tree(self, arguments: Mapping[str, Any]) -> Any:
        """What the files of a tree are: found here, since nobody else can open them."""
        from falaj.catalog.model_inspection import inspect_files
        from falaj.snapshot.records import PublishedTree

        piece_locations = arguments["lies"]

        def fetch_bytes(digest: str, start: int, stop: int | None) -> Iterator[bytes]:
            storage_key, size = piece_locations[digest]
            return self._vault.get(
                arguments["tenant"], digest, storage_key, (start, min(size, size if stop is None else stop), size)
            )

        return inspect_files(from_plain(PublishedTree, arguments["tree"]), fetch_bytes, arguments["files"])

    def _list_pieces(self, prefix: str) -> list[tuple[str, int]]:
        pieces = [
            (object_stat.key, object_stat.size)
            for object_stat, _ in zip(self._object_store.list(prefix), range(MAX_LISTED_PIECES + 1), strict=False)
        ]
        if len(pieces) > MAX_LISTED_PIECES:
            raise Invalid(f"more than {MAX_LISTED_PIECES} pieces lie here", "ask for a prefix")
        return pieces


def _read_json_file(path: Path) -> dict[str, Any]:
    """What is written down of attempts that run. It ends with the machine, and so do they."""
    try:
        stored: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return stored


def _load_secret(path: Path) -> bytes:
    """What local tokens follow from; made once, and known to this agent only."""
    if not path.exists():
        write_private_file(path, secrets.token_bytes(32))
    return path.read_bytes()


def _read_run_claims(token: str) -> dict[str, str]:
    """Which run of which tenant a token is for."""
    payload_part = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload_part + "=" * (-len(payload_part) % 4)))
    return {"tenant": str(claims["tenant"]), "run": str(claims["run"])}


def _parse_attempt(plain_attempt: Mapping[str, Any]) -> Attempt:
    slots = tuple(Slot(**{**slot, "devices": tuple(slot["devices"])}) for slot in plain_attempt["slots"])
    return Attempt(**{**plain_attempt, "slots": slots, "command": tuple(plain_attempt["command"])})
