"""Alert rules and dashboard against the exposition: every metric and every label they use exists."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from strata_router.core.metrics import FAMILIES, Kind
from strata_router.core.metrics.tally import TOKEN_KINDS
from strata_router.core.vocabulary import Reason, Tier

CONTRIB = Path(__file__).parents[2] / "contrib"
PROMETHEUS = CONTRIB / "prometheus"
DASHBOARD = CONTRIB / "grafana" / "strata-router.json"

OF_THE_SCRAPE = {"job", "instance"}
"""Labels that Prometheus adds to every series."""

CLOSED = {
    "outcome": {reason.value for reason in Reason},
    "tier": {tier.value for tier in Tier} | {"none"},
    "kind": set(TOKEN_KINDS),
}
"""Labels whose values are known beforehand."""


def exposed() -> dict[str, set[str]]:
    """Every series name that a scrape can bring, with its labels."""
    found: dict[str, set[str]] = {"up": set(OF_THE_SCRAPE)}
    for family in FAMILIES:
        labels = {*family.labels, *OF_THE_SCRAPE}
        if family.kind is Kind.HISTOGRAM:
            found[f"{family.name}_bucket"] = labels | {"le"}
            found[f"{family.name}_sum"] = found[f"{family.name}_count"] = labels
        else:
            found[family.name] = labels
    return found


SELECTOR = re.compile(r"\b(strata_router_\w+|up)\b\s*(?:\{([^}]*)\})?")
MATCHER = re.compile(r"""(\w+)\s*(=~|!~|!=|=)\s*"([^"]*)"\s*(?:,|$)""")
GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
LEGEND = re.compile(r"\{\{\s*(?:\$labels\.)?(\w+)\s*\}\}")


def matchers(text: str) -> list[tuple[str, str]]:
    """(label, value) pairs; nothing else may stand between the braces."""
    assert MATCHER.sub("", text).strip() == "", text
    return [(name, value) for name, _, value in MATCHER.findall(text)]


def complaints(expr: str, legend: str = "") -> Iterator[str]:
    """What in an expression, and in a text that shows its labels, the exposition does not have."""
    known = exposed()
    at_hand: set[str] = set()
    selectors = SELECTOR.findall(expr)
    if not selectors:
        yield f"no metric in: {expr}"
    for name, braces in selectors:
        if name not in known:
            yield f"no metric {name}"
            continue
        at_hand |= known[name]
        for label, value in matchers(braces):
            if label not in known[name]:
                yield f"{name} has no label {label}"
            words = set(value.split("|")) if label in CLOSED and "$" not in value else set()
            for word in words - CLOSED.get(label, set()):
                yield f"{label} is never {word}"
    groupings = [[item.strip() for item in group.split(",")] for group in GROUPING.findall(expr)]
    for label in [label for group in groupings for label in group]:
        if label not in at_hand:
            yield f"grouped by {label}, which is not there: {expr}"
    if re.search(r"\bsum\b", expr):
        # Aggregated: only what is grouped by is left.
        at_hand &= {label for group in groupings for label in group}
    for label in LEGEND.findall(legend):
        if label not in at_hand:
            yield f"shows {label}, which is not there: {expr}"


def rules() -> list[dict[str, Any]]:
    document = yaml.safe_load((PROMETHEUS / "strata-router.rules.yml").read_text())
    return [rule for group in document["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    board: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return board


def targets() -> list[tuple[str, str, str]]:
    """(panel title, expression, legend) of everything the dashboard draws."""
    return [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in dashboard()["panels"]
        if panel["type"] != "row"
        for target in panel["targets"]
    ]


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_uses_metrics_and_labels_that_exist_and_says_what_to_do(
    rule: dict[str, Any],
) -> None:
    texts = " ".join(rule["annotations"].values()).replace("{{ $value }}", "")
    assert list(complaints(rule["expr"], texts)) == []
    assert set(rule["annotations"]) == {"summary", "description"}
    assert rule["labels"]["severity"] in ("info", "warning", "critical")


def test_alert_names_are_unique() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(("panel", "expr", "legend"), targets())
def test_a_panel_uses_metrics_and_labels_that_exist(panel: str, expr: str, legend: str) -> None:
    assert list(complaints(expr, legend)) == [], panel


def test_the_dashboard_s_variables_and_annotations_use_what_exists() -> None:
    board = dashboard()
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["definition"])
            assert found
            assert variable["query"]["query"] == variable["definition"]
            assert list(complaints(found[1], "{{" + found[2] + "}}")) == []
    for annotation in board["annotations"]["list"]:
        assert list(complaints(annotation["expr"])) == []


def test_panels_have_ids_of_their_own_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    covered: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not cells & covered, panel["title"]
        covered |= cells


def test_the_dashboard_shows_every_metric() -> None:
    drawn = " ".join(expr for _, expr, _ in targets())
    assert [family.name for family in FAMILIES if family.name not in drawn] == []


@pytest.mark.parametrize(
    ("expr", "legend", "complaint"),
    [
        ("rate(strata_router_nonsense_total[5m])", "", "no metric strata_router_nonsense_total"),
        ("strata_router_ttft_seconds", "", "no metric strata_router_ttft_seconds"),
        ('up{nothing="x"}', "", "up has no label nothing"),
        ('strata_router_requests_total{outcome="failed"}', "", "outcome is never failed"),
        ("sum by (tier) (strata_router_loaded_model)", "", "grouped by tier"),
        ("strata_router_loaded_model", "{{tier}}", "shows tier"),
        ("sum by (tier) (strata_router_requests_total)", "{{ $labels.model }}", "shows model"),
        ("1 > 0", "", "no metric in"),
    ],
)
def test_what_does_not_exist_is_found(expr: str, legend: str, complaint: str) -> None:
    assert any(found.startswith(complaint) for found in complaints(expr, legend))


def test_the_scrape_configuration_asks_for_text_where_the_daemon_listens_by_default() -> None:
    document = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
    (job,) = document["scrape_configs"]
    assert job["params"] == {"format": ["prometheus"]}
    assert job["static_configs"] == [{"targets": ["127.0.0.1:8088"]}]
    assert "metrics_path" not in job, "the default is ours"
    assert document["rule_files"] == ["strata-router.rules.yml"]


def promtool(*words: str | Path) -> None:
    """Run it where the files are, or skip; fails with what it says."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian package prometheus)")
    checked = subprocess.run(
        [program, *words], cwd=PROMETHEUS, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "strata-router.rules.yml"),
        ("test", "rules", "strata-router.rules.test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts_the_files(words: tuple[str, ...]) -> None:
    promtool(*words)


def test_promtool_can_read_every_expression_of_the_dashboard(tmp_path: Path) -> None:
    recorded = [
        {"record": f"panel:{number}", "expr": re.sub(r"\$__(rate_)?interval", "5m", expr)}
        for number, (_, expr, _) in enumerate(targets())
    ]
    file = tmp_path / "panels.yml"
    file.write_text(json.dumps({"groups": [{"name": "panels", "rules": recorded}]}))
    promtool("check", "rules", file)
