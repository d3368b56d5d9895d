"""The written form of every tool kind: strict, explained, documented, and open to plug-ins."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import DistributionFinder, MetadataPathFinder
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from msgspec import inspect

from noetl.dsl import compile_text
from noetl.errors import PluginRejected
from noetl.model.toolshape import ToolShape
from noetl.templates.views import VIEWS, Views
from noetl.tools.base import Tool
from noetl.tools.registry import BUILT_IN, tool_of, tools
from noetl.tools.sql.config import SqlConfig
from tests.examples.system import playbook, ran

DOCS = Path(__file__).parents[2] / "docs" / "tools"


def words(text: str) -> set[str]:
    return set(text.split())


PROMISED = words(
    "noop python http postgres duckdb sqlite sql shell playbook workbook secrets nats transfer "
    "store artifact container mcp llm quantum mysql snowflake clickhouse bigquery mssql oracle"
)
NAMES_OF_SQL = words("mysql snowflake clickhouse bigquery mssql oracle")
TASK_KEYS = words(
    "name kind desc args input with spec retry poll set output output_select before after "
    "finally sink outcome"
)
ERROR_KINDS = words(
    "timeout connection rate_limit auth not_found client_error server_error schema parse "
    "db_connection db_constraint db_deadlock db_timeout exception cancelled lease_lost unknown"
)

KINDS = [tools()[kind] for kind in BUILT_IN]
every_kind = pytest.mark.parametrize("shape", KINDS, ids=lambda shape: shape.kind)


def fields_of(shape: ToolShape) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(shape.config)}


def structs_of(shape: ToolShape) -> Iterator[inspect.StructType]:
    """The config and every structured value inside it."""
    waiting: list[Any] = [inspect.type_info(shape.config)]
    while waiting:
        found = waiting.pop()
        if isinstance(found, inspect.StructType):
            yield found
            waiting += [field.type for field in found.fields]
        for inner in ("type", "item_type", "key_type", "value_type"):
            if isinstance(getattr(found, inner, None), inspect.Type):
                waiting.append(getattr(found, inner))
        waiting += getattr(found, "types", ())


def page_of(shape: ToolShape) -> str:
    return (DOCS / f"{shape.kind}.md").read_text()


def example_tasks(page: str) -> list[dict[str, Any]]:
    tasks = []
    for block in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL):
        for step in yaml.safe_load(block):
            tool = step["tool"]
            tasks += tool if isinstance(tool, list) else [tool]
    return tasks


def written_config(shape: ToolShape, task: dict[str, Any]) -> dict[str, Any]:
    """What the task says to its tool, in the tool's own spelling."""
    config = {
        shape.aliases.get(key, key): value for key, value in task.items() if key not in TASK_KEYS
    }
    if shape.kind == "workbook":
        config.setdefault("task", task.get("name"))
    return config


# --- The shapes --------------------------------------------------------------------------------


def test_every_promised_kind_is_there_once_and_no_other():
    assert sorted(BUILT_IN) == sorted(PROMISED)


@every_kind
def test_an_unknown_field_is_refused_also_inside_structured_values(shape):
    with pytest.raises(msgspec.ValidationError, match="unknown field `no_such_field`"):
        msgspec.convert({"no_such_field": 1}, shape.config)

    for struct in structs_of(shape):
        assert struct.forbid_unknown_fields, struct.cls


@every_kind
def test_a_config_is_never_refused_for_what_it_leaves_out(shape):
    """What must be written is said by `needs`, which knows that a template counts as written."""
    msgspec.convert({}, shape.config)


@every_kind
def test_every_field_has_one_line_of_help(shape):
    for struct in structs_of(shape):
        for field in struct.fields:
            assert isinstance(field.type, inspect.Metadata), f"{struct.cls}.{field.name}"
            text = (field.type.extra_json_schema or {}).get("description", "")
            assert text.endswith("."), f"{struct.cls}.{field.name} has no help"
            assert "\n" not in text


@every_kind
def test_aliases_needs_and_code_fields_name_fields_that_exist(shape):
    fields = fields_of(shape)

    assert set(shape.aliases.values()) <= fields
    assert not set(shape.aliases) & fields
    assert {name for group in shape.needs for name in group} <= fields
    assert set(shape.code_fields) <= fields
    if shape.code_fields:
        assert shape.code_inputs in fields | TASK_KEYS


