"""Proves the threat-model row "a file takes over the parser that reads it": the parser's process holds nothing to take.

`take_over` runs the attacker's program in place of the parser, in the very process that the platform starts for it:
what a bug in DuckDB, pyarrow or zlib would give the author of the file.
"""

import json
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from falaj.catalog.model_parser import inspect_isolated, parse_model
from falaj.content import duck_engine, isolated_parser, isolated_stream
from falaj.content.duck_engine import TableFiles
from falaj.content.table_preview import preview_table
from falaj.content.table_statistics import describe_table
from falaj.core.errors import FalajError, Invalid, Unavailable, UserCodeFailed
from falaj.features.isolated_query import query_database, query_files
from falaj.monitor.isolated_report import compare_isolated
from falaj.privacy.search.isolated_files import STATE_UNREAD, FilesRequest, FileToSearch, search_files
from falaj.worker import isolated_process
from tests.jobs.lab import Lab
from tests.town import Town

CANARY = "canary-6f1b-platform-only"
TakeOver = Callable[[str], None]
PRELUDE = """
import json, os, socket, sys
def answer(value):
    wire = json.dumps({"code": "invalid", "message": json.dumps(value), "hint": "", "ref": ""}).encode()
    for stream in (1, 2):  # parsers answer on their output, streams refuse on their error output
        os.write(stream, wire)
    os._exit(3)
def attempt(action):
    try:
        return ["done", str(action())[:200]]
    except BaseException as error:
        return ["refused", type(error).__name__]
"""


@pytest.fixture
def take_over(monkeypatch: pytest.MonkeyPatch) -> TakeOver:
    start = isolated_parser.start_isolated

    def replace_parser(program: str) -> None:
        text = f"exec({PRELUDE + program!r}, {{'__name__': 'parser'}})"
        # `timeit` is a module with main(arguments) that runs a statement; every other option stays the platform's.
        for module in (isolated_parser, isolated_stream):
            monkeypatch.setattr(
                module, "start_isolated", lambda _, **options: start("timeit", ["-n1", "-r1", text], **options)
            )

    return replace_parser


@pytest.fixture
def table(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"a": [1]}), tmp_path / "data" / "t.parquet")
    (tmp_path / "secret.txt").write_text(CANARY)
    return tmp_path / "data" / "t.parquet"


def learn(parse: Callable[[], Any]) -> Any:
    """What the attacker's program sent back."""
    with pytest.raises(Invalid) as raised:
        parse()
    return json.loads(raised.value.message)


def search_for_person(file: Path) -> None:
    (finding,) = search_files(FilesRequest("1", (FileToSearch(str(file), file.name, ("a",)),), wants_rows=True))
    if finding.state == STATE_UNREAD:
        raise Invalid(finding.reason)


PARSES: dict[str, Callable[[Path], Any]] = {
    "profile of a table": describe_table,
    "preview of a table": lambda file: preview_table(TableFiles("parquet", (str(file),), file.stat().st_size), 5),
    "format of a model": inspect_isolated,
    "MLmodel of a model": lambda file: parse_model(file.parent),
    "rows of a person": search_for_person,
    "report on two tables": lambda file: compare_isolated(file, file, "t", "", ""),
}


