"""The headers of gold models' files, and the errors of invalid ones."""

from pathlib import Path

import pytest
from support import CHECKOUT

from cdc_lake.config.gold_models import model_names, read_model
from cdc_lake.errors import ModelError

pytestmark = pytest.mark.core

HEADER = """\
-- name: per_kind
-- keys: [kind]
-- sources:
--   thing: shop.public.thing
"""
SQL = "SELECT kind, count(*) AS things FROM thing GROUP BY kind\n"


def written(folder: Path, text: str, name: str = "per_kind") -> Path:
    file = folder / f"{name}.sql"
    file.write_text(text, encoding="utf-8")
    return file


def refused(folder: Path, text: str) -> str:
    file = written(folder, text)
    with pytest.raises(ModelError) as caught:
        read_model(file)
    assert (caught.value.exit_code, caught.value.where) == (2, str(file))
    return caught.value.what


def test_header_is_the_leading_comment_lines(tmp_path: Path) -> None:
    model = read_model(written(tmp_path, HEADER + "\n-- keys: [not, these]\n" + SQL))

    assert (model.header.name, model.header.keys) == ("per_kind", ("kind",))
    assert model.header.sources == {"thing": "shop.public.thing"}
    assert model.header.description == ""
    assert model.text.endswith(SQL)


@pytest.mark.parametrize("written_as", ["--{}", "-- {}", "--   {}"])
def test_header_may_have_any_indentation(tmp_path: Path, written_as: str) -> None:
    lines = [line.removeprefix("-- ") for line in HEADER.splitlines()]

    model = read_model(written(tmp_path, "\n".join([*map(written_as.format, lines), SQL])))

    assert model.header.sources == {"thing": "shop.public.thing"}


def test_description_is_optional(tmp_path: Path) -> None:
    model = read_model(written(tmp_path, "-- description: How many there are.\n" + HEADER + SQL))

    assert model.header.description == "How many there are."


def test_any_change_of_the_text_changes_the_fingerprint(tmp_path: Path) -> None:
    texts = (HEADER + SQL, HEADER + SQL.lower(), HEADER.replace("[kind]", "[Kind]") + SQL)

    assert len({read_model(written(tmp_path, text)).fingerprint for text in texts}) == 3


@pytest.mark.parametrize("text", ["", SQL, "\n" + HEADER + SQL, "-- How many there are.\n" + SQL, "--\n" + SQL])
def test_file_without_header_shows_how_to_begin(tmp_path: Path, text: str) -> None:
    file = written(tmp_path, text)

    with pytest.raises(ModelError, match="the header is missing; begin the file with `-- name: per_kind`"):
        read_model(file)


def test_header_that_is_not_yaml_is_refused(tmp_path: Path) -> None:
    assert "not valid YAML" in refused(tmp_path, "-- keys: [kind\n" + SQL)


def test_unknown_key_is_named_with_the_nearest(tmp_path: Path) -> None:
    what = refused(tmp_path, HEADER.replace("sources", "source") + SQL)

    assert "`source` is not a known key (did you mean `sources`?)" in what
    assert "`sources`: Field required" in what


@pytest.mark.parametrize(
    ("there", "instead", "key"),
    [
        ("keys: [kind]", "keys: []", "keys"),
        ("keys: [kind]", "keys: kind", "keys"),
        ("keys: [kind]", "keys: [kind, KIND]", "keys"),
        ("  thing:", "  two words:", "sources.two words"),
        ("shop.public.thing", "shop.*", "sources.thing"),
        ("  thing:", "  Thing: shop.public.other\n--   thing:", "sources"),
        ("per_kind", "../per_kind", "name"),
        ("per_kind", "another", "name"),
    ],
)
def test_wrong_value_names_its_key(tmp_path: Path, there: str, instead: str, key: str) -> None:
    assert f"`{key}" in refused(tmp_path, HEADER.replace(there, instead) + SQL)


def test_sql_files_of_the_folder_are_its_models(tmp_path: Path) -> None:
    for name in ("b", "a"):
        written(tmp_path, HEADER, name)
    (tmp_path / "notes.md").touch()

    assert model_names(tmp_path) == ["a", "b"]
    assert model_names(tmp_path / "absent") == []


