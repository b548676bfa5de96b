"""What users do with the command: work in a folder, start a server, sign in, pipe, and ask the doctor."""

import json
import shutil
import signal
import socket
import sqlite3
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from falaj.cli.output import format_cell, print_result, to_plain
from falaj.core.errors import NotFound
from falaj.core.label import Label
from falaj.core.ref import Ref
from falaj.core.replica_info import ReplicaInfo
from tests.cli.conftest import Run
from tests.servers.process import free_ports
from tests.servers.redis import RedisServer
from tests.servers.seaweed import SeaweedServer


def test_a_day_in_a_folder(falaj: Run, folder: Path) -> None:
    (folder / "sample.txt").write_bytes(b"hello\n")
    stored = falaj(
        "store", "put", "blob:fraud/sample", str(folder / "sample.txt"), "--label", "AE-PDPL,sensitive", "--json"
    )
    assert json.loads(stored.stdout) == "blob:fraud/sample@v1", stored.stderr
    assert falaj("store", "get", "blob:fraud/sample").stdout == "hello\n"
    assert falaj("store", "get", "blob:fraud/sample", "--out", str(folder / "back.txt")).returncode == 0
    assert (folder / "back.txt").read_bytes() == b"hello\n"
    assert falaj("store", "put", "blob:fraud/piped", "-", stdin="from a pipe").stdout == "blob:fraud/piped@v1\n"
    listed = falaj("store", "list")
    assert listed.stdout.splitlines()[0].startswith("ref\t")
    assert "AE-PDPL,sensitive" in listed.stdout
    assert {entry["ref"] for entry in json.loads(falaj("store", "list", "--json").stdout)["entries"]} >= {
        "blob:fraud/sample@v1"
    }
    assert not [path for path in folder.iterdir() if path.name.endswith(".part")]


