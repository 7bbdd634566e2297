"""The lake's own copy of every schema its records were written with.

`_schemas/<sha256>.avsc` holds a text; `_schemas/ids/<registry>/<namespace>/<id>/<sha256>` says that an id meant it.
Both are written once and never change, so no two runs can disturb each other; and once a record is in bronze, the
registry is not needed to read it again, were it rebuilt or gone.
"""

from collections.abc import Iterable

from cdc_lake.errors import InfrastructureError, UnsupportedError
from cdc_lake.events.avro import WriterSchema
from cdc_lake.sources.registry import Registry
from cdc_lake.storage import Storage


class SchemaFiles:
    """Schema texts by fingerprint and by registry id.

    Args:
        storage: where the lake is.
        root: the lake's root.
        registry: asked once per id and run; none for readers of bronze, who know fingerprints only.
    """

    def __init__(self, storage: Storage, root: str, registry: Registry | None = None) -> None:
        self._storage = storage
        self._folder = f"{root}/_schemas"
        self._registry = registry
        self._asked: dict[int, str | None] = {}

    def by_fingerprint(self, fingerprint: str) -> WriterSchema:
        """A schema that records in bronze were written with."""
        return WriterSchema(self._storage.read_text(f"{self._folder}/{fingerprint}.avsc"))

    def by_ids(self, ids: Iterable[int]) -> dict[int, WriterSchema | None]:
        """The schemas of registry ids, kept in the lake from now on; none for an id the registry does not have.

        An id that a registry does not have is a bad record, as long as the registry has the others. One that has none
        of them, nor one it returned before, has lost its content: that is bad infrastructure.

        Raises:
            InfrastructureError: the registry does not answer, or has lost its content.
            UnsupportedError: an id has meant another schema before.
        """
        wanted = sorted(set(ids))
        answers = {schema_id: self._look_up(schema_id) for schema_id in wanted}
        if wanted and not any(self._registry_has(schema_id) for schema_id in (*wanted, *self._known_ids()[:1])):
            raise InfrastructureError(
                f"schema registry {self._named.name}",
                f"it has none of the schema ids {', '.join(map(str, wanted[:5]))}, nor any it had before",
                "see that registry.url is the one the connector writes to and registry.ids its kind of id; "
                "nothing was committed",
            )
        return answers

    @property
    def _named(self) -> Registry:
        assert self._registry is not None, "only bronze knows registry ids"
        return self._registry

    @property
    def _markers(self) -> str:
        return f"{self._folder}/ids/{self._named.name}/{self._named.namespaces[0]}"

    def _known_ids(self) -> list[int]:
        return [int(name) for name in self._storage.names(self._markers)]

    def _registry_has(self, schema_id: int) -> bool:
        return self._text(schema_id) is not None

    def _text(self, schema_id: int) -> str | None:
        if schema_id not in self._asked:
            found = self._named.schema(self._named.namespaces[0], str(schema_id))
            self._asked[schema_id] = found.text if found else None
        return self._asked[schema_id]

    def _look_up(self, schema_id: int) -> WriterSchema | None:
        known = self._storage.names(f"{self._markers}/{schema_id}")
        text = self._text(schema_id)
        if text is None:
            return self.by_fingerprint(known[0]) if len(known) == 1 else None
        schema = WriterSchema(text)
        if known and known != [schema.fingerprint]:
            raise UnsupportedError(
                f"schema id {schema_id}",
                "the registry returns another text than it did before, so it was probably rebuilt",
                "give the rebuilt registry's records a lake.root of their own until both meanings can be told apart",
            )
        self._storage.write_once(f"{self._folder}/{schema.fingerprint}.avsc", text)
        self._storage.write_once(f"{self._markers}/{schema_id}/{schema.fingerprint}", "")
        return schema