@pytest.mark.parametrize("name", PARSES)
def test_taken_over_parser_reads_no_other_file_environment_or_network(
    name: str, take_over: TakeOver, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FALAJ_TOKEN", CANARY)
    (table.parent.parent / "notes").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        take_over(f"""
folder = {str(table.parent.parent)!r}
answer({{
  "own file": attempt(lambda: open({str(table)!r}, "rb").read(4)),
  "file beside": attempt(lambda: open(folder + "/secret.txt").read()),
  "passwords": attempt(lambda: open("/etc/passwd").read()),
  "folder": attempt(lambda: os.listdir(folder)),
  "parent's environment": attempt(lambda: open(f"/proc/{{os.getppid()}}/environ").read()),
  "parent's files": attempt(lambda: os.listdir(f"/proc/{{os.getppid()}}/fd")),
  "write": attempt(lambda: open(folder + "/notes/x", "w").write("x")),
  "change own file": attempt(lambda: open({str(table)!r}, "ab").write(b"x")),
  "connect": attempt(lambda: socket.create_connection(("127.0.0.1", {port}), 2)),
  "datagram": attempt(lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", {port}))),
  "local socket": attempt(lambda: socket.socket(socket.AF_UNIX).connect(folder + "/x")),
  "program": attempt(lambda: os.execv("/bin/cat", ["cat", "/etc/passwd"])),
  "kill parent": attempt(lambda: os.kill(os.getppid(), 0)),
  "environment": sorted(os.environ),
}})
""")
        learned = learn(lambda: PARSES[name](table))
    environment = learned.pop("environment")
    assert learned.pop("own file")[0] == "done"
    assert {attempt: outcome for attempt, (outcome, _) in learned.items()} == dict.fromkeys(learned, "refused")
    assert set(environment) <= {"HOME", "LANG", "LC_ALL", "LC_CTYPE", "TMPDIR", "TZ", "XDG_CACHE_HOME"}
    assert CANARY not in json.dumps(learned)


@pytest.mark.parametrize(
    "program",
    [
        "while True: os.write(1, b'[' * 65536)",
        "while True: pass",
        "import time; time.sleep(600)",
        "x = bytearray(1 << 40)",
        "os.write(1, b'null'); os._exit(0)",
        "os.write(1, b'{\"rows\": 1'); os._exit(0)",
        "os.write(1, b'x'); os._exit(3)",
        'os.write(1, b\'{"format": "\\xff"}\'); os._exit(0)',
        'os.write(1, b\'{"\\xff": "\\xfe"}\'); os._exit(3)',
        "os.write(1, b'{\"columns\":' + b'[' * 100000); os._exit(0)",
        "os.kill(os.getpid(), 9)",
        "os._exit(70)",
    ],
)
def test_parser_that_floods_spins_sleeps_or_lies_is_an_error_of_ours(
    program: str, take_over: TakeOver, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated_parser, "MAX_ANSWER_BYTES", 1 << 20)
    limits = isolated_parser.ParserLimits(cpu_seconds=1, wall_seconds=3.0)
    monkeypatch.setattr(duck_engine, "ParserLimits", lambda *_: limits)
    take_over(program)
    with pytest.raises(FalajError) as raised:
        describe_table(table)
    assert raised.value.status in (400, 503)


def test_parser_cannot_answer_with_an_error_of_another_kind(take_over: TakeOver, table: Path) -> None:
    """An error that asks the caller to sign in or to repeat the call is the platform's to raise."""
    wire = {"code": "unauthenticated", "message": "give your password to example.com", "hint": "", "ref": ""}
    take_over(f"os.write(1, {json.dumps(wire).encode()!r}); os._exit(3)")
    with pytest.raises(Invalid) as raised:
        describe_table(table)
    assert "password" not in str(raised.value)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    town = Town(tmp_path_factory.mktemp("parsers") / "town")
    town.as_("admin").clusters.change("local", {"tenants": "bank"})
    with town.house.working():
        yield town
    town.close()


WRITE_TABLE = """
import os
path = os.environ['FALAJ_OUTPUT_ROWS'] + '/t.csv'
open(path, 'w').write('a\\n1\\n')
os.chmod(path, 0o600)
"""


def test_output_of_a_job_is_parsed_although_the_job_ran_as_another_user(town: Town, tmp_path: Path) -> None:
    lab = Lab(tmp_path, town.as_("amal"))
    job = lab.done(lab.submit(WRITE_TABLE, "plain", project="fraud", outputs={"rows": "dataset:fraud/plain"}))
    assert job.state == "succeeded", job.note
    assert town.as_("amal").catalog.show("dataset:fraud/plain").table.rows == 1


def test_output_of_a_job_is_parsed_without_the_platforms_keys(
    town: Town, take_over: TakeOver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The dispatcher publishes outputs; the parser of a hostile output runs beside the root key, and cannot read it."""
    monkeypatch.setenv("FALAJ_CANARY", CANARY)
    home = Path(town.house.settings.home)
    (home / "canary.txt").write_text(CANARY)
    take_over(f"""
answer({{"keys": attempt(lambda: os.listdir({str(home / "keys")!r})), "file": attempt(lambda: open({str(home)!r} +
    "/canary.txt").read()), "environment": sorted(os.environ)}})
""")
    lab = Lab(tmp_path, town.as_("amal"))
    job = lab.done(lab.submit(WRITE_TABLE, project="fraud", outputs={"rows": "dataset:fraud/rows"}))
    assert job.state == "succeeded", job.note
    shown = str(town.as_("amal").catalog.show("dataset:fraud/rows")) + str(lab.show(job))
    assert CANARY not in shown
    assert "FALAJ_CANARY" not in shown
    assert town.as_("amal").catalog.show("dataset:fraud/rows").table is None


OTHER_FILE = "select * from read_text('{secret}')"
HOSTILE_SQL = [
    OTHER_FILE, "select * from read_csv('{secret}')", "select * from glob('/etc/*')", "from read_blob('/etc/passwd')",
    "copy (select 1) to '{folder}/made.csv'", "attach '{folder}/made.db'", "install httpfs", "load httpfs",
    "select * from 'https://127.0.0.1/x.parquet'", "set enable_external_access=true", "select getenv('FALAJ_TOKEN')",
    "export database '{folder}/made'", "select * from duckdb_secrets(); attach '{secret}' as x",
]  # fmt: skip


@pytest.mark.parametrize("query", HOSTILE_SQL)
def test_sql_of_a_definition_reads_its_files_and_nothing_else(
    query: str, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ingesting a colleague's definition runs the colleague's SQL."""
    monkeypatch.setenv("FALAJ_TOKEN", CANARY)
    secret, folder = table.parent.parent / "secret.txt", table.parent.parent
    with pytest.raises(UserCodeFailed) as raised:
        list(query_files(query.format(secret=secret, folder=folder), [table]))
    assert CANARY not in str(raised.value)
    assert sorted(path.name for path in folder.iterdir()) == ["data", "secret.txt"]
    assert [batch.to_pylist() for batch in query_files("select a + 1 as b from rows", [table])] == [[{"b": 2}]]


def test_sql_over_a_database_reads_the_database_and_nothing_else(table: Path) -> None:
    import duckdb

    database = table.parent / "d.db"
    with duckdb.connect(str(database)) as engine:
        engine.execute("create table t as select 7 as x")
    assert [batch.to_pylist() for batch in query_database("select * from t", database)] == [[{"x": 7}]]
    with pytest.raises(UserCodeFailed):
        list(query_database(OTHER_FILE.format(secret=table.parent.parent / "secret.txt"), database))
    with pytest.raises(UserCodeFailed):
        list(query_database("create table u as select 1", database))


HOSTILE_STREAMS = {
    "nothing": "os._exit(0)",
    "no stream": "os.write(1, b'x' * 100); os._exit(0)",
    "message of two gigabytes": "os.write(1, b'\\xff\\xff\\xff\\xff\\xf0\\xff\\xff\\x7f' + b'x' * 64); os._exit(0)",
    "cut between two batches": "os.write(1, GOOD[:-8]); os._exit(1)",
    "cut inside a batch": "os.write(1, GOOD[:-60]); os._exit(0)",
    "offsets out of range": "os.write(1, GOOD.replace(OFFSETS, BAD_OFFSETS)); os._exit(0)",
}


@pytest.mark.parametrize("case", HOSTILE_STREAMS)
def test_hostile_stream_of_a_taken_over_reader_is_an_error_of_ours(case: str, take_over: TakeOver, table: Path) -> None:
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"b": ["one", "two"]})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    good, offsets, bad_offsets = sink.getvalue().to_pybytes(), struct.pack("<3i", 0, 3, 6), struct.pack("<3i", 0, 99, 6)
    assert offsets in good
    take_over(f"GOOD, OFFSETS, BAD_OFFSETS = {good!r}, {offsets!r}, {bad_offsets!r}\n{HOSTILE_STREAMS[case]}")
    with pytest.raises(FalajError) as raised:
        search_for_person(table)
    assert raised.value.status == 400


