"""kind: container, by the commands and API calls it issues: no engine runs here.

A stand-in for docker and podman writes down what it is told; a stand-in for the Kubernetes API
keeps Jobs and says how their pods stand.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from noetl.errors import BadSetting
from noetl.tools.rules import ContainerPolicy, Rules, read_container_policy
from tests.tools.running import Bench, failure, on_bench, ran
from tests.tools.services import answering, refusing

ENGINE = """#!{python}
import json, os, pathlib, sys, time
args = sys.argv[1:]
env_file = ""
if "--env-file" in args:
    env_file = pathlib.Path(args[args.index("--env-file") + 1]).read_text()
stdin = sys.stdin.read() if "--interactive" in args or "login" in args else ""
with open({log!r}, "a") as log:
    told = {{"args": args, "env": dict(os.environ), "env_file": env_file, "stdin": stdin}}
    log.write(json.dumps(told) + "\\n")
if args[0] == "login":
    sys.exit(0 if stdin == "canary-password" else 1)
if args[0] == "rm":
    pathlib.Path({log!r} + ".left").unlink(missing_ok=True)
    sys.exit(0)
text = " ".join(args)
if "img/hello" in text:
    print('{{"n": 1}}')
elif "img/exit3" in text:
    print("no good", file=sys.stderr)
    sys.exit(3)
elif "img/gone" in text:
    print("docker: Error response from daemon: manifest unknown", file=sys.stderr)
    sys.exit(125)
elif "img/denied" in text:
    print("docker: Error response from daemon: pull access denied", file=sys.stderr)
    sys.exit(125)
elif "img/down" in text:
    print("docker: Cannot connect to the Docker daemon", file=sys.stderr)
    print("\\nRun 'docker run --help' for more information", file=sys.stderr)
    sys.exit(125)
elif "img/socket" in text:
    print("docker: permission denied while trying to connect to docker.sock", file=sys.stderr)
    sys.exit(125)
elif "img/odd" in text:
    print("docker: invalid reference format", file=sys.stderr)
    sys.exit(125)
elif "img/left" in text and pathlib.Path({log!r} + ".left").exists():
    print("docker: Conflict. The container name is already in use", file=sys.stderr)
    sys.exit(125)
elif "img/sleep" in text:
    print("asleep", flush=True)
    time.sleep(3600)
"""


class Engine:
    """The stand-in's directory and what it was told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "told"

    def install(self, name: str) -> None:
        program = self.folder / name
        program.write_text(ENGINE.format(python=sys.executable, log=str(self.log)))
        program.chmod(0o755)

    @property
    def told(self) -> list[dict[str, Any]]:
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [json.loads(line) for line in lines]


