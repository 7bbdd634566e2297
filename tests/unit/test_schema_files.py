"""A schema name in a record becomes a path in the lake only if it is a valid name."""

from pathlib import Path

import pytest

from cdc_lake.decode.records import WriterSchema
from cdc_lake.errors import DamagedFileError
from cdc_lake.lake.schema_files import SchemaFiles
from cdc_lake.registries.registry import RegisteredSchema, is_id
from cdc_lake.storage.files import LocalFiles

pytestmark = pytest.mark.core

NO_NAMES = ["", ".", "..", "../..", "a/b", "/etc/passwd", "%2e%2e", "\0", "a\nb", "-1", "1\n", "\u0665", "f" * 1000]
KINDS = ("id", "guid", "contentId", "globalId", "contentHash", "artifact", "glue", "file", "ids", "..", "")


class Files(LocalFiles):
    """Records the requests."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def names(self, folder: str) -> list[str]:
        self.asked.append(folder)
        return super().names(folder)

    def read_text(self, path: str) -> str:
        self.asked.append(path)
        return super().read_text(path)


class Everything:
    """A fake: a registry with a schema for every id."""

    name, namespaces = "everything", ("id",)

    def schema(self, kind: str, schema_id: str) -> RegisteredSchema:
        raise AssertionError(f"it was asked for {kind} {schema_id}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NO_NAMES)
def test_invalid_id_is_neither_requested_nor_used_as_a_path(tmp_path: Path, kind: str, name: str) -> None:
    files = Files()
    schemas = SchemaFiles(files, str(tmp_path), Everything())  # type: ignore[arg-type]

    assert not is_id(kind, name)
    assert schemas.look_up(kind, name) == ()
    assert schemas.known(name) == []
    assert files.asked in ([], [f"{tmp_path}/_schemas/ids"])


@pytest.mark.parametrize("name", [*NO_NAMES, "../secret", "F" * 64])
def test_invalid_fingerprint_is_never_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "secret.avsc").write_text('"int"')
    files = Files()
    schemas = SchemaFiles(files, str(tmp_path))

    for read in (schemas.by_fingerprint, schemas.embedded):
        with pytest.raises(DamagedFileError, match="the name of a schema file must be a SHA-256"):
            read(name)
    with pytest.raises(DamagedFileError, match="the name of a schema file must be a SHA-256"):
        schemas.keep_embedded(name, WriterSchema('"int"'))

    assert files.asked == []
    assert [file.name for file in tmp_path.rglob("*")] == ["secret.avsc"]


def test_known_artifact_proves_that_the_registry_has_content(tmp_path: Path) -> None:
    class Registry(Everything):
        def schema(self, kind: str, schema_id: str) -> RegisteredSchema | None:  # type: ignore[override]
            return RegisteredSchema('"int"') if (kind, schema_id) == ("artifact", "g/a%2Fb/1") else None

    registry = Registry()
    SchemaFiles(LocalFiles(), str(tmp_path), registry).look_up("artifact", "g/a%2Fb/1")  # type: ignore[arg-type]

    SchemaFiles(LocalFiles(), str(tmp_path), registry).check_has_content([("id", "7")])  # type: ignore[arg-type]