@every_kind
def test_no_field_takes_a_word_that_belongs_to_the_task(shape):
    assert not (fields_of(shape) | set(shape.aliases)) & TASK_KEYS


@every_kind
def test_editors_can_be_given_a_schema_of_the_config(shape):
    schema = msgspec.json.schema(shape.config)

    assert schema["$defs"][shape.config.__name__]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("http", {"method": "FETCH"}),
        ("http", {"timeout": "soon"}),
        ("http", {"timeout": -1}),
        ("http", {"max_redirects": 51}),
        ("http", {"auth": {"type": "basic", "token": "x"}}),
        ("http", {"auth": {"type": "magic"}}),
        ("postgres", {"mode": "overwrite"}),
        ("postgres", {"batch_size": 0}),
        ("postgres", {"effect": "twice"}),
        ("duckdb", {"attach": {"shop": {"kind": "oracle"}}}),
        ("duckdb", {"memory_limit": "much"}),
        ("shell", {"ok_codes": [256]}),
        ("transfer", {"source": {"kind": "fax"}}),
        ("transfer", {"target": {"kind": "postgres"}}),
        ("store", {"op": "burn"}),
        ("llm", {"temperature": 3}),
        ("llm", {"messages": [{"role": "king", "content": "no"}]}),
        ("quantum", {"shots": 0}),
    ],
)
def test_a_value_out_of_bounds_is_refused(kind, config):
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(config, tools()[kind].config)


@pytest.mark.parametrize(
    ("kind", "config"),
    [
        ("http", {"timeout": 5}),
        ("http", {"timeout": "500ms"}),
        ("http", {"timeout": {"connect": 5, "read": "15s"}}),
        ("http", {"auth": {"type": "oauth2", "token_url": "https://id/token", "scope": ["a"]}}),
        ("http", {"files": {"a": "a.csv", "b": {"content": "x", "filename": "b.txt"}}}),
        ("http", {"download": "s3://bucket/key"}),
        ("postgres", {"table": "t", "rows": [{"a": 1}], "key": ["a", "b"], "mode": "upsert"}),
        ("postgres", {"table": "t", "rows": {"_ref": {"store": "file", "key": "k"}}}),
        ("postgres", {"command": "SELECT %s", "params": [1], "auth": {"db_host": "h"}}),
        ("postgres", {"table": "t", "copy": {"source": "rows.csv", "delimiter": ";"}}),
        ("shell", {"cmd": ["ls", "-l"]}),
        ("playbook", {"path": "a/b", "version": "latest"}),
        ("quantum", {"op": "status", "job_id": "j-1"}),
        ("container", {"resources": {"cpu": 2, "memory": "1Gi"}}),
    ],
)
def test_the_forms_of_a_value_are_accepted(kind, config):
    msgspec.convert(config, tools()[kind].config)


# --- The pages ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (
            "{kind: postgres, table: t, mode: upsrt}",
            "`mode` of kind postgres: it cannot be 'upsrt'. Write insert, upsert or ignore.",
        ),
        (
            "{kind: http, url: [1]}",
            "`url` of kind http: it must be a text, not a list.",
        ),
        (
            "{kind: http, url: /, headers: {a: 1, b: [1]}}",
            "`headers.b` of kind http: it must be true or false, a number or a text, not a list.",
        ),
        (
            "{kind: quantum, circuit: c, shots: 1.5}",
            "`shots` of kind quantum: it must be a whole number, not one with a fraction.",
        ),
        (
            "{kind: nats, op: publish, subject: a, timeout: soon}",
            "`timeout` of kind nats: it is not written as it must be. Write it like 30s.",
        ),
        (
            "{kind: transfer, source: {kind: csv}, target: {kind: file, path: b}}",
            "`source.kind` of kind transfer: it cannot be 'csv'. "
            "Write http, postgres, duckdb, sqlite, file or store.",
        ),
        (
            "{kind: llm, model: m, messages: [{role: me, content: x}]}",
            "`messages[0].role` of kind llm: it cannot be 'me'. "
            "Write system, developer, user, assistant or tool.",
        ),
    ],
)
def test_whoever_writes_a_wrong_value_is_told_the_right_ones(task, said):
    head = "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: p, path: p}\n"
    found = compile_text(f"{head}workflow:\n  - step: start\n    tool: {task}\n", tools=tools())

    assert [problem.message for problem in found.problems] == [said]