@pytest.fixture
def engine(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    engine = Engine(tmp_path / "bin")
    engine.install("docker")
    monkeypatch.setenv("PATH", str(engine.folder))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    return engine


def run(**config: Any) -> Any:
    return ran("container", config, settings={"credentials": {"reg": REGISTRY}})


REGISTRY = {"username": "me", "password": "canary-password", "registry": "registry.example.com"}


def test_what_docker_is_told(engine, tmp_path):
    outcome = run(
        image="img/hello:1",
        command=["say", "$(date)", "a b"],
        entrypoint="python -u",
        env={"LEVEL": 3, "DEBUG": True},
        cwd="/srv",
        user="1000:1000",
        stdin="input",
        mounts=[
            {"source": "scans", "target": "/in", "read_only": True},
            {"source": str(tmp_path), "target": "/out"},
        ],
        network="none",
        resources={"cpu": 0.5, "memory": "512Mi", "gpu": 1},
        labels={"team": "a"},
        pull="never",
        decode="json",
    )

    assert outcome.result["data"] == {"n": 1}
    assert outcome.sh == {"exit_code": 0}
    [told] = engine.told
    args = told["args"]
    env_file = args[args.index("--env-file") + 1]
    assert args == [
        *("run", "--name", "noetl-s-t-action-1-1", "--pull", "never", "--rm", "--interactive"),
        *("--label", "noetl.execution=1", "--label", "noetl.step=s", "--label", "team=a"),
        *("--env-file", env_file),
        *("--mount", "type=volume,source=scans,target=/in,readonly"),
        *("--mount", f"type=bind,source={tmp_path},target=/out"),
        *("--workdir", "/srv", "--user", "1000:1000", "--network", "none"),
        *("--entrypoint", "python", "--cpus", "0.5", "--memory", "512m", "--gpus", "1"),
        *("img/hello:1", "-u", "say", "$(date)", "a b"),
    ]
    assert told["env_file"] == "LEVEL=3\nDEBUG=true\n"
    assert told["stdin"] == "input"
    assert not Path(env_file).exists()


def test_a_text_is_split_as_a_shell_would_and_kept_containers_stay(engine):
    run(image="img/x", command="say 'a b'", keep=True)

    assert engine.told[0]["args"][-3:] == ["img/x", "say", "a b"]
    assert "--rm" not in engine.told[0]["args"]


def test_the_engine_is_found_or_named(engine):
    run(image="img/x")
    (engine.folder / "docker").unlink()
    nothing = run(image="img/x")
    engine.install("podman")
    found = run(image="img/hello")
    named = run(image="img/hello", runtime="docker")

    assert failure(nothing)[0] == "not_found"
    assert "neither docker nor podman" in failure(nothing)[1]
    assert found.is_ok
    assert failure(named)[0] == "not_found"


def test_s12_the_engine_sees_little_of_the_workers_environment(engine, monkeypatch):
    monkeypatch.setenv("NOETL_TOKEN", "canary-1")
    monkeypatch.setenv("DOCKER_HOST", "unix:///run/x.sock")
    run(image="img/x", env={"LD_PRELOAD": "/evil.so", "PATH": "/evil"})

    seen = engine.told[0]["env"]
    assert set(seen) - {"LC_CTYPE"} <= {"PATH", "HOME", "LANG", "DOCKER_HOST"}
    assert seen["PATH"] == str(engine.folder)


@pytest.mark.parametrize(
    ("config", "kind", "words"),
    [
        ({"image": "img/exit3"}, "exception", "no good"),
        ({"image": "img/gone"}, "not_found", "manifest unknown"),
        ({"image": "img/denied"}, "auth", "access denied"),
        ({"image": "img/down"}, "connection", "Cannot connect"),
        ({"image": "img/socket"}, "auth", "may not use the container engine"),
        ({"image": "img/odd"}, "client_error", "invalid reference"),
        ({"image": "--privileged"}, "auth", "not an image"),
        ({"image": "img/x", "command": "say 'a"}, "client_error", "cannot be split"),
        ({"image": "img/x", "env": {"A": "1\n2"}}, "client_error", "line breaks"),
        ({"image": "img/x", "env": {"A=B": "1"}}, "client_error", "line breaks"),
        (
            {"image": "img/x", "mounts": [{"source": "a,readonly", "target": "/x"}]},
            "auth",
            "commas",
        ),
        ({"image": "img/x", "decode": "json"}, "parse", "decode"),
        ({"image": "img/x", "auth": "nobody"}, "auth", "nobody"),
    ],
)
def test_failures_are_named(engine, config, kind, words):
    outcome = run(**config)

    assert failure(outcome)[0] == kind
    assert words in failure(outcome)[1]


def test_exit_codes_mean_what_the_task_says(engine):
    fine = run(image="img/exit3", ok_codes=[0, 3])
    again = run(image="img/exit3", retry_codes=[3])

    assert fine.result["exit_code"] == 3
    assert again.error.retryable
    assert (again.error.code, again.sh) == (3, {"exit_code": 3})


def test_s09_a_directory_outside_the_allowed_one_is_not_mounted(engine, tmp_path):
    settings = {"rules": Rules(file_root=str(tmp_path / "bin"))}
    mounts = [{"source": str(tmp_path), "target": "/x"}]
    outcome = ran("container", {"image": "img/x", "mounts": mounts}, settings=settings)

    assert failure(outcome)[0] == "auth"
    assert engine.told == []


def test_s06_a_registry_is_shown_the_credential_and_nobody_else(engine):
    good = run(image="img/hello", auth="reg")
    bad = run(image="img/hello", auth={**REGISTRY, "password": "canary-wrong"})

    login, ran_it, refused = engine.told
    registry = "registry.example.com"
    assert login["args"] == ["login", "--username", "me", "--password-stdin", registry]
    assert login["stdin"] == "canary-password"
    assert ran_it["env"]["DOCKER_CONFIG"] == login["env"]["DOCKER_CONFIG"]
    assert "canary" not in str(ran_it)
    assert good.is_ok
    assert failure(bad)[0] == "auth"
    assert "canary" not in str(bad)
    assert refused["args"][0] == "login"


def test_a_container_that_a_lost_worker_left_is_removed_first(engine):
    Path(f"{engine.log}.left").touch()
    outcome = run(image="img/left")

    assert outcome.is_ok
    assert [told["args"][0] for told in engine.told] == ["run", "rm", "run"]


def test_a_stopped_container_is_removed(engine):
    late = run(image="img/sleep", timeout="1s")

    async def work(bench: Bench) -> None:
        asleep = asyncio.Event()

        def heard(text: str) -> None:
            asleep.set()

        call = bench.run("container", {"image": "img/sleep"}, log=heard)
        task = asyncio.create_task(call)
        await asleep.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    on_bench(work)

    assert failure(late)[0] == "timeout"
    assert [told["args"][0] for told in engine.told] == ["run", "rm", "run", "rm"]
    assert engine.told[1]["args"] == ["rm", "--force", "noetl-s-t-action-1-1"]


# --- Kubernetes --------------------------------------------------------------------------------


class Cluster:
    """The part of the Kubernetes API that Jobs need."""

    def __init__(self) -> None:
        self.jobs: dict[str, Any] = {}
        self.deleted: list[str] = []
        self.tokens: set[str | None] = set()
        self.states: list[dict[str, Any]] = [PENDING, ended(0)]
        self.logs: list[str] = []

    async def create(self, request: web.Request) -> web.StreamResponse:
        self.tokens.add(request.headers.get("Authorization"))
        job = await request.json()
        name = job["metadata"]["name"]
        if name in self.jobs:
            return web.json_response({"message": "already exists"}, status=409)
        self.jobs[name] = job
        return web.json_response(job, status=201)

    async def pods(self, request: web.Request) -> web.StreamResponse:
        name = request.query["labelSelector"].removeprefix("job-name=")
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        pod = {"metadata": {"name": f"{name}-x"}, "status": state}
        return web.json_response({"items": [pod]})

    async def log(self, request: web.Request) -> web.StreamResponse:
        if not self.logs:
            return web.Response(text='{"n": 2}\n')
        assert len(self.logs) == 1 or request.query["limitBytes"] == "65536"
        text = self.logs.pop(0)
        return web.Response(text=text) if text else web.Response(status=400)

    async def delete(self, request: web.Request) -> web.StreamResponse:
        assert request.query["propagationPolicy"] == "Background"
        self.deleted.append(request.match_info["name"])
        return web.json_response({})

    def routes(self) -> list[Any]:
        jobs = "/apis/batch/v1/namespaces/lab/jobs"
        pods = "/api/v1/namespaces/lab/pods"
        return [
            ("POST", jobs, self.create),
            ("DELETE", jobs + "/{name}", self.delete),
            ("GET", pods, self.pods),
            ("GET", pods + "/{name}/log", self.log),
        ]


PENDING = {"phase": "Pending"}


def ended(code: int) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code}}
    phase = "Failed" if code else "Succeeded"
    return {"phase": phase, "containerStatuses": [{"state": state}]}


