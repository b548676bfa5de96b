"""Access and portability: everything the platform holds of one person, and of nobody else, as files that are signed.

Rows of views and tables come as Parquet, as they are; what was asked of models, consents and where copies lie as JSON.
What cannot be searched is named in the answer. It reads by the rights of whoever runs it.
"""

import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar

from falaj.asof.keys import partition_of
from falaj.asof.rows import open_part, rows_of
from falaj.catalog.reading import open_version
from falaj.core.data import dataclass
from falaj.core.errand import Here, errand
from falaj.core.errors import Denied, Invalid
from falaj.core.ref import Ref
from falaj.features.chapters import open_chapter
from falaj.features.rewriting import PARQUET, Person, files_of, person_of
from falaj.features.stream import Arrival, dataset_of, schema_of
from falaj.privacy.erasing import endpoints_of, entities_of
from falaj.privacy.isolated_rows import find_rows
from falaj.privacy.records import ACCESS, PORTABILITY, Request
from falaj.privacy.shelf import digest_of
from falaj.privacy.tables import datasets_of, keys_of_people, naming, people_in
from falaj.store.codec import to_plain

_EVER_S = 4e9


@dataclass(frozen=True, slots=True)
class Answer:
    """What was written for a person."""

    COLUMNS: ClassVar = ("request", "folder", "files", "rows", "unsearched")

    request: Ref
    folder: str
    files: int
    rows: int
    unsearched: tuple[str, ...]
    manifest: str
    """The digest that was signed: falaj privacy answer --answer takes it."""


@errand
def access(
    here: Here,
    request: Annotated[Ref, "which request, of type access or portability"],
    subject: Annotated[str, "who, by the identifier that the data carries; compared with the request's pseudonym"],
    out: Annotated[str, "a new folder for the answer"],
) -> Answer:
    """Write everything that is held of a person into a folder: JSON and Parquet, with a signed manifest.

    Rows of every view, tables with a column that names people, requests that endpoints kept, consents, and where copies
    of these lie. Nothing of anybody else is in it.

    Example:
        falaj privacy access subject-request:privacy/0199d2f0 784-1990-1234567-1 --out answer
    """
    asked: Request = here.privacy.request(request)
    if asked.type not in (ACCESS, PORTABILITY):
        raise Invalid(f"{request} asks for {asked.type}", "access and portability are answered so", request)
    if asked.person != here.privacy.pseudonym(subject):
        raise Denied("this is not the person who asked", "check the identifier, letter by letter", request)
    folder = Path(out)
    if folder.exists() and any(folder.iterdir()):
        raise Invalid(f"{folder.name} is not empty", "name a new folder")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = _Found(here, subject, folder)
    found.views()
    found.tables()
    found.write("answer.json", _told(here, asked, found, subject))
    return _signed(here, asked, folder, found)


