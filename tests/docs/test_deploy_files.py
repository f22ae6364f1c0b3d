"""The files in deploy/: they can be read, name what exists, and give a worker time to stop."""

from __future__ import annotations

import ast
import configparser
import copy
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped] # comes without types
from pydantic import ValidationError

from tests.docs.manifests import MANIFEST
from tests.docs.test_commands_in_docs import problem
from tests.harness import ROOT
from trellis.core.durations import SECOND, micros
from trellis.telemetry.metrics import METRICS, series_names

DEPLOY = ROOT / "deploy"
YAML = sorted(DEPLOY.rglob("*.yaml"))
UNITS = sorted(DEPLOY.rglob("*.service"))
#: Labels that Prometheus adds, and those of the metrics.
LABELS = {"instance", "job", "le"} | {label for each in METRICS for label in each.labels}


def documents(path: Path) -> list[Any]:
    return list(yaml.safe_load_all(path.read_text()))


def nodes(value: Any) -> Iterator[Any]:  # noqa: ANN401 - YAML and JSON
    """Yield everything that is in a document."""
    yield value
    for each in value.values() if isinstance(value, dict) else value:
        if isinstance(each, dict | list):
            yield from nodes(each)


def commands() -> Iterator[list[str]]:
    """Yield every command line of Trellis in the files."""
    for path in YAML:
        for node in nodes(documents(path)):
            for name in ("args", "command"):
                words = node.get(name) if isinstance(node, dict) else None
                if isinstance(words, list) and words[0] == "trellis":
                    yield words
    for path in UNITS:
        for line in re.findall(r"^ExecStart\w*=(.*)$", path.read_text(), re.MULTILINE):
            yield ["trellis", *line.split()[1:]]
    for words in re.findall(
        r"^CMD (\[.*\])$", (DEPLOY / "Containerfile").read_text(), re.MULTILINE
    ):
        yield ast.literal_eval(words)


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_the_commands_exist(words: list[str]) -> None:
    assert problem(words[1:]) is None


def test_there_are_commands_of_every_kind() -> None:
    assert {words[1] for words in commands()} == {"worker", "serve", "migrate"}


def unit(path: Path) -> configparser.ConfigParser:
    parsed = configparser.ConfigParser()
    parsed.optionxform = str  # type: ignore[assignment,method-assign] # names keep their case
    parsed.read_string(path.read_text())
    return parsed


def longest_stop(words: list[str]) -> float:
    """Return after how many seconds a worker with this command line has ended."""
    return micros(words[words.index("--grace") + 1]) / SECOND + 2


def test_every_worker_gets_time_to_stop() -> None:
    checked = 0
    for path in YAML:
        for node in nodes(documents(path)):
            if not isinstance(node, dict):
                continue
            if "containers" in node and "worker" in node["containers"][0]["args"]:
                words = node["containers"][0]["args"]
                assert node["terminationGracePeriodSeconds"] > longest_stop(words), path
                checked += 1
            if "worker" in node.get("command", ()):
                assert int(node["stop_grace_period"].removesuffix("s")) > longest_stop(
                    node["command"]
                )
                checked += 1
    service = unit(DEPLOY / "systemd" / "shop-worker.service")["Service"]
    assert int(service["TimeoutStopSec"]) > longest_stop(service["ExecStart"].split())
    assert checked == 3


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(path: Path, tmp_path: Path) -> None:
    service = unit(path)["Service"]
    assert service["RestartPreventExitStatus"] == "2"
    tool = shutil.which("systemd-analyze")
    if tool is None:
        return
    # The program of the example is not installed here: another takes its place.
    text = re.sub(r"/srv/shop/.venv/bin/trellis", "/bin/true", path.read_text())
    copy = tmp_path / path.name
    copy.write_text(text.replace("WorkingDirectory=/srv/shop", "WorkingDirectory=/"))
    ran = subprocess.run(
        [tool, "verify", "--man=no", str(copy)], capture_output=True, text=True, check=False
    )
    said = [line for line in ran.stderr.splitlines() if path.name in line]
    assert said == [], ran.stderr