def waiting(reason: str) -> dict[str, Any]:
    state = {"waiting": {"reason": reason, "message": f"it said {reason}"}}
    return {"phase": "Pending", "containerStatuses": [{"state": state}]}


@pytest.fixture
def cluster():
    cluster = Cluster()
    with answering(*cluster.routes()) as url:
        cluster.url = url
        yield cluster


def run_job(cluster: Cluster, policy: ContainerPolicy | None = None, **config: Any) -> Any:
    fields = {"server": cluster.url, "token": "canary-token", "namespace": "lab"}
    written = {"runtime": "kubernetes", "auth": "k8s", "image": "img/a", **config}
    rules = Rules(containers=policy or ContainerPolicy())
    return ran("container", written, settings={"credentials": {"k8s": fields}, "rules": rules})


NAME = "noetl-s-t-action-1-1"


def test_a_job_is_created_watched_read_and_deleted(cluster):
    outcome = run_job(
        cluster,
        command="say 'a b'",
        entrypoint=["python"],
        env={"LEVEL": 3},
        user=1000,
        cwd="/srv",
        mounts=[{"source": "claim", "target": "/in", "read_only": True}],
        resources={"cpu": 2, "memory": "1Gi", "gpu": 1},
        service_account="runner",
        node_selector={"disk": "ssd"},
        labels={"team": "a"},
        decode="json",
    )

    assert outcome.result["data"] == {"n": 2}
    assert cluster.deleted == [NAME]
    assert cluster.tokens == {"Bearer canary-token"}
    job = cluster.jobs[NAME]
    assert job["metadata"]["labels"]["team"] == "a"
    assert job["spec"]["backoffLimit"] == 0
    spec = job["spec"]["template"]["spec"]
    claim = {"name": "mount-0", "persistentVolumeClaim": {"claimName": "claim"}}
    assert spec["volumes"] == [claim]
    assert (spec["serviceAccountName"], spec["restartPolicy"]) == ("runner", "Never")
    assert spec["nodeSelector"] == {"disk": "ssd"}
    assert spec["containers"] == [
        {
            "name": "main",
            "image": "img/a",
            "command": ["python"],
            "args": ["say", "a b"],
            "workingDir": "/srv",
            "env": [{"name": "LEVEL", "value": "3"}],
            "volumeMounts": [{"name": "mount-0", "mountPath": "/in", "readOnly": True}],
            "imagePullPolicy": "IfNotPresent",
            "resources": {"limits": {"cpu": "2", "memory": "1Gi", "nvidia.com/gpu": 1}},
            "securityContext": {
                "runAsUser": 1000,
                "privileged": False,
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
                "seccompProfile": {"type": "RuntimeDefault"},
            },
        }
    ]


