"""What can be known of the deployment files without a cluster: they are whole and fit together."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import yaml

from noetl.settings import TABLE
from noetl.tools.rules import read_container_policy
from noetl.version import __version__
from tests.deploy.chart import CHART, rendered

DEPLOY = CHART.parent.parent
GPU = {"replicas": 1, "slots": 2, "graceSeconds": 30, "resources": {}}
SCALED = {"enabled": True, "minReplicas": 0, "maxReplicas": 4, "commandsPerWorker": 8}
LIMITS = {"settings": {"NOETL_TIMEOUT": 3600}}
OBJECTS = rendered(
    "prod",
    {"workers": {"gpu": {**GPU, "autoscaling": SCALED}}, "server": LIMITS, "worker": LIMITS},
)
IN_THE_OPEN = {
    *("NOETL_LOG", "NOETL_SERVER_URL", "NOETL_CONTAINERS", "NOETL_CACHE", "NOETL_TIMEOUT"),
}


def of(kind: str, name: str) -> dict[str, Any]:
    [found] = [one for one in OBJECTS if (one["kind"], one["metadata"]["name"]) == (kind, name)]
    return found


def containers() -> list[tuple[str, dict[str, Any]]]:
    return [
        (one["metadata"]["name"], container)
        for one in OBJECTS
        if one["kind"] == "Deployment"
        for container in one["spec"]["template"]["spec"]["containers"]
    ]


def compose() -> dict[str, Any]:
    return dict(yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"])


def test_the_chart_has_servers_and_one_deployment_per_pool():
    assert {(one["kind"], one["metadata"]["name"]) for one in OBJECTS} == {
        ("Deployment", "prod-server"),
        ("Service", "prod-server"),
        ("PodDisruptionBudget", "prod-server"),
        ("Deployment", "prod-worker-default"),
        ("Deployment", "prod-worker-gpu"),
        ("HorizontalPodAutoscaler", "prod-worker-gpu"),
        ("ConfigMap", "prod-containers"),
        ("NetworkPolicy", "prod-server"),
        ("NetworkPolicy", "prod-worker"),
    }


def test_selectors_find_the_pods_they_mean_and_no_others():
    for one in OBJECTS:
        if one["kind"] == "Deployment":
            wanted = one["spec"]["selector"]["matchLabels"]
            labels = one["spec"]["template"]["metadata"]["labels"]
            assert wanted.items() <= labels.items()
    found = of("Service", "prod-server")["spec"]["selector"]
    for name in ("prod-worker-default", "prod-worker-gpu"):
        labels = of("Deployment", name)["spec"]["template"]["metadata"]["labels"]
        assert not found.items() <= labels.items()


def test_a_pool_that_scales_by_its_queue_leaves_the_number_to_the_scaler():
    assert "replicas" not in of("Deployment", "prod-worker-gpu")["spec"]
    assert of("Deployment", "prod-worker-default")["spec"]["replicas"] == 2
    [metric] = of("HorizontalPodAutoscaler", "prod-worker-gpu")["spec"]["metrics"]
    assert metric["external"]["metric"]["selector"] == {"matchLabels": {"pool": "gpu"}}


def test_secrets_come_from_the_cluster_and_settings_exist():
    known = {setting.name for setting in TABLE}
    for name, container in containers():
        for variable in container["env"]:
            assert variable["name"] in known, (name, variable["name"])
            if variable["name"] not in IN_THE_OPEN:
                assert "secretKeyRef" in variable["valueFrom"]
        assert container["securityContext"]["allowPrivilegeEscalation"] is False


@pytest.mark.parametrize(
    ("name", "arguments"),
    [(name, container["args"]) for name, container in containers()]
    + [(name, compose()[name]["command"]) for name in ("server", "worker")],
)
def test_the_commands_that_containers_run_exist(name: str, arguments: list[str]):
    command = [sys.executable, "-m", "noetl.cli", *arguments[:2], "--help"]
    helped = subprocess.run(command, capture_output=True, text=True, check=True)

    for argument in arguments[2:]:
        assert not argument.startswith("--") or f" {argument} " in helped.stdout, (name, argument)


def test_compose_waits_for_what_it_needs_and_names_no_secret():
    services = compose()

    assert services["server"]["depends_on"] == {"postgres": {"condition": "service_healthy"}}
    assert services["worker"]["depends_on"] == {"server": {"condition": "service_healthy"}}
    for name in ("server", "worker"):
        for key, value in services[name]["environment"].items():
            assert key in {setting.name for setting in TABLE}
            if key in ("NOETL_TOKEN", "NOETL_SECRET_KEY"):
                assert value.startswith("${")
    assert services["server"]["ports"] == ["127.0.0.1:8082:8082"]


def test_s18_workers_reach_neither_nats_nor_the_database():
    services = compose()
    inner = set(services["nats"]["networks"]) | set(services["postgres"]["networks"])

    assert inner.isdisjoint(services["worker"]["networks"])
    assert {*inner, *services["worker"]["networks"]} == set(services["server"]["networks"])
    assert "NATS_PASSWORD" in services["server"]["environment"]["NOETL_NATS_URL"]
    for name, container in containers():
        given = {variable["name"] for variable in container["env"]}
        assert "server" in name or given.isdisjoint({"NOETL_NATS_URL", "NOETL_DATABASE_URL"})


def test_the_chart_is_of_this_version():
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    values = yaml.safe_load((CHART / "values.yaml").read_text())

    assert chart["appVersion"] == chart["version"] == values["image"]["tag"] == __version__


# --- S35: what runs in the cluster runs under a policy -------------------------------------------


def test_s35_pods_have_no_more_rights_than_they_need():
    for one in OBJECTS:
        if one["kind"] != "Deployment":
            continue
        pod = one["spec"]["template"]["spec"]
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        volumes = {volume["name"] for volume in pod["volumes"]}
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["readOnlyRootFilesystem"] is True
            assert (security["privileged"], security["capabilities"]) == (False, {"drop": ["ALL"]})
            assert {mount["name"] for mount in container["volumeMounts"]} == volumes
            assert {"name": "NOETL_TIMEOUT", "value": "3600"} in container["env"]


def test_s35_workers_are_called_by_nobody_and_reach_no_metadata_service():
    spec = of("NetworkPolicy", "prod-worker")["spec"]
    labels = of("Deployment", "prod-worker-gpu")["spec"]["template"]["metadata"]["labels"]

    assert spec["podSelector"]["matchLabels"].items() <= labels.items()
    assert (spec["policyTypes"], spec["ingress"]) == (["Ingress", "Egress"], [])
    [outside] = [rule["to"] for rule in spec["egress"] if "ports" not in rule]
    assert outside == [{"ipBlock": {"cidr": "0.0.0.0/0", "except": ["169.254.0.0/16"]}}]
    server = of("NetworkPolicy", "prod-server")["spec"]
    assert all(rule["ports"] == [{"port": 8082}] for rule in server["ingress"])


def test_s35_the_policy_for_containers_in_the_chart_is_one_that_workers_read(tmp_path):
    text = of("ConfigMap", "prod-containers")["data"]["containers.json"]
    (tmp_path / "containers.json").write_text(text)
    policy = read_container_policy(str(tmp_path / "containers.json"))

    assert policy.non_root
    assert policy.host_paths == ()
    pods = of("Deployment", "prod-worker-default")["spec"]["template"]["spec"]
    assert {"name": "policy", "configMap": {"name": "prod-containers"}} in pods["volumes"]


def test_s35_without_network_policies_the_rest_is_the_same():
    without = rendered("prod", {"networkPolicy": {"enabled": False}})

    assert "NetworkPolicy" not in {one["kind"] for one in without}
    assert "ConfigMap" in {one["kind"] for one in without}