def test_a_statement_is_the_object_where_json_is_asked_for(falaj: Run, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    assert falaj("catalog", "publish", "dataset:main/told", str(tmp_path)).returncode == 0
    for words, key in (((), "origins"), (("--form", "slsa"), "predicate"), (("--form", "cyclonedx"), "bomFormat")):
        told = falaj("--json", "catalog", "provenance", "dataset:main/told", *words)
        assert key in json.loads(told.stdout), told
    drawn = json.loads(falaj("catalog", "provenance", "dataset:main/told", "--form", "svg", "--json").stdout)
    assert drawn.startswith("<svg")


def test_what_is_required_may_come_by_flag(falaj: Run) -> None:
    assert falaj("people", "add", "--name", "noor", "--roles", "auditor", "--roles", "approver").returncode == 0
    assert falaj("people", "add", "hind", "auditor").returncode == 0
    people = {person["name"]: person for person in json.loads(falaj("people", "list", "--json").stdout)}
    assert set(people["noor"]["roles"]) == {"auditor", "approver"}


@pytest.mark.parametrize("words", [("logs", "JOB", "--follow"), ("logs", "-f", "JOB"), ("follow", "JOB")])
def test_logs_are_followed_by_the_words_of_other_tools(falaj: Run, words: tuple[str, ...]) -> None:
    name = f"job:fraud/says-{'-'.join(words).replace('--', '').lower()}"
    spec = {"command": ["/bin/echo", "all is well"], "roles": [{"name": "worker", "cpus": 0.1}]}
    assert falaj("jobs", "add", name, "--spec", json.dumps(spec)).returncode == 0
    said = falaj("jobs", *(name if word == "JOB" else word for word in words))
    assert "all is well" in said.stdout, said.stderr
    assert "succeeded" in said.stdout


@pytest.mark.parametrize("words", [("logs", "JOB", "--follow", "--json"), ("--json", "follow", "JOB")])
def test_what_is_followed_for_a_program_is_json_line_by_line(falaj: Run, words: tuple[str, ...]) -> None:
    name = f"job:fraud/tells-{len(words)}"
    spec = {"command": ["printf", r"one\n\xd9\x85 \"two\"\nthree"], "roles": [{"name": "worker", "cpus": 0.1}]}
    assert falaj("jobs", "add", name, "--spec", json.dumps(spec)).returncode == 0
    said = [
        json.loads(line)
        for line in falaj("jobs", *(name if word == "JOB" else word for word in words)).stdout.splitlines()
    ]
    assert said[:-1] == [{"line": "one"}, {"line": 'م "two"'}, {"line": "three"}]
    assert (said[-1]["ref"], said[-1]["state"]) == (name, "succeeded")


def test_what_is_said_twice_by_one_name_is_refused(falaj: Run) -> None:
    refused = falaj("jobs", "submit", "true", "--env", "A=1", "--env", "B=1", "--env", "A=2")
    assert (refused.returncode, "--env says 'A' twice" in refused.stderr) == (2, True)


def test_a_flag_that_a_desk_does_not_know_is_refused(falaj: Run) -> None:
    refused = falaj("serve", "logs", "endpoint:fraud/score", "--follow")
    assert refused.returncode == 2
    assert "--follow" in refused.stderr


def test_settings_say_where_each_came_from(falaj: Run) -> None:
    got = json.loads(falaj("settings", "--json", env={"FALAJ_ZONE": "ae-dubai"}).stdout)
    found = {row["setting"]: (row["value"], row["from"]) for row in got}
    assert found["zone"] == ("ae-dubai", "environment")
    assert found["listen"] == ("127.0.0.1:8470", "default")


def test_a_folder_that_the_environment_names_is_the_house_of_every_command(falaj: Run, tmp_path: Path) -> None:
    home, elsewhere = str(tmp_path / "named"), {"FALAJ_HOME": str(tmp_path / "other")}
    made = falaj("queues", "list", "--json", env={"FALAJ_URL": home, **elsewhere})
    assert made.returncode == 0, made.stderr
    got = json.loads(falaj("settings", "--json", env={"FALAJ_URL": home, **elsewhere}).stdout)
    found = {row["setting"]: (row["value"], row["from"]) for row in got}
    assert (found["home"], found["url"]) == ((home, "environment"), ("", "default"))
    assert falaj("upgrade", "check", env={"FALAJ_URL": home, **elsewhere}).returncode != NotFound.exit_code
    assert falaj("settings", "--json", "--at", f"{home}2", env={"FALAJ_URL": home}).stdout.count(f"{home}2") == 1
    told = json.loads(falaj("settings", "--json", env={"FALAJ_URL": "https://falaj.example"}).stdout)
    assert {row["setting"]: row["value"] for row in told}["url"] == "https://falaj.example"


def test_an_upgrade_is_looked_at_before_it_is_made(falaj: Run, tmp_path: Path) -> None:
    home = str(tmp_path / "older")
    absent = falaj("upgrade", "check", "--at", home)
    assert (absent.returncode, "there is no store yet" in absent.stderr) == (NotFound.exit_code, True)
    assert falaj("store", "backup", "--at", home, "--out", str(tmp_path / "backup")).returncode == 0
    well = falaj("upgrade", "check", "--at", home, "--json")
    assert well.returncode == 0, well.stdout
    assert {one["check"]: one["state"] for one in json.loads(well.stdout)} == dict.fromkeys(
        ("schema", "steps", "replicas", "backup"), "ok"
    )
    shelf = {"FALAJ_BACKUP_TO": f"dir:{tmp_path}/shelf"}
    kept = str(tmp_path / "kept")
    assert falaj("store", "preserve", "--at", kept, env=shelf).returncode == 0
    assert "MISS" not in falaj("upgrade", "check", "--at", kept).stdout
    assert "look" not in falaj("upgrade", "check", "--at", kept).stdout
    late = falaj("upgrade", "check", "--at", home, "--backup-hours", "0")
    assert (late.returncode, "MISS" in late.stdout) == (1, True)
    with closing(sqlite3.connect(f"{home}/ledger.db")) as raw, raw:
        raw.execute("UPDATE meta SET value = 99 WHERE name = 'schema'")
    assert falaj("upgrade", "check", "--at", home).returncode == 0
    with closing(sqlite3.connect(f"{home}/ledger.db")) as raw, raw:
        raw.execute("INSERT INTO meta (name, value) VALUES ('oldest', 98)")
    assert "use a newer version" in falaj("upgrade", "check", "--at", home).stdout
    owner = ReplicaInfo("a", "7.1.0", 99, "api", 1.0, "https://a").encode()
    with closing(sqlite3.connect(f"{home}/ledger.db")) as raw, raw:
        raw.execute("INSERT INTO leases VALUES ('replica:1', ?, 1, 9e9)", (owner,))
    assert "may not stand beside 7.1.0" in falaj("upgrade", "check", "--at", home).stdout


def test_the_doctor_finds_what_is_wrong(falaj: Run, tmp_path: Path) -> None:
    home = str(tmp_path / "sick")
    assert falaj("zones", "list", "--at", home).returncode == 0
    well = falaj("doctor", "--at", home, "--json")
    assert well.returncode == 0, well.stdout
    states = {finding["check"]: finding["state"] for finding in json.loads(well.stdout)}
    assert states["store"] == states["keys"] == states["permissions"] == states["disk"] == "ok"
    assert states["jobs"] == "RISK", "jobs of the folder's owner run without a sandbox"
    assert "jobs of the folder's owner run without a sandbox" in falaj("status", "--at", home).stdout
    Path(home).chmod(0o755)
    sick = falaj("doctor", "--at", home)
    assert sick.returncode == 1
    assert "chmod go-rwx" in sick.stdout
    Path(home).chmod(0o700)
    bad = falaj("doctor", "--at", home, env={"FALAJ_OIDC_ISSUER": "http://127.0.0.1:9"})
    assert bad.returncode == 1
    assert "identity provider" in bad.stdout


def test_the_doctor_creates_nothing(falaj: Run, tmp_path: Path, new_postgres: Callable[[], str]) -> None:
    home, url = tmp_path / "fresh", new_postgres()
    home.mkdir(mode=0o700)
    for store in (f"sqlite:{home}/ledger.db", url):
        told = falaj("doctor", "--at", str(home), "--json", env={"FALAJ_STORE": store})
        states = {finding["check"]: finding["state"] for finding in json.loads(told.stdout)}
        assert (told.returncode, states["store"], states["blobs"], states["keys"]) == (0, "look", "look", "look")
        assert list(home.iterdir()) == []
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone() == (0,)
    # Another home on the same store must not make root keys of its own.
    other = tmp_path / "other"
    assert falaj("zones", "list", "--at", str(other), env={"FALAJ_STORE": url}).returncode == 0
    told = falaj("doctor", "--at", str(home), env={"FALAJ_STORE": url})
    assert told.returncode == 1
    assert "replicas of one platform need the same root keys" in told.stdout
    assert list(home.iterdir()) == []


def test_the_doctor_names_why_objects_cannot_be_stored(falaj: Run, tmp_path: Path, s3_server: SeaweedServer) -> None:
    home, bucket = tmp_path / "objects", s3_server.create_bucket().url

    def examined(bucket: str, endpoint: str = s3_server.endpoint, **env: str) -> str:
        blobs = f"{bucket}/part?endpoint={endpoint}&region=us-east-1&allow_http=true"
        home.mkdir(mode=0o700, exist_ok=True)
        told = falaj("doctor", "--at", str(home), "--json", env={**s3_server.environment, "FALAJ_BLOBS": blobs, **env})
        return next(" ".join(each.values()) for each in json.loads(told.stdout) if each["check"] == "blobs")

    assert "ok an object was written, read and deleted" in examined(bucket)
    assert "the bucket of the blob store does not exist" in examined("s3://nosuch-bucket")
    refused = examined(bucket, AWS_SECRET_ACCESS_KEY="wrong")
    assert "FIX the blob store refuses our credentials: SignatureDoesNotMatch" in refused
    assert "AWS_ACCESS_KEY_ID" in refused
    assert "refuses the connection" in examined(bucket, "http://127.0.0.1:9")
    assert "its host name has no address" in examined(bucket, "http://nowhere.invalid:9")


def test_the_doctor_looks_at_redis_before_the_first_start(
    falaj: Run, tmp_path: Path, redis_server: RedisServer
) -> None:
    home = tmp_path / "fresh-online"
    home.mkdir(mode=0o700)

    def examined(url: str) -> str:
        told = falaj("doctor", "--at", str(home), "--json", env={"FALAJ_ONLINE": url})
        return next(" ".join(each.values()) for each in json.loads(told.stdout) if each["check"] == "online")

    assert "online ok answers" in examined(redis_server.url)
    assert "FIX Redis does not answer" in examined(f"redis://127.0.0.1:{next(free_ports())}/0")
    assert list(home.iterdir()) == []


@dataclass
class Up:
    url: str
    token: str
    process: subprocess.Popen[str]
    home: Path


def test_a_token_in_a_file_renews_itself(falaj: Run, tmp_path: Path) -> None:
    home, file = str(tmp_path / "scraped"), tmp_path / "falaj.token"
    made = falaj(
        "people", "add", "prometheus", "--service", "--roles", "auditor", "--projects", "metrics", "--at", home
    )
    assert made.returncode == 0, made.stderr
    issued = falaj("people", "token", "prometheus", "--hours", "1", "--renewable", "48", "--at", home, "--json")
    file.write_text(json.loads(issued.stdout)["token"] + "\n")
    file.chmod(0o640)
    tokens = {file.read_text()}
    for _ in range(2):
        renewed = falaj("renew-token", str(file), "--hours", "24", "--at", home)
        assert renewed.returncode == 0, renewed.stderr
        tokens.add(file.read_text())
        assert "fj_" not in renewed.stdout
    assert (len(tokens), stat.S_IMODE(file.stat().st_mode), list(tmp_path.glob(".*"))) == (3, 0o640, [])
    me = falaj("people", "whoami", "--json", "--at", home, env={"FALAJ_TOKEN": file.read_text().strip()})
    assert json.loads(me.stdout)["id"] == "prometheus"
    file.write_text("fj_0000000000000000_nobody-knows-it\n")
    refused = falaj("renew-token", str(file), "--at", home)
    assert refused.returncode == 3
    assert file.read_text() == "fj_0000000000000000_nobody-knows-it\n", "a failure leaves the file as it was"


@pytest.fixture(scope="module")
def up(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    home = tmp_path_factory.mktemp("up") / "home"
    up = start(home, environment, "--tls")
    with up.process:
        yield up
        up.process.terminate()
        assert up.process.wait(30) == 0


def start(home: Path, environment: dict[str, str], *flags: str) -> Up:
    command = [
        sys.executable,
        "-m",
        "falaj",
        "up",
        "--at",
        str(home),
        "--listen",
        "127.0.0.1:0",
        "--log",
        "ERROR",
        *flags,
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    url = process.stdout.readline().split()[-1]
    token = ""
    if "--tls" in flags:
        for line in process.stdout:
            token = line.strip() if line.startswith("  fj_") else token
            if line.startswith("For example"):
                break
    return Up(url, token, process, home)


def test_up_login_work_logout(falaj: Run, up: Up, environment: dict[str, str]) -> None:
    ca = str(up.home / "tls" / "ca.pem")
    assert falaj("login", up.url, stdin=up.token).returncode == 8  # nobody we trust signed it
    refused = falaj("login", up.url, "--ca", ca, stdin="fj_wrong")
    assert refused.returncode == 3, refused.stderr
    done = falaj("login", up.url, "--ca", ca, stdin=up.token)
    assert done.returncode == 0, done.stderr
    kept = Path(environment["XDG_CONFIG_HOME"]) / "falaj" / "credentials.json"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    where = json.loads(falaj("status", "--json").stdout)
    assert (where["at"], where["mode"]) == (up.url, "remote")
    assert [zone["id"] for zone in json.loads(falaj("zones", "list", "--json").stdout)] == ["home"]
    exported = falaj("env")
    assert f"export CURL_CA_BUNDLE={ca}" in exported.stdout
    assert up.token not in exported.stdout
    assert f"export MLFLOW_TRACKING_TOKEN={up.token}" in falaj("env", "--token").stdout
    assert falaj("login", up.url, "--ca", ca, "--as", "second", stdin=up.token).returncode == 0
    assert [row["name"] for row in json.loads(falaj("login", "--list", "--json").stdout)] == ["second", ""]
    assert falaj("login", "--use", "nobody").returncode != 0
    assert falaj("login", "--use", up.url).stdout.splitlines()[0].startswith("* second")
    assert falaj("logout", up.url, "--as", "second").returncode == 0
    kept.chmod(0o644)
    assert "can be read by others" in falaj("status").stderr
    kept.chmod(0o600)
    assert falaj("logout").returncode == 0
    assert up.token not in kept.read_text()


def test_a_token_from_the_environment_is_enough(falaj: Run, up: Up) -> None:
    env = {"FALAJ_URL": up.url, "FALAJ_TOKEN": up.token}
    got = falaj("people", "whoami", "--json", "--ca", str(up.home / "tls" / "ca.pem"), env=env)
    assert json.loads(got.stdout)["tenant"] == "house"


def test_the_token_is_shown_once_and_stopping_is_clean(environment: dict[str, str], tmp_path: Path) -> None:
    first = start(tmp_path / "home", environment)
    assert "fj_" in stopped(first, signal.SIGTERM)
    second = start(tmp_path / "home", environment)
    assert "fj_" not in stopped(second, signal.SIGINT)


def stopped(up: Up, how: signal.Signals) -> str:
    """What it had still to say, after ending well."""
    with up.process as process:
        process.send_signal(how)
        assert process.stdout is not None
        said = process.stdout.read()
        assert process.wait(30) == 0
    return said


def test_certificates_can_be_issued_and_shown(falaj: Run, up: Up) -> None:
    issued = json.loads(falaj("tls", "issue", "worker-7", "--at", str(up.home), "--json").stdout)
    assert Path(issued["cert"]).exists()
    assert json.loads(falaj("tls", "show", "--at", str(up.home), "--json").stdout)["trust"].endswith("ca.pem")


def test_a_reader_that_stops_reading_is_no_error(environment: dict[str, str]) -> None:
    command = f"{sys.executable} -m falaj completion bash | head -n 1; echo ${{PIPESTATUS[0]}}"
    got = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, check=True)
    assert got.stderr == ""
    assert got.stdout.splitlines()[-1] in ("0", "141")


def test_control_c_is_clean(environment: dict[str, str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "falaj", "zones", "list", "--at", url],
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        asked, _ = silent.accept()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=30)
        asked.close()
    assert (process.returncode, said.strip()) == (130, "")


@pytest.mark.parametrize(
    ("shell", "check"), [("bash", ["bash", "-n"]), ("zsh", ["zsh", "-n"]), ("fish", ["fish", "--no-execute"])]
)
def test_completion_scripts_parse(falaj: Run, folder: Path, shell: str, check: list[str]) -> None:
    script = folder / f"falaj.{shell}"
    script.write_text(falaj("completion", shell).stdout)
    assert "zones" in script.read_text()
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    assert subprocess.run([*check, str(script)], check=False).returncode == 0


def test_bash_completes_desks_verbs_and_flags(falaj: Run, folder: Path) -> None:
    script = folder / "complete.bash"
    script.write_text(falaj("completion", "bash").stdout)

    def completed(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in words)
        code = f"source {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _falaj; echo ${{COMPREPLY[@]}}"
        return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert "zones" in completed("falaj", "zo")
    assert completed("falaj", "zones", "reg") == ["regimes"]
    assert "--label" in completed("falaj", "store", "put", "--la")


def test_values_are_written_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    label = Label(frozenset({"AE-PDPL"}), 2, purposes=frozenset({"fraud"}))
    assert Label.parse(label.words) == label
    assert format_cell("at", 1_700_000_000.0) == "2023-11-14 22:13:20Z"
    assert format_cell("", (Ref.parse("a:b/c"), None, True)) == "a:b/c, , yes"
    assert to_plain({"x": frozenset({"b", "a"}), "y": (Ref.parse("a:b/c"),)}) == {"x": ["a", "b"], "y": ["a:b/c"]}
    print_result(None)
    print_result("text\twith a tab")
    print_result({"key": "a\nb"})
    assert capsys.readouterr().out == "done\ntext\twith a tab\nkey\ta b\n"


def test_env_names_the_gateway_for_triton_clients(falaj: Run) -> None:
    local = json.loads(falaj("env", "--json", env={"FALAJ_GATEWAY": "127.0.0.1:8999"}).stdout)
    assert local["TRITON_URL"] == "http://127.0.0.1:8999"
    named = json.loads(falaj("env", "--json", env={"FALAJ_GATEWAY_URL": "https://infer.example"}).stdout)
    assert named["TRITON_URL"] == "https://infer.example"
    remote = falaj("env", env={"FALAJ_URL": "https://falaj.example"}).stdout
    assert "TRITON_URL" not in remote
    assert "falaj serve url" in remote