def test_what_a_pod_prints_is_told_while_it_runs_and_only_once(cluster):
    running = {"phase": "Running"}
    cluster.states = [running, running, running, ended(0)]
    cluster.logs = ["", "one\n", "one\ntwo\n", "one\ntwo\nthree\n"]
    told: list[str] = []
    fields = {"server": cluster.url, "token": "canary-token", "namespace": "lab"}
    config = {"runtime": "kubernetes", "auth": fields, "image": "img/a"}
    outcome = ran("container", config, log=told.append)

    assert told == ["one\n", "two\n", "three\n"]
    assert outcome.result["stdout"] == "one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("state", "kind", "words"),
    [
        (ended(3), "exception", "exit code 3"),
        (waiting("ImagePullBackOff"), "not_found", "it said ImagePullBackOff"),
        (waiting("CreateContainerConfigError"), "client_error", "cannot start"),
        ({"phase": "Failed", "reason": "Evicted"}, "server_error", "Evicted"),
    ],
)
def test_how_a_pod_ends_gets_a_name_and_the_job_is_deleted(cluster, state, kind, words):
    cluster.states = [state]
    outcome = run_job(cluster)

    assert failure(outcome)[0] == kind
    assert words in failure(outcome)[1]
    assert cluster.deleted == [NAME]


def test_a_job_of_a_lost_worker_is_waited_for_and_a_kept_one_stays(cluster):
    cluster.jobs[NAME] = {}
    outcome = run_job(cluster, keep=True)

    assert outcome.is_ok
    assert cluster.deleted == []


def test_a_job_that_takes_too_long_is_deleted(cluster):
    cluster.states = [PENDING]
    outcome = run_job(cluster, timeout="300ms")

    assert failure(outcome)[0] == "timeout"
    assert cluster.deleted == [NAME]