def test_the_guide_shows_the_unit_and_the_image_that_are_here() -> None:
    guide = (ROOT / "docs" / "guides" / "deploying.md").read_text()
    assert (DEPLOY / "systemd" / "shop-worker.service").read_text() in guide
    assert (DEPLOY / "Containerfile").read_text() in guide


def test_the_guide_to_kubernetes_shows_the_manifests_that_are_here() -> None:
    guide = (ROOT / "docs" / "guides" / "kubernetes.md").read_text()
    for name in ("kubernetes/worker.yaml", "keda/scaledobject.yaml", "keda/scaledjob.yaml"):
        assert (DEPLOY / name).read_text() in guide


# -- Kubernetes --------------------------------------------------------------------------------


def of_kind(kind: str) -> list[Any]:
    return [
        each
        for path in YAML
        for each in documents(path)
        if isinstance(each, dict) and each.get("kind") == kind
    ]


MANIFESTS = [
    each for path in YAML if path.parent.name in {"kubernetes", "keda"} for each in documents(path)
]


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: each["kind"])
def test_kubernetes_and_keda_know_every_field(manifest: Any) -> None:  # noqa: ANN401 - YAML
    MANIFEST.validate_python(manifest)


@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda each: each["kind"])
def test_a_field_that_is_misspelled_or_of_another_type_is_found(manifest: Any) -> None:  # noqa: ANN401
    checked = 0
    for node in nodes(copy.deepcopy(manifest)):
        if not isinstance(node, dict):
            continue
        for name, value in [*node.items()]:
            is_free = node is manifest.get("metadata") or "app" in node or "." in name
            if is_free or name in {"cpu", "memory"}:
                continue
            for broken in ({f"{name}x": value}, {name: {"x": value}}):
                changed = {key: each for key, each in node.items() if key != name} | broken
                with pytest.raises(ValidationError):
                    MANIFEST.validate_python(replaced(manifest, node, changed))
                checked += 1
    assert checked > 10


def replaced(value: Any, old: Any, new: Any) -> Any:  # noqa: ANN401 - YAML
    """Return a document with one part in place of another."""
    if value == old:
        return new
    if isinstance(value, dict):
        return {name: replaced(each, old, new) for name, each in value.items()}
    return [replaced(each, old, new) for each in value] if isinstance(value, list) else value


def test_a_service_leads_to_a_port_of_the_pods_that_it_selects() -> None:
    for service in of_kind("Service"):
        (port,) = service["spec"]["ports"]
        pods = [each["spec"]["template"] for each in of_kind("Deployment")]
        selected = [
            each for each in pods
            if service["spec"]["selector"].items() <= each["metadata"]["labels"].items()
        ]  # fmt: skip
        (container,) = selected[0]["spec"]["containers"]
        assert len(selected) == 1
        assert port["targetPort"] in [each["name"] for each in container["ports"]]