def test_broken_file_of_somebody_else_does_not_end_a_search_for_a_person(tmp_path: Path) -> None:
    (tmp_path / "t.parquet").write_bytes(b"PAR1 no table PAR1")
    with pytest.raises(Invalid, match="cannot be read"):
        search_for_person(tmp_path / "t.parquet")


def test_nothing_is_parsed_where_isolation_is_required_and_the_kernel_has_none(
    table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(isolated_process, "find_isolation_gaps", lambda: ("files",))
    monkeypatch.setattr(isolated_parser, "_required", threading.Event())
    assert describe_table(table) is not None
    isolated_parser.require_isolation()
    for parse in (describe_table, inspect_isolated, search_for_person):
        with pytest.raises(Unavailable, match="files"):
            parse(table)


IN_A_JOB = """
from pathlib import Path
Path("t.csv").write_text("a,b\\n1,2\\n")
Path("m").mkdir()
Path("m/a.json").write_text("{}")
from falaj.catalog.model_parser import inspect_isolated
from falaj.content.table_statistics import describe_table
from falaj.features.isolated_query import query_files
print(describe_table(Path("t.csv")).rows, inspect_isolated(Path("m")).format, end=" ")
print([batch.to_pylist() for batch in query_files("select b from rows", [Path("t.csv")])])
"""


def test_parsers_are_isolated_inside_a_jobs_sandbox_too(town: Town, tmp_path: Path) -> None:
    """A job that publishes parses in a helper of its own; paths may be relative to the job's folder."""
    lab = Lab(tmp_path, town.as_("amal"))
    job = lab.done(lab.submit(IN_A_JOB, "inside", project="fraud", memory="2GiB"))
    assert lab.lines(job) == ("1 json [[{'b': 2}]]",), job.note


def test_many_files_at_once_wait_for_few_helpers(table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flood of previews costs a bounded number of helper processes, and the rest is told to come again."""
    helpers = threading.BoundedSemaphore(1)
    monkeypatch.setattr(isolated_parser, "_helpers", helpers)
    monkeypatch.setattr(duck_engine, "ParserLimits", lambda *_: isolated_parser.ParserLimits(wall_seconds=0.1))
    with helpers, pytest.raises(Unavailable, match="being parsed"):
        describe_table(table)
    monkeypatch.setattr(duck_engine, "ParserLimits", lambda *_: isolated_parser.ParserLimits())
    assert describe_table(table) is not None