def test_the_index_lists_every_kind_with_its_summary():
    index = (DOCS / "README.md").read_text()

    for shape in KINDS:
        assert f"| [{shape.kind}]({shape.kind}.md) | {shape.summary} |" in index


def test_there_is_no_page_of_a_kind_that_is_gone():
    assert {path.stem for path in DOCS.glob("*.md")} - {"README"} == PROMISED


@every_kind
def test_every_page_explains_every_field_as_its_help_does(shape):
    page = page_of(shape)
    if shape.kind in NAMES_OF_SQL:
        assert "[sql](sql.md)" in page
        return
    for struct in structs_of(shape):
        for field in struct.fields:
            row = rf"^\| `{field.encode_name}`.* \| {re.escape(help_of(field))} \|$"
            assert re.search(row, page, re.MULTILINE), f"{struct.cls}.{field.name}"
    for alias, field_name in shape.aliases.items():
        assert re.search(rf"^\| `{field_name}`.*, `{alias}`", page, re.MULTILINE), alias


def help_of(field: inspect.Field) -> str:
    assert isinstance(field.type, inspect.Metadata)
    return str((field.type.extra_json_schema or {})["description"])


@every_kind
def test_no_page_explains_a_field_that_is_gone(shape):
    if shape.kind in NAMES_OF_SQL:
        return
    known = {field.encode_name for struct in structs_of(shape) for field in struct.fields}
    known |= {struct.tag_field for struct in structs_of(shape) if struct.tag_field}
    known |= set(shape.aliases)
    tables = re.findall(r"\| field \|.*\n\|-.*\n((?:\|.*\n)+)", page_of(shape))

    assert tables
    for row in "".join(tables).splitlines():
        assert set(re.findall(r"`(\w+)`", row.split("|")[1])) <= known, row


@every_kind
def test_every_example_on_a_page_is_a_task_of_that_kind_that_validates(shape):
    tasks = [task for task in example_tasks(page_of(shape)) if task["kind"] == shape.kind]

    assert tasks
    for task in tasks:
        config = written_config(shape, task)
        assert set(config) <= fields_of(shape)
        for group in shape.needs:
            assert any(config.get(name) is not None for name in group), group
        settled = {key: value for key, value in config.items() if "{{" not in str(value)}
        msgspec.convert(settled, shape.config)


@every_kind
def test_every_page_names_only_error_kinds_that_exist(shape):
    page = page_of(shape)
    if shape.kind in NAMES_OF_SQL:
        return
    errors = page.split("\n## Errors\n")[1]

    assert "\n## Result\n" in page
    assert set(re.findall(r"^\| `(\w+)`", errors, re.MULTILINE)) <= ERROR_KINDS


# --- Plug-ins ----------------------------------------------------------------------------------


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A directory that packages can be installed into."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if getattr(sys.modules[name], "__file__", None) in map(str, tmp_path.glob("*.py")):
            del sys.modules[name]


def install(site: Path, package: str, source: str, entry_point: str) -> None:
    (site / f"{package}.py").write_text(source)
    metadata = site / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[noetl.tools]\n{entry_point}\n")


def plugin(kind: str) -> str:
    return f"""
from typing import Annotated
from noetl.tools.base import Tool, ToolConfig, about

class Config(ToolConfig, frozen=True, kw_only=True):
    whom: Annotated[str, about("Who is greeted.")] = "world"

TOOL = Tool(kind="{kind}", summary="Says hello.", config=Config)
"""


def test_an_installed_plugin_adds_its_kind(site):
    assert "greet" not in tools()

    install(site, "noetl_greet", plugin("greet"), "greet = noetl_greet:TOOL")

    found = tools()
    assert set(found) == {*PROMISED, "greet"}
    assert msgspec.convert({"whom": "you"}, found["greet"].config)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"who": "you"}, found["greet"].config)