@pytest.mark.parametrize(("status", "kind"), [(401, "auth"), (403, "auth"), (422, "client_error")])
def test_what_the_api_refuses_gets_a_name(status, kind):
    with answering(("*", "/{rest:.*}", refusing(status, {"message": "not so"}))) as url:
        cluster = Cluster()
        cluster.url = url
        outcome = run_job(cluster)

    assert failure(outcome)[0] == kind
    assert "not so" in failure(outcome)[1]
    assert "canary" not in str(outcome)


def test_what_a_job_cannot_have_is_refused(cluster, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    assert failure(run_job(cluster, stdin="x"))[0] == "client_error"
    assert failure(run_job(cluster, user="root"))[0] == "client_error"
    nowhere = ran("container", {"runtime": "kubernetes", "image": "i"})
    assert "Which cluster?" in failure(nowhere)[1]


# --- S35: the operator's policy ----------------------------------------------------------------

POLICY = ContainerPolicy(
    images=("img/*", "ghcr.io/our/*"),
    namespaces=("lab",),
    service_accounts=("runner",),
    node_selector={"zone": "tasks"},
    host_paths=("/srv/shared",),
    capabilities=("NET_BIND_SERVICE",),
    non_root=True,
    read_only_root=True,
    max_cpu=2,
    max_memory="1Gi",
    max_gpu=0,
    max_seconds=600,
)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"image": "docker.io/evil/x"}, "ghcr.io/our/*"),
        ({"namespace": "kube-system"}, "kube-system"),
        ({"service_account": "admin"}, "admin"),
        ({"mounts": [{"source": "/", "target": "/host"}]}, '"/" of a node'),
        ({"mounts": [{"source": "/srv/shared/../../etc", "target": "/h"}]}, "of a node"),
        ({"mounts": [{"source": "/srv/sharedness", "target": "/h"}]}, "of a node"),
        ({"user": 0}, "root"),
        ({"user": "0:0"}, "root"),
        ({"resources": {"cpu": 3}}, "3 processors"),
        ({"resources": {"memory": "2Gi"}}, "more than 1Gi"),
        ({"resources": {"gpu": 1}}, "graphics"),
    ],
)
def test_s35_a_task_cannot_leave_the_policy(cluster, config, said):
    outcome = run_job(cluster, POLICY, **config)

    assert outcome.error.kind == "auth"
    assert said in outcome.error.message
    assert cluster.jobs == {}


def test_s35_a_job_has_what_the_policy_says_whatever_the_task_leaves_out(cluster):
    mounts = [{"source": "/srv/shared/x", "target": "/x"}]
    selector = {"zone": "elsewhere", "disk": "ssd"}
    outcome = run_job(cluster, POLICY, mounts=mounts, node_selector=selector)

    assert outcome.is_ok, outcome
    job = cluster.jobs[NAME]["spec"]
    assert job["activeDeadlineSeconds"] == 600
    pod = job["template"]["spec"]
    assert pod["serviceAccountName"] == "runner"
    assert pod["nodeSelector"] == {"zone": "tasks", "disk": "ssd"}
    [container] = pod["containers"]
    assert container["resources"] == {"limits": {"cpu": "2", "memory": "1Gi"}}
    assert container["securityContext"] == {
        "privileged": False,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"], "add": ["NET_BIND_SERVICE"]},
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsNonRoot": True,
        "readOnlyRootFilesystem": True,
    }


def test_s35_without_a_policy_a_job_has_no_token_and_no_directory_of_a_node(cluster):
    assert run_job(cluster).is_ok
    pod = cluster.jobs[NAME]["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False

    refused = run_job(cluster, mounts=[{"source": "/var/run", "target": "/x"}])
    assert refused.error.kind == "auth"


@pytest.mark.parametrize("text", ["", "[]", '{"images": 3}', '{"imagez": []}'])
def test_s35_a_policy_that_cannot_be_read_stops_the_worker(tmp_path, text):
    path = tmp_path / "containers.json"
    path.write_text(text)
    with pytest.raises(BadSetting, match="NOETL_CONTAINERS"):
        read_container_policy(str(path))
    with pytest.raises(BadSetting, match="cannot be read"):
        read_container_policy(str(tmp_path / "none"))