@pytest.mark.parametrize(
    "deployment", of_kind("Deployment"), ids=lambda each: each["metadata"]["name"]
)
def test_probes_call_a_port_of_their_container_and_a_path_that_answers(deployment: Any) -> None:  # noqa: ANN401
    spec = deployment["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    ports = {each["name"]: str(each["containerPort"]) for each in container["ports"]}
    words = container["args"]
    flag = "--health-port" if words[1] == "worker" else "--port"
    for probe, path in (("readinessProbe", "/readyz"), ("livenessProbe", "/healthz")):
        get = container[probe]["httpGet"]
        assert get["path"] == path
        assert ports[get["port"]] == words[words.index(flag) + 1]
        if words[1] == "serve":  # it answers only for names that it knows
            assert get["httpHeaders"] == [{"name": "Host", "value": "localhost"}]
    host = "--health-host" if words[1] == "worker" else "--host"
    assert words[words.index(host) + 1] == "0.0.0.0"  # noqa: S104 - the probes come from outside


def test_keda_scales_what_is_here_by_the_query_of_the_operators_guide() -> None:
    (scaled,), (per_job,) = of_kind("ScaledObject"), of_kind("ScaledJob")
    names = {each["metadata"]["name"] for each in of_kind("Deployment")}
    assert scaled["spec"]["scaleTargetRef"]["name"] in names
    assert per_job["spec"]["jobTargetRef"]["backoffLimit"] == 0
    assert "--once" in per_job["spec"]["jobTargetRef"]["template"]["spec"]["containers"][0]["args"]
    for each in (scaled, per_job):
        (trigger,) = each["spec"]["triggers"]
        known = {one["metadata"]["name"] for one in of_kind("TriggerAuthentication")}
        assert trigger["authenticationRef"]["name"] in known


# -- compose -----------------------------------------------------------------------------------


def test_services_of_the_compose_file_depend_on_services_that_are_there() -> None:
    (compose,) = documents(DEPLOY / "compose.yaml")
    services = compose["services"]
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in services, name
            wants_health = how["condition"] == "service_healthy"
            assert not wants_health or "healthcheck" in services[other]
        for volume in service.get("volumes", ()):
            assert volume.partition(":")[0] in compose["volumes"]
        if "build" in service:
            build = service["build"]
            assert (DEPLOY / build["context"] / build["dockerfile"]).exists()
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), "published on loopback only"


# -- metrics -----------------------------------------------------------------------------------


def check_expression(text: str) -> None:
    """Refuse names of metrics and labels that do not exist."""
    used = set(re.findall(r"\btrellis_\w+", text))
    assert used, text
    assert used <= series_names(), used - series_names()
    labels = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)\s*\"", text))
    for grouped in re.findall(r"\bby \(([^)]*)\)", text):
        labels |= {each.strip() for each in grouped.split(",")}
    assert labels <= LABELS, labels - LABELS
    assert text.count("(") == text.count(")")
    assert text.count("{") == text.count("}")


def test_the_dashboard_uses_metrics_that_exist_and_shows_all_of_them() -> None:
    dashboard = json.loads((DEPLOY / "grafana" / "trellis.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    for expression in expressions:
        check_expression(expression.replace("$__rate_interval", "5m"))
    everything = " ".join(expressions)
    assert [each.name for each in METRICS if each.name not in everything] == []
    variables = {each["name"] for each in dashboard["templating"]["list"]}
    assert set(re.findall(r"\"\$(\w+)\"", everything)) <= variables
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len({*ids}) == len(ids)
    places = [panel["gridPos"] for panel in dashboard["panels"]]
    cells = [
        (x, y)
        for each in places
        for x in range(each["x"], each["x"] + each["w"])
        for y in range(each["y"], each["y"] + each["h"])
    ]
    assert len({*cells}) == len(cells), "panels overlap"
    assert max(x for x, _ in cells) < 24


def test_the_alerts_use_metrics_that_exist() -> None:
    (rules,) = documents(DEPLOY / "prometheus" / "alerts.yaml")
    alerts = [rule for group in rules["groups"] for rule in group["rules"]]
    names = [rule["alert"] for rule in alerts]
    assert len({*names}) == len(names) > 5
    for rule in alerts:
        check_expression(rule["expr"])
        assert rule["labels"]["severity"] in {"warning", "critical"}
        shown = set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"]))
        grouped = " ".join(re.findall(r"\bby \(([^)]*)\)", rule["expr"]))
        assert shown <= set(re.findall(r"\w+", grouped)), rule["alert"]


def test_promtool_accepts_the_rules_and_the_configuration() -> None:
    tool = shutil.which("promtool")
    if tool is None:
        pytest.skip("promtool is not installed; the test above has checked the names")
    folder = DEPLOY / "prometheus"
    for words in (["rules", "alerts.yaml"], ["config", "--syntax-only", "prometheus.yaml"]):
        ran = subprocess.run(
            [tool, "check", *words], cwd=folder, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stdout + ran.stderr
