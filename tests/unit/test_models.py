"""What a gold model's file says of it, and what is said of one that is wrong."""

from pathlib import Path

import pytest

from cdc_lake.config import CHECKOUT
from cdc_lake.errors import ModelError
from cdc_lake.models import model_names, read_model

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


def test_a_header_is_the_comment_lines_the_file_begins_with(tmp_path: Path) -> None:
    model = read_model(written(tmp_path, HEADER + "\n-- keys: [not, these]\n" + SQL))

    assert (model.header.name, model.header.keys) == ("per_kind", ("kind",))
    assert model.header.sources == {"thing": "shop.public.thing"}
    assert model.header.description == ""
    assert model.text.endswith(SQL)


@pytest.mark.parametrize("written_as", ["--{}", "-- {}", "--   {}"])
def test_a_header_may_be_indented_as_one_likes(tmp_path: Path, written_as: str) -> None:
    lines = [line.removeprefix("-- ") for line in HEADER.splitlines()]

    model = read_model(written(tmp_path, "\n".join([*map(written_as.format, lines), SQL])))

    assert model.header.sources == {"thing": "shop.public.thing"}


def test_a_description_is_optional(tmp_path: Path) -> None:
    model = read_model(written(tmp_path, "-- description: How many there are.\n" + HEADER + SQL))

    assert model.header.description == "How many there are."


def test_every_change_of_the_text_changes_the_fingerprint(tmp_path: Path) -> None:
    texts = (HEADER + SQL, HEADER + SQL.lower(), HEADER.replace("[kind]", "[Kind]") + SQL)

    assert len({read_model(written(tmp_path, text)).fingerprint for text in texts}) == 3


@pytest.mark.parametrize("text", ["", SQL, "\n" + HEADER + SQL, "-- How many there are.\n" + SQL, "--\n" + SQL])
def test_a_file_without_a_header_is_told_how_to_begin(tmp_path: Path, text: str) -> None:
    file = written(tmp_path, text)

    with pytest.raises(ModelError, match="it has no header; begin it with the lines `-- name: per_kind`"):
        read_model(file)


def test_a_header_that_is_not_yaml_is_refused(tmp_path: Path) -> None:
    assert "not YAML" in refused(tmp_path, "-- keys: [kind\n" + SQL)


def test_an_unknown_key_is_named_with_the_nearest(tmp_path: Path) -> None:
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
def test_a_wrong_value_is_told_by_its_key(tmp_path: Path, there: str, instead: str, key: str) -> None:
    assert f"`{key}" in refused(tmp_path, HEADER.replace(there, instead) + SQL)


def test_the_models_of_a_folder_are_its_sql_files(tmp_path: Path) -> None:
    for name in ("b", "a"):
        written(tmp_path, HEADER, name)
    (tmp_path / "notes.md").touch()

    assert model_names(tmp_path) == ["a", "b"]
    assert model_names(tmp_path / "absent") == []


@pytest.mark.parametrize("name", model_names(CHECKOUT / "conf" / "gold"))
def test_the_models_that_come_with_the_project_have_headers(name: str) -> None:
    assert read_model(CHECKOUT / "conf" / "gold" / f"{name}.sql").header.description