RUNNING = """
async def run(config, context):
    return config.whom

TOOL = Tool(kind="greet", summary="Says hello.", config=Config, run=run)
"""


def test_a_plugin_runs_if_it_says_how_and_else_is_only_checked(site):
    source = plugin("greet").replace("TOOL =", "SHAPE =")
    install(site, "noetl_greet", source + RUNNING, "greet = noetl_greet:TOOL")
    install(site, "noetl_wave", plugin("wave"), "wave = noetl_wave:TOOL")

    found = tools()
    assert found["greet"].run is not None
    assert found["wave"].run is None
    assert isinstance(found["wave"], Tool)


VAULT = """
from noetl.model.outcome import ok
from noetl.tools.base import Tool, ToolConfig

async def run(config, context):
    return ok("c4nary-of-a-plugin")

TOOL = Tool(kind="vault", summary="A secret.", config=ToolConfig, run=run, secret_result=True)
"""
USES_SECRET = """
- step: start
  tool:
    - { name: key, kind: vault }
    - { name: use, kind: python, args: { key: "{{ key }}" }, code: "return len(key)" }
"""


def test_what_a_kind_declares_secret_serves_later_tasks_and_is_recorded_as_a_mask(site):
    install(site, "noetl_vault", VAULT, "vault = noetl_vault:TOOL")

    run = ran(playbook(USES_SECRET))

    assert run.step("start")["result"] == len("c4nary-of-a-plugin")
    assert "c4nary" not in repr(run)


LEDGER = """
from noetl.model.outcome import ok
from noetl.tools.base import Tool, ToolConfig

async def run(config, context):
    return ok({"rows": [{"id": 7}], "row_count": 1})

TOOL = Tool(kind="ledger", summary="Rows.", config=ToolConfig, run=run, view="rows")
"""
READS_ROWS = """
- step: read
  tool:
    - { name: rows, kind: ledger }
    - { name: first, kind: noop, result: "{{ rows[0].id }}" }
    - { name: all, kind: ledger }
  next: { arcs: [{ step: end, when: "{{ read[0].id == 7 }}" }] }
- step: end
  tool: { kind: noop, result: "{{ [read[0].id, read.results.first, read.results.rows[0].id] }}" }
"""


def test_a_plugin_declares_how_its_results_are_read(site):
    install(site, "noetl_ledger", LEDGER, "ledger = noetl_ledger:TOOL")

    assert ran(playbook(READS_ROWS)).step("end")["result"] == [7, 7, 7]


def test_every_kind_of_sql_yields_rows_and_http_an_answer():
    """Recorded playbooks read results in these ways; a net records no view."""
    read_as_rows = {kind for kind, tool in tools().items() if issubclass(tool.config, SqlConfig)}

    assert {kind: tool.view for kind, tool in tools().items() if tool.view != "plain"} == {
        **dict.fromkeys(read_as_rows, "rows"),
        "http": "answer",
    }


def test_a_plugin_cannot_replace_a_kind_of_ours(site):
    install(site, "noetl_better_http", plugin("http"), "http = noetl_better_http:TOOL")

    with pytest.raises(PluginRejected, match=r"noetl_better_http.*\"http\".*NoETL itself"):
        tools()


def test_two_plugins_of_one_kind_are_refused_naming_both(site):
    install(site, "noetl_one", plugin("greet"), "greet = noetl_one:TOOL")
    install(site, "noetl_two", plugin("greet"), "greet = noetl_two:TOOL")

    with pytest.raises(PluginRejected) as refused:
        tools()

    assert "noetl_one" in str(refused.value)
    assert "noetl_two" in str(refused.value)


def test_a_plugin_that_does_not_load_is_named_with_its_reason(site):
    install(site, "noetl_broken", "raise OSError('no disk')", "broken = noetl_broken:TOOL")

    with pytest.raises(PluginRejected, match=r"\"broken\" of noetl_broken.*OSError: no disk"):
        tools()


