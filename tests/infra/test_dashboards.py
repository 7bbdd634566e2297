"""Grafana's dashboard and Prometheus' alert rules use only metrics, labels and label values that a run exports."""

import itertools
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import promql_parser
import pytest
import yaml
from deployments import INFRA

from cdc_lake.lake.readers import TableState
from cdc_lake.runs.metrics import run_samples, samples
from cdc_lake.runs.report import COUNTS, PHASES, Report, TableReport

pytestmark = pytest.mark.core

DASHBOARD = json.loads((INFRA / "grafana" / "cdc-lake.json").read_text(encoding="utf-8"))
RULES = yaml.safe_load((INFRA / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
ALERTS: list[dict[str, Any]] = [rule for group in RULES["groups"] for rule in group["rules"]]
QUERIES = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
VARIABLES = [variable for variable in DASHBOARD["templating"]["list"] if variable["type"] == "query"]
LABEL_VALUES = re.compile(r"label_values\((\w+), (\w+)\)")
LAYERS = ("bronze", "silver", "gold")
COLUMNS = 24

Exported = dict[str, dict[str, set[str]]]


def exported() -> Exported:
    """Every metric of the layers' runs, with its labels and their values; of tables and expectations only examples."""
    found: Exported = {}
    for layer in LAYERS:
        done = TableReport(
            table="shop.public.orders",
            rows=dict.fromkeys(COUNTS, 1),
            seconds=dict.fromkeys(PHASES, 1.0),
            lag_before={"0": 1},
            lag_after={"0": 1},
            unmet={"paid": 1},
        )
        done.add_changes([(0, 1)])
        report = Report(layer=layer, tables=[done], ended_at=datetime.now(UTC))
        state = TableState(behind_records=1, behind_seconds=1, quarantined=1)
        of_table = [(sample, ("table", done.table)) for sample in samples(report, done, state)]
        for sample, *own in (*of_table, *((sample,) for sample in run_samples(report))):
            labels = found.setdefault(f"cdc_lake_{sample.name}", {})
            for label, value in (("layer", layer), *own, *sample.labels):
                labels.setdefault(label, set()).add(value)
    return found


EXPORTED = exported()


def selectors(expression: Any) -> Iterator[promql_parser.VectorSelector]:
    """The selectors in a parsed query."""
    if isinstance(expression, promql_parser.VectorSelector):
        yield expression
    parts = (getattr(expression, name, None) for name in ("expr", "lhs", "rhs", "vector_selector"))
    for part in (*parts, *getattr(expression, "args", ())):
        if part is not None:
            yield from selectors(part)


def unknown_names(query: str) -> list[str]:
    """What a query selects and no run exports."""
    found = list(selectors(promql_parser.parse(query)))
    assert found, query
    unknown = [selector.name for selector in found if selector.name not in EXPORTED]
    for selector in found:
        labels = EXPORTED.get(selector.name, {})
        for matcher in selector.matchers.matchers:
            known = labels.get(matcher.name, set())
            is_free = matcher.value.startswith("$") or matcher.name in ("table", "expectation")
            if not known or not (is_free or set(matcher.value.split("|")) <= known):
                unknown.append(f"{selector.name}{{{matcher.name}={matcher.value}}}")
    return unknown


@pytest.mark.parametrize("query", [*QUERIES, *(alert["expr"] for alert in ALERTS)])
def test_queries_select_what_a_run_exports(query: str) -> None:
    assert unknown_names(query) == []


@pytest.mark.parametrize(
    "query",
    [
        "cdc_lake_fail == 1",
        'sum(cdc_lake_rows{what="quarantine"})',
        'delta(cdc_lake_lag_offsets{phase="after"}[1h]) > 0',
        'time() - cdc_lake_ended_timestamp_seconds{layer=~"bronze|sliver"} > 1',
    ],
)
def test_unknown_names_are_found(query: str) -> None:
    assert len(unknown_names(query)) == 1


def test_dashboard_shows_every_metric() -> None:
    selected = {selector.name for query in QUERIES for selector in selectors(promql_parser.parse(query))}

    assert selected == set(EXPORTED)


def test_legends_and_variables_use_labels_of_their_metric() -> None:
    for target in itertools.chain.from_iterable(panel["targets"] for panel in DASHBOARD["panels"]):
        (selector, *_) = selectors(promql_parser.parse(target["expr"]))
        assert set(re.findall(r"{{(\w+)}}", target["legendFormat"])) <= EXPORTED[selector.name].keys()
    for variable in VARIABLES:
        metric, label = LABEL_VALUES.fullmatch(variable["query"]["query"]).groups()  # type: ignore[union-attr]
        assert label == variable["name"] and label in EXPORTED[metric]


def test_panels_fit_the_grid_and_do_not_overlap() -> None:
    taken = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        cells = set(itertools.product(range(at["x"], at["x"] + at["w"]), range(at["y"], at["y"] + at["h"])))
        assert at["x"] + at["w"] <= COLUMNS and not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    assert {panel["datasource"]["uid"] for panel in DASHBOARD["panels"]} == {"${datasource}"}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert["alert"])
def test_alerts_name_labels_of_their_metric(alert: dict[str, Any]) -> None:
    (selector, *_) = selectors(promql_parser.parse(alert["expr"]))
    texts = alert["annotations"]

    assert alert["labels"]["severity"] in ("page", "ticket")
    assert re.fullmatch(r"\d+m", alert.get("for", "0m"))
    assert texts.keys() == {"summary", "description"}
    assert set(re.findall(r"\$labels\.(\w+)", texts["summary"])) <= EXPORTED[selector.name].keys()
