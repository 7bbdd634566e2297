"""The lake's copies of the schemas of its records.

`_schemas/<sha256>.avsc` has a schema's text; `_schemas/ids/<registry>/<kind>/<id>/<sha256>` records that an id has
named it. Both are written once and never change, so runs do not conflict. Records in bronze are read without the
registry.
"""

import re
from collections.abc import Collection, Sequence
from urllib.parse import quote, unquote

from cdc_lake.decode import json as json_format
from cdc_lake.decode.records import WriterSchema, avro_schema, schema_text
from cdc_lake.errors import DamagedFileError, InfrastructureError
from cdc_lake.registries.registry import RegisteredSchema, Registry, is_id
from cdc_lake.storage.files import Files

_FINGERPRINT = re.compile(r"[0-9a-f]{64}")
_EMBEDDED = "embedded"
"""Used instead of a registry's name for schemas that records contain."""


class SchemaFiles:
    """Schema texts by fingerprint and by registry id.

    Args:
        registry: called once per id and run; None for readers of bronze and of files, which only use fingerprints.
    """

    def __init__(self, files: Files, root: str, registry: Registry | None = None) -> None:
        self._files = files
        self._folder = f"{root}/_schemas"
        self._registry = registry
        self._asked: dict[tuple[str, str], WriterSchema | None] = {}

    @property
    def kinds(self) -> Sequence[str]:
        """The kinds of id that a number in a frame may be."""
        return self._registry.namespaces if self._registry else ()

    def by_fingerprint(self, fingerprint: str) -> WriterSchema:
        """The writer schema of records in bronze.

        Raises:
            DamagedFileError: its file was changed.
        """
        file = self._file(fingerprint)
        schema = WriterSchema(self._files.read_text(file))
        if schema.fingerprint != fingerprint:
            raise DamagedFileError(file, "the file's content does not match the SHA-256 in its name")
        return schema

    def look_up(self, kind: str, schema_id: str) -> Sequence[WriterSchema]:
        """The schema of an id in the registry, followed by other schemas that the id named earlier."""
        if not is_id(kind, schema_id):
            return ()
        current, marker = self._ask(kind, schema_id), f"{self._named.name}/{kind}/{quote(schema_id, safe='')}"
        known = self._files.names(f"{self._folder}/ids/{marker}")
        if current is not None and current.fingerprint not in known:
            self.keep(current, marker)
        before = sorted(set(known) - ({current.fingerprint} if current else set()))
        return (*((current,) if current else ()), *(self.by_fingerprint(fingerprint) for fingerprint in before))

    def known(self, schema_id: str) -> Sequence[WriterSchema]:
        """The schemas that an id of any kind has named in any registry, without a request to one."""
        names, ids = self._files.names, f"{self._folder}/ids"
        kinds = [
            f"{ids}/{registry}/{kind}"
            for registry in names(ids)
            for kind in names(f"{ids}/{registry}")
            if is_id(kind, schema_id)
        ]
        fingerprints = {fingerprint for kind in kinds for fingerprint in names(f"{kind}/{quote(schema_id, safe='')}")}
        return [self.by_fingerprint(fingerprint) for fingerprint in sorted(fingerprints)]

    def known_ids(self) -> set[str]:
        """The ids of all kinds that have meant a schema."""
        names, ids = self._files.names, f"{self._folder}/ids"
        kinds = [f"{ids}/{name}/{kind}" for name in names(ids) if name != _EMBEDDED for kind in names(f"{ids}/{name}")]
        return {unquote(name) for kind in (f"{ids}/{_EMBEDDED}", *kinds) for name in names(kind)}

    def embedded(self, name: str) -> WriterSchema | None:
        """The schema embedded in records under this name, if it is stored."""
        known = self._files.names(f"{self._folder}/ids/{_EMBEDDED}/{self._checked(name)}")
        return self.by_fingerprint(known[0]) if known else None

    def keep_embedded(self, name: str, schema: WriterSchema) -> WriterSchema:
        return self.keep(schema, f"{_EMBEDDED}/{self._checked(name)}")

    def keep(self, schema: WriterSchema, marker: str | None = None) -> WriterSchema:
        """Store a schema, and under `_schemas/ids` the id that names it."""
        self._files.write_once(self._file(schema.fingerprint), schema.text)
        if marker:
            self._files.write_once(f"{self._folder}/ids/{marker}/{schema.fingerprint}", "")
        return schema

    def restore(self) -> dict[str, bool]:
        """Restore missing and damaged schema files from the registry.

        Returns:
            These files -> whether the registry still has the schema.
        """
        ids, in_registry = f"{self._folder}/ids/{self._named.name}", dict[str, bool]()
        for kind in self._files.names(ids):
            for schema_id in self._files.names(f"{ids}/{kind}"):
                for fingerprint in self._files.names(f"{ids}/{kind}/{schema_id}"):
                    file = self._file(fingerprint)
                    if in_registry.get(file) or self._is_whole(fingerprint):
                        continue
                    schema = self._ask(kind, unquote(schema_id))
                    in_registry[file] = schema is not None and schema.fingerprint == fingerprint
                    if schema is not None and in_registry[file]:
                        self._files.remove(file)
                        self.keep(schema)
        return in_registry

    def _is_whole(self, fingerprint: str) -> bool:
        try:
            return self._files.exists(self._file(fingerprint)) and bool(self.by_fingerprint(fingerprint))
        except DamagedFileError:
            return False

    def check_has_content(self, asked: Collection[tuple[str, str]]) -> None:
        """Check that the registry has one of the requested ids, or one that it had before.

        If so, the unknown ids are in bad records. Otherwise the registry has lost its content, or is another registry.

        Raises:
            InfrastructureError: it has none of them.
        """
        if not asked or any(self._ask(*kind_and_id) for kind_and_id in asked):
            return
        ids = f"{self._folder}/ids/{self._named.name}"
        for kind in self._files.names(ids):
            for name in self._files.names(f"{ids}/{kind}")[:1]:
                if self._ask(kind, unquote(name)):
                    return
        unknown = ", ".join(schema_id for _, schema_id in list(asked)[:5])
        raise InfrastructureError(
            f"schema registry {self._named.name}",
            f"it has none of the schema ids {unknown}, nor any that it had before",
            "check that registry.url is the connector's registry and registry.ids its kind of id. If these ids are "
            "deleted for good, run `cdc-lake run bronze --quarantine-unknown-ids`",
        )

    def _file(self, fingerprint: str) -> str:
        return f"{self._folder}/{self._checked(fingerprint)}.avsc"

    def _checked(self, name: str) -> str:
        """Check that a name from a record or a listing is a SHA-256, because other names must not become paths."""
        if not _FINGERPRINT.fullmatch(name):
            raise DamagedFileError(f"{self._folder}/{name!r}", "the name of a schema file must be a SHA-256")
        return name

    @property
    def _named(self) -> Registry:
        assert self._registry is not None, "only bronze uses registry ids"
        return self._registry

    def _ask(self, kind: str, schema_id: str) -> WriterSchema | None:
        if (kind, schema_id) not in self._asked:
            answer = self._named.schema(kind, schema_id)
            self._asked[kind, schema_id] = None if answer is None else writer_schema(answer)
        return self._asked[kind, schema_id]


def writer_schema(answer: RegisteredSchema) -> WriterSchema:
    # JSON escapes can encode unpaired surrogates, which UTF-8 cannot.
    text = answer.text.encode(errors="replace").decode()
    if json_format.is_connect_schema(answer.text):
        return WriterSchema(schema_text("kconnect", schema=text))
    match answer.type:
        case "AVRO":
            return avro_schema(answer.text)
        case "JSON":
            return WriterSchema(schema_text("json-schema", schema=text))
    return WriterSchema(schema_text(answer.type.lower(), text=text))