def test_a_plugin_whose_view_does_not_exist_is_refused(site):
    ledger = LEDGER.replace('view="rows"', 'view="table"')
    install(site, "noetl_ledger", ledger, "ledger = noetl_ledger:TOOL")

    with pytest.raises(PluginRejected, match=r'"ledger" of .*view "table".*plain, answer, rows'):
        tools()


def test_results_of_our_kinds_are_read_while_a_plugin_is_being_installed(site):
    install(site, "noetl_broken", "raise OSError('no disk')", "broken = noetl_broken:TOOL")
    views = Views(tool_of)

    assert views["http"] is VIEWS["answer"]
    with pytest.raises(PluginRejected):
        views["broken"]


def test_a_plugin_that_is_no_tool_is_refused(site):
    install(site, "noetl_text", "TOOL = 'greet'", "text = noetl_text:TOOL")

    with pytest.raises(PluginRejected, match="is a str, not a Tool"):
        tools()


def test_a_plugin_in_an_archive_adds_its_kind(site, monkeypatch):
    (packed := site / "packed").mkdir()
    install(packed, "noetl_zipped", plugin("greet"), "greet = noetl_zipped:TOOL")
    monkeypatch.syspath_prepend(shutil.make_archive(str(site / "zipped"), "zip", packed))

    assert "greet" in tools()


def test_a_plugin_that_another_finder_finds_adds_its_kind(site, monkeypatch):
    """A program that is packed into one file brings a finder of its own."""
    (packed := site / "packed").mkdir()
    install(packed, "noetl_frozen", plugin("greet"), "greet = noetl_frozen:TOOL")
    (packed / "noetl_frozen.py").rename(site / "noetl_frozen.py")

    class Finder(DistributionFinder):
        def find_distributions(self, context=None):
            return MetadataPathFinder.find_distributions(self.Context(path=[str(packed)]))

        def find_spec(self, *names):
            return None

    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder()])

    assert "greet" in tools()


def loaded_by(program: str) -> set[str]:
    """The modules that a program imports, beside those that msgspec does."""
    before, after = (
        subprocess.run(
            [sys.executable, "-c", f"import sys\n{text}\nprint(*sys.modules)"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        for text in ("import msgspec", program)
    )
    return set(after) - set(before)


def test_a_kind_is_imported_when_it_is_asked_for():
    found = loaded_by("from noetl.tools.registry import tools\ntools()['noop']")

    kinds = {f"noetl.tools.{module}" for module in BUILT_IN.values()}
    assert found & kinds == {"noetl.tools.noop"}
    assert {name.split(".")[0] for name in found} == {"noetl"}


def test_asking_whether_there_is_a_kind_imports_none():
    found = loaded_by(
        "from noetl.tools.registry import tools\nassert 'http' in tools() and 'htp' not in tools()"
    )

    assert not found & {f"noetl.tools.{module}" for module in BUILT_IN.values()}


def test_importing_every_kind_loads_no_library_but_msgspec():
    """The compiler, the editor's schema and `noetl tools` do."""
    found = loaded_by("from noetl.tools.registry import tools\ndict(tools())")

    assert {name.split(".")[0] for name in found} == {"noetl"}


class _Sharing(msgspec.Struct, forbid_unknown_fields=True):
    """Has fields that are called as keys of every task."""

    name: str | None = None
    args: dict[str, Any] | None = None
    set: dict[str, Any] | None = None
    queue: str | None = None


def test_a_key_of_a_kind_that_every_task_has_is_the_tasks_too():
    kinds = {**tools(), "mq": ToolShape(kind="mq", summary="Sends.", config=_Sharing)}
    task = "{kind: mq, name: send, queue: q, args: {a: 1}, set: {ctx.k: 1}}"
    found = compile_text(
        "apiVersion: noetl.io/v2\nkind: Playbook\nmetadata: {name: x}\n"
        f"workflow: [{{step: start, tool: [{task}]}}]\n",
        tools=kinds,
    )

    assert found.net is not None, found.problems
    [made] = found.net.steps[0].tasks
    assert (made.name, made.inputs) == ("send", {"a": 1})
    assert made.config == {"args": {"a": 1}, "queue": "q", "set": {"ctx.k": 1}}
    assert made.patch is not None
    assert made.patch.ctx == {"k": 1}
