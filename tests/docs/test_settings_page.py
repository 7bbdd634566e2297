"""docs/reference/settings.md lists every setting with its default."""

import re

from settings_page import page, settings

from cdc_lake.config import Config, LeaseConfig, MetricsConfig, RunConfig, SilverTable, TableConfig

PAGE = page("reference/settings.md")
ROW = re.compile(r"^\| (`[^|]+`) \| ([^|]+) \|", re.MULTILINE)
LISTED = {
    key: default.strip().strip("`") for keys, default in ROW.findall(PAGE) for key in re.findall(r"`([^`]+)`", keys)
}
STRUCTURED = {"silver", "expectations"}
"""Keys of a table whose own fields are described in words."""


def shown(default: object) -> str:
    """A default as the page writes it."""
    if default is None or default in ((), {}):
        return "none"
    return (
        str(default).lower()
        if isinstance(default, bool)
        else f"{default:g}"
        if isinstance(default, float)
        else str(default)
    )


def test_every_table_setting_is_listed_with_its_default() -> None:
    expected = {
        name: shown(field.get_default(call_default_factory=True))
        for name, field in TableConfig.model_fields.items()
        if name not in STRUCTURED
    }

    assert expected.items() <= LISTED.items()
    assert LISTED.keys() >= STRUCTURED
    assert SilverTable.model_fields.keys() - {"format", "type"} <= LISTED.keys()


def test_every_run_setting_is_listed_with_its_default() -> None:
    for model, prefix in ((LeaseConfig, "lease"), (RunConfig, "run"), (MetricsConfig, "metrics")):
        assert {name: shown(default) for name, default in settings(model, prefix)}.items() <= LISTED.items()


def test_every_section_is_listed() -> None:
    listed = {key.partition(".")[0] for key in LISTED}

    assert Config.model_fields.keys() - {"defaults", "tables"} <= listed


def test_no_listed_setting_is_unknown() -> None:
    table_keys = TableConfig.model_fields.keys() | SilverTable.model_fields.keys()
    known = {name for name, _ in settings(Config, "")}
    unknown = [
        key
        for key in LISTED
        if key not in table_keys and "…" not in key and f".{key.replace('<prefix>.', '')}" not in known
    ]

    assert unknown == []