class _Found:
    """What was found so far, and the folder it goes to."""

    def __init__(self, here: Here, subject: str, folder: Path) -> None:
        self.here, self.subject, self.folder = here, subject, folder
        self.rows, self.unsearched = 0, list[str]()
        self.held: dict[str, dict[str, Any]] = {}

    def views(self) -> None:
        """Rows of every view of every entity that is about people."""
        for _, arrivals in entities_of(self.here, self.subject, people_in(self.here)):
            person = person_of(arrivals[0].entity, self.subject)
            for arrival in {dataset_of(one.stream): one for one in arrivals}.values():
                self._keep(arrival.view, list(_rows(self.here, arrival, person)), _where(arrival))

    def tables(self) -> None:
        """Rows of every version of every table that has a column which names people."""
        known: dict[str, list[Any]] = {}
        keys = keys_of_people(self.here)
        for version in datasets_of(self.here):
            names = naming(version, keys)
            if not names or str(version.ref.bare) in self.held:
                continue
            try:
                tables = list(self._in_table(version.ref, names, known))
            except (Denied, Invalid) as error:
                self.unsearched.append(f"{version.ref}: {error.message}")
                continue
            self._keep(version.ref, tables, {"zones": version.zones, "made": version.made_at})

    def write(self, name: str, value: Any) -> None:
        """A file as people can read it."""
        (self.folder / name).write_text(json.dumps(to_plain(value), ensure_ascii=False, indent=1, default=str))

    def _in_table(self, ref: Ref, names: list[str], known: dict[str, list[Any]]) -> Iterator[Any]:
        import pyarrow as pa

        _, snapshot = open_version(self.here, ref)
        files = files_of(snapshot, PARQUET)
        if not files:
            raise Invalid("it has no Parquet files, so nobody can tell whose rows are in it")
        for entry in files:
            if entry.digest not in known:
                with tempfile.NamedTemporaryFile(prefix="falaj-access-", suffix=".parquet") as file:
                    file.writelines(snapshot.read(entry))
                    file.flush()
                    batches = list(find_rows(Path(file.name), names, self.subject))
                known[entry.digest] = [pa.Table.from_batches(batches)] if batches else []
            yield from known[entry.digest]

    def _keep(self, ref: Ref, tables: list[Any], where: dict[str, Any]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        tables = [one for one in tables if one.num_rows]
        if not tables:
            return
        table = pa.concat_tables(tables, promote_options="permissive")
        file = f"{ref.kind}-{ref.project}-{ref.name}-{ref.version}.parquet"
        pq.write_table(table, self.folder / file)
        self.rows += table.num_rows
        self.held[str(ref)] = {"file": file, "rows": table.num_rows, **where}


def _rows(here: Here, arrival: Arrival, person: Person) -> Iterator[Any]:
    """A person's rows of a view, chapter by chapter; what was pushed is settled first."""
    import pyarrow as pa

    here.features.rows(arrival.view)
    about: Arrival = here.features.about(arrival.view)
    schema = schema_of(about.definition, about.entity)
    alone = len(about.entity.keys) == 1
    for chapter in about.stream.chapters:
        with open_chapter(here, chapter, tuple(schema.faces), about) as parts:
            for part in parts:
                if alone and partition_of(person.bytes, part.of) != part.partition:
                    continue
                rows = open_part(part, [one.type for one in schema.keys])
                table = rows_of(rows, schema.keys, [one.name for one in schema.columns])
                yield table.filter(pa.array(person.among(table.column(person.field.name))))


def _where(arrival: Arrival) -> dict[str, Any]:
    label = arrival.labels[""]
    return {"zones": [arrival.zone], "purposes": sorted(label.purposes), "regimes": sorted(label.regimes)}


def _told(here: Here, asked: Request, found: _Found, subject: str) -> dict[str, Any]:
    """All that is no table: consents, requests that were kept, purposes, copies, and what was not searched."""
    return {
        "request": str(asked.ref), "type": asked.type, "made": time.time(), "held": found.held,
        "consents": _consents(here, subject), "asked_of_models": _journal(here, subject),
        "purposes": here.privacy.purposes(), "grants": _grants(here), "not_searched": found.unsearched,
        "says": "What this platform holds by this identifier, as far as whoever wrote it may read. No legal opinion.",
    }  # fmt: skip


def _consents(here: Here, subject: str) -> list[Any]:
    found, after = [], ""
    while True:
        page = here.privacy.consents(subject=subject, after=after)
        found += page.items
        after = page.next
        if not after:
            return found


def _journal(here: Here, subject: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for endpoint in endpoints_of(here):
        after = ""
        while True:
            page = here.serve.logs(endpoint, since_s=_EVER_S, key=subject, after=after, limit=1000)
            if page.lines:
                found.setdefault(str(endpoint), []).extend(page.lines)
            after = page.next
            if not after:
                break
    return found


def _grants(here: Here) -> list[Any]:
    """Transfers that were allowed: what of the person lies elsewhere is said with each thing."""
    with suppress(Denied):
        return [one for one in here.zones.grants() if one.state == "active"]
    return []


def _signed(here: Here, asked: Request, folder: Path, found: _Found) -> Answer:
    files = {path.name: digest_of(path.read_bytes()) for path in sorted(folder.iterdir())}
    manifest = json.dumps({"request": str(asked.ref), "files": files}, sort_keys=True, indent=1)
    (folder / "manifest.json").write_text(manifest)
    digest = digest_of(manifest.encode())
    found.write("signature.json", here.privacy.sign(asked.ref, digest))
    return Answer(asked.ref, str(folder), len(files) + 2, found.rows, tuple(found.unsearched), digest)