@pytest.mark.parametrize("name", model_names(CHECKOUT / "conf" / "gold"))
def test_bundled_models_have_headers(name: str) -> None:
    assert read_model(CHECKOUT / "conf" / "gold" / f"{name}.sql").header.description


AGAIN = "refresh: incremental"
TOUCHED = f"{AGAIN}\n-- touched: {{thing: everything}}"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (AGAIN, "`touched` has no entry for thing"),
        ("touched: {thing: everything}", "need `refresh: incremental`"),
        ("window: {source: thing, time: at, start: kind, length: 1 day}", "need `refresh: incremental`"),
        (f"{AGAIN}\n-- touched: {{thing: everything, other: SELECT 1}}", "names other"),
        (f"{TOUCHED}\n-- groups: [kind, Kind]", "two of the names are the same"),
        (f"{TOUCHED}\n-- window: {{source: thing}}", "`window.time`"),
        (
            f"{TOUCHED}\n-- window: {{source: other, time: at, start: kind, length: 1 day}}",
            "`source` must be a source with a topic",
        ),
        (f"{TOUCHED}\n-- window: {{source: thing, time: at, start: day, length: 1 day}}", "`start` one of `groups`"),
        (f"{TOUCHED}\n-- window: {{source: thing, time: at, start: kind, length: a day}}", "`window.length`"),
        ("expectations: [{name: some, holds: n > 0, on_fail: cry}]", "`expectations.0.on_fail`"),
        ("table: {format: hudi, buckets: 0}", "`table.buckets`"),
        ("topic: {topic: a b}", "`topic.topic`"),
    ],
)
def test_conflicting_settings_are_refused(tmp_path: Path, more: str, said: str) -> None:
    assert said in refused(tmp_path, f"{HEADER}-- {more}\n{SQL}")


def test_reserved_name_watermark_is_refused_as_a_source(tmp_path: Path) -> None:
    header = HEADER.replace("thing:", "Watermark:") + (
        "-- refresh: incremental\n-- touched: {Watermark: everything}\n"
        "-- window: {source: Watermark, time: at, start: kind, length: 1 day, lateness: 1 hour}\n"
    )

    assert "the name `watermark` is reserved for the watermark" in refused(tmp_path, header + SQL)


STORES = (
    "-- sources:\n--   thing: shop.public.thing\n--   store: {file: stores.csv, columns: {id: int, region: string}}\n"
)


def test_csv_file_is_read_and_included_in_the_fingerprint(tmp_path: Path) -> None:
    text = HEADER.partition("-- sources")[0] + STORES + SQL
    (tmp_path / "stores.csv").write_text('region,id\n"North, far",1\n,2\n')

    first = read_model(written(tmp_path, text))
    (tmp_path / "stores.csv").write_text('region,id\n"North, far",1\n,3\n')

    assert first.files == {"store": [("1", "North, far"), ("2", None)]}
    assert first.header.topics == {"thing": "shop.public.thing"}
    assert read_model(first.file).fingerprint != first.fingerprint


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "the file cannot be read: [Errno 2]"),
        (b"id\n1\n", "its lines do not have the columns id, region"),
        (b"id,region\n1\n", "its lines do not have the columns id, region"),
        (b"id,region\n1,a,b\n", "its lines do not have the columns id, region"),
        (b"id,region\n1,\xff\n", "the file cannot be read: 'utf-8'"),
        (b'id,region\n1,"a\n', "the file cannot be read: "),
        (b"x" * (1 << 20) + b"x", "the file has 1048577 bytes; the limit is 1048576"),
    ],
)
def test_file_that_does_not_match_the_header_is_refused(tmp_path: Path, content: bytes | None, said: str) -> None:
    if content is not None:
        (tmp_path / "stores.csv").write_bytes(content)

    with pytest.raises(ModelError) as caught:
        read_model(written(tmp_path, HEADER.partition("-- sources")[0] + STORES + SQL))

    assert caught.value.where == str(tmp_path / "stores.csv")
    assert said in caught.value.what


def test_missing_model_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"the model does not exist; check `gold\.models`"):
        read_model(tmp_path / "absent.sql")
