"""Loading task folders: what holds of a good one, and the error of every bad one."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from woodshed.errors import UsageError
from woodshed.model import Framework
from woodshed.tasks import find_tasks, load_task

BASE = """\
schema_version = "1.4"
[metadata]
difficulty = "easy"
extra = {any = ["thing", 1]}
[agent]
timeout_sec = 120
[verifier]
timeout_sec = 30
"""


def make(folder: Path, toml: str = BASE, **files: str) -> Path:
    """A small task folder; ``files`` are contents by path with ``__`` for ``/`` and ``_dot_`` for ``.``."""
    every = {
        "task.toml": toml,
        "instruction.md": "Do it.\n",
        "tests/test.sh": "#!/bin/bash\nexit 0\n",
        "tests/test_it.py": "def test_a():\n    pass\n",
        "solution/solve.sh": "#!/bin/bash\ntrue\n",
        "environment/workspace/start.txt": "hello\n",
        **{name.replace("__", "/").replace("_dot_", "."): text for name, text in files.items()},
    }
    for name, text in every.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def test_a_whole_task_is_loaded_with_every_value_in_its_place(tmp_path: Path) -> None:
    """Everything a task declares stands in the records, with Harbor's advice as limits."""
    toml = BASE + """env = {MODE = "${MODE:-fast}"}
[task]
name = "shed/first"
[environment]
workdir = "/app"
cpus = 2
memory = "2G"
storage_mb = 512
build_timeout_sec = 9
env = {A = "b"}
[solution]
env = {S = "t"}
[woodshed]
requirements = ["requests>=2.31", "rich[all] ~= 14.0 ; python_version >= '3.11'"]
protected = ["config/*.toml"]
expected_tests = ["test_it::test_a"]
rewards = {works = ["test_it::test_a"]}
capture = ["/srv/out"]
limits = {pids = 7, memory_mb = 64}
"""
    toml = toml.replace("schema_version", 'artifacts = ["report.txt", {source = "/logs/artifacts/a"}]\nschema_version')
    task = load_task(make(tmp_path / "set" / "one", toml))
    assert (task.id, task.group, task.instruction, task.agent_timeout_s) == ("shed/first", "set", "Do it.\n", 120)
    assert task.metadata == {"difficulty": "easy", "extra": {"any": ["thing", 1]}}
    environment, verifier = task.environment, task.verifier
    assert (environment.image, environment.workdir, environment.env) == ("host", "/app", {"A": "b"})
    assert environment.requirements == ("requests>=2.31", "rich[all] ~= 14.0 ; python_version >= '3.11'")
    assert environment.setup_timeout_s == 9
    limits = environment.limits
    assert (limits.memory_mb, limits.cpus, limits.disk_mb, limits.pids, limits.files) == (64, 2, 512, 7, 50_000)
    [upload] = environment.uploads
    assert (upload.source, upload.target) == (tmp_path / "set/one/environment/workspace", "/app")
    assert verifier.framework is Framework.PYTEST
    assert verifier.expected_tests == ("test_it::test_a",)
    assert verifier.rewards == {"works": ("test_it::test_a",)}
    assert verifier.protected == ("config/*.toml",)
    assert verifier.capture == ("/app", "/app/report.txt", "/logs/artifacts/a", "/srv/out")
    assert (verifier.timeout_s, verifier.env) == (30, {"MODE": "fast"})
    assert (task.solution, task.solution_env) == (tmp_path / "set/one/solution", {"S": "t"})


def test_a_plain_harbor_task_needs_nothing_of_ours(tmp_path: Path) -> None:
    """A folder with the least Harbor allows is a task of the host image that its reward file judges."""
    folder = make(tmp_path / "set" / "plain", "")
    task = load_task(folder)
    assert (task.id, task.environment.workdir, task.verifier.framework) == ("plain", "/workspace", None)
    assert task.verifier.expected_tests == ()
    assert task.verifier.capture == ("/workspace",)


@pytest.mark.parametrize("line", [
    'version = "1.0"', 'schema_version = "1.3"', 'version = "1.2"\nschema_version = "1.2"', 'source = "hub"',
])
def test_every_known_version_is_read(tmp_path: Path, line: str) -> None:
    """Both names of the version are understood, and so is its absence."""
    assert load_task(make(tmp_path / "t", line)).id == "t"


def test_expected_tests_may_stand_in_a_file(tmp_path: Path) -> None:
    """A file with an id a line is the list, whatever its line ends; ids keep their inner spaces."""
    folder = make(tmp_path / "t", '[woodshed]\nexpected_tests = "ids.txt"', ids_dot_txt="a::b[x y]\r\n\nc\n")
    assert load_task(folder).verifier.expected_tests == ("a::b[x y]", "c")


@pytest.mark.parametrize(("name", "framework"), [
    ("check_a.py", Framework.SCRIPT), ("a.test.mjs", Framework.NODE), ("deep/a_test.py", Framework.PYTEST),
])
def test_the_framework_is_told_from_the_names_of_the_tests(tmp_path: Path, name: str, framework: Framework) -> None:
    """Where tests are expected and no framework is written, the files decide."""
    folder = make(tmp_path / "t", '[woodshed]\nexpected_tests = ["a"]')
    (folder / "tests/test_it.py").unlink()
    (folder / "tests" / name).parent.mkdir(exist_ok=True)
    (folder / "tests" / name).touch()
    assert load_task(folder).verifier.framework is framework


def test_a_root_folder_as_image_is_made_absolute(tmp_path: Path) -> None:
    """``dir:`` is relative to the task's folder and replaces its Dockerfile."""
    folder = make(tmp_path / "t", '[woodshed]\nimage = "dir:../root"', environment__Dockerfile="FROM x\n")
    (tmp_path / "root").mkdir()
    assert load_task(folder).environment.image == f"dir:{tmp_path / 'root'}"


def test_network_can_be_given_up_for_the_whole_task(tmp_path: Path) -> None:
    """``network = "none"`` makes a task that asks for the internet run without."""
    asked = '[environment]\nnetwork_mode = "public"\n[verifier]\nallowed_hosts = ["a.b"]\n'
    assert load_task(make(tmp_path / "t", asked + '[woodshed]\nnetwork = "none"')).id == "t"


WRONG: list[tuple[str, str, str | None, str, str]] = [
    ("broken TOML", "a = = 1", None, "broken TOML", "Mend"),
    ("unknown key", "[woodshed]\nimagee = 1", "woodshed.imagee", "unknown key", "image"),
    ("unknown table", "[zzz]\na = 1", "zzz", "unknown key", "Remove it"),
    ("wrong type", '[agent]\ntimeout_sec = "soon"', "agent.timeout_sec", "number", "soon"),
    ("zero timeout", "[verifier]\ntimeout_sec = 0", "verifier.timeout_sec", "greater than 0", "0"),
    ("not finite", "[agent]\ntimeout_sec = inf", "agent.timeout_sec", "finite", "inf"),
    ("newer", 'schema_version = "1.5"', "schema_version", "1.5 is newer than 1.4", "Update Woodshed"),
    ("newer, old key", 'version = "2.0"', "version", "2.0 is newer", "Update Woodshed"),
    ("no version", 'schema_version = "new"', "schema_version", "no version", "1.4"),
    ("two versions", 'version = "1.0"\nschema_version = "1.1"', "version", "disagree", "schema_version"),
    ("no steps", "steps = []", "steps", "a list of no steps", "name the steps"),
    ("strategy", 'multi_step_reward_strategy = "mean"', "multi_step_reward_strategy", "without steps", "Remove"),
    ("step folder", '[[steps]]\nname = "a"', "steps.0.name", "no folder steps/a", "instruction.md"),
    ("step name", '[[steps]]\nname = "../a"', "steps.0.name", "no name of a folder", "letters"),
    ("step device", '[[steps]]\nname = "con.x"', "steps.0.name", "no name of a folder", "letters"),
    ("unknown step", '[woodshed.steps.z]\ncapture = []', "woodshed.steps.z", "no such step", "Name it"),
    ("windows", '[environment]\nos = "windows"', "environment.os", "windows", "cannot run"),
    ("gpus", "[environment]\ngpus = 1", "environment.gpus", "GPU", "0"),
    ("gpu types", '[environment]\ngpu_types = ["T4"]', "environment.gpu_types", "GPU", "Remove"),
    ("tpu", '[environment.tpu]\ntype = "v4"\ntopology = "2x2"', "environment.tpu", "TPU", "cannot run"),
    ("mcp", '[[environment.mcp_servers]]\nname = "a"', "environment.mcp_servers", "MCP", "cannot run"),
    ("retries", '[environment.healthcheck]\ncommand = "x"\nretries = 0', "environment.healthcheck.retries",
     "greater than 0", "0"),
    ("skills", '[environment]\nskills_dir = "s"', "environment.skills_dir", "skills", "Remove"),
    ("docker image", '[environment]\ndocker_image = "x:1"', "environment.workdir", "only the image", "workdir"),
    ("docker image's name", '[environment]\ndocker_image = "a b"', "environment.docker_image", "no name", "python"),
    ("hosts alone", '[environment]\nallowed_hosts = ["a"]', "environment.allowed_hosts", "allowlist", "mode"),
    ("public hosts", '[agent]\nnetwork_mode = "public"\nallowed_hosts = ["a"]', "agent.allowed_hosts", "allowlist",
     "mode"),
    ("an address", '[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["10.0.0.0/8"]', "agent.allowed_hosts",
     "an address", "example.com"),
    ("any host", '[verifier]\nnetwork_mode = "allowlist"\nallowed_hosts = ["*"]', "verifier.allowed_hosts", "'*'",
     "public"),
    ("a URL", '[verifier]\nnetwork_mode = "allowlist"\nallowed_hosts = ["http://a"]', "verifier.allowed_hosts",
     "no host", "example.com"),
    ("public", '[environment]\nnetwork_mode = "public"', "environment.network_mode", "give itself", 'network = "none"'),
    ("agent network", '[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["a"]', "agent.network_mode", "give itself",
     "WOODSHED_TASK_NETWORK"),
    ("verifier network", '[verifier]\nnetwork_mode = "public"', "verifier.network_mode", "give itself", "offline"),
    ("internet", "[environment]\nallow_internet = true", "environment.allow_internet", "give itself", "offline"),
    ("user", '[agent]\nuser = "a b"', "user", "no user", "name"),
    ("shared world", '[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1',
     "verifier.environment_mode", "of its own", "separate"),
    ("verifier's GPUs", "[verifier.environment]\ngpus = 1", "verifier.environment.gpus", "GPU", "0"),
    ("collect elsewhere", '[[verifier.collect]]\ncommand = "x"\nservice = "db"', "verifier.collect.0.service", "db",
     "cannot run"),
    ("service", 'artifacts = [{source = "/a", service = "db"}]', "artifacts.0.service", "db", "cannot run"),
    ("log artifact", 'artifacts = ["/logs/verifier"]', "artifacts.0", "reserved", "Choose"),
    ("relative workdir", '[environment]\nworkdir = "app"', "environment.workdir", "absolute", "/workspace"),
    ("root workdir", '[environment]\nworkdir = "//"', "environment.workdir", "reserved", "/workspace"),
    ("workdir in tests", '[environment]\nworkdir = "/x/../tests/y"', "environment.workdir", "reserved", "/workspace"),
    ("both sizes", '[environment]\nmemory = "1G"\nmemory_mb = 1', "environment.memory", "together", "memory_mb"),
    ("no size", '[environment]\nstorage = "big"', "environment.storage", "no size", "storage_mb"),
    ("secret", '[verifier]\nenv = {KEY = "${OPENAI_API_KEY}"}', "verifier.env.KEY", "from the host", ":-default"),
    ("inner secret", '[solution]\nenv = {K = "x${A:-b}"}', "solution.env.K", "host", ":-default"),
    ("env name", '[environment]\nenv = {"A-B" = "x"}', "environment.env.A-B", "variable", "letters"),
    ("image kind", '[woodshed]\nimage = "ubuntu 24.04"', "woodshed.image", "ubuntu", "dir:PATH"),
    ("image absent", '[woodshed]\nimage = "dir:gone"', "woodshed.image", "no such folder", "Unpack"),
    ("image shows tests", '[woodshed]\nimage = "dir:."', "woodshed.image", "tests", "apart"),
    ("image shows all", '[woodshed]\nimage = "dir:/"', "woodshed.image", "tests", "apart"),
    ("workspace outside", '[woodshed]\nworkspace = "../other"', "woodshed.workspace", "no folder", "below"),
    ("workspace absolute", '[woodshed]\nworkspace = "/etc"', "woodshed.workspace", "no folder", "below"),
    ("workspace is all", '[woodshed]\nworkspace = "."', "woodshed.workspace", "tests", "apart"),
    ("workspace is tests", '[woodshed]\nworkspace = "tests"', "woodshed.workspace", "tests", "apart"),
    ("workspace is solution", '[woodshed]\nworkspace = "solution"', "woodshed.workspace", "solution", "apart"),
    ("workspace absent", '[woodshed]\nworkspace = "gone"', "woodshed.workspace", "no folder", "below"),
    ("option", '[woodshed]\nrequirements = ["--index-url=http://x"]', "woodshed.requirements", "plain", "versions"),
    ("url", '[woodshed]\nrequirements = ["a @ http://x/a.whl"]', "woodshed.requirements", "plain", "versions"),
    ("two lines", '[woodshed]\nrequirements = ["a\\n-r /etc/passwd"]', "woodshed.requirements", "plain", "versions"),
    ("pattern", '[woodshed]\nprotected = ["../x"]', "woodshed.protected", "pattern", "workdir"),
    ("test twice", '[woodshed]\nexpected_tests = ["a", "a"]', "woodshed.expected_tests", "twice", "one"),
    ("no id", '[woodshed]\nexpected_tests = [" "]', "woodshed.expected_tests", "no test id", "classname"),
    ("list absent", '[woodshed]\nexpected_tests = "gone.txt"', "woodshed.expected_tests", "no file", "id a line"),
    ("NUL in workspace", '[woodshed]\nworkspace = "a\\u0000"', "woodshed.workspace", "no folder", "below"),
    ("NUL in list", '[woodshed]\nexpected_tests = "a\\u0000"', "woodshed.expected_tests", "no file", "id a line"),
    ("NUL in image", '[woodshed]\nimage = "dir:\\u0000"', "woodshed.image", "no image", "dir:PATH"),
    ("list outside", '[woodshed]\nexpected_tests = "/etc/passwd"', "woodshed.expected_tests", "no file", "id a line"),
    ("unknown test", '[woodshed]\nexpected_tests = ["a"]\nrewards = {r = ["b"]}', "woodshed.rewards.r", "'b'", "Add"),
    ("empty reward", '[woodshed]\nexpected_tests = ["a"]\nrewards = {r = []}', "woodshed.rewards.r", "needs", "List"),
    ("capture", '[woodshed]\ncapture = ["out"]', "woodshed.capture", "absolute", "root"),
    ("capture logs", '[woodshed]\ncapture = ["/logs"]', "woodshed.capture", "reserved", "Choose"),
    ("framework", '[woodshed]\nframework = "junit"', "woodshed.framework", "pytest", "junit"),
    ("limit", "[woodshed.limits]\npids = 0", "woodshed.limits.pids", "greater than 0", "0"),
    ("name", '[task]\nname = "../x"', "task.name", "no task name", "org/name"),
]


@pytest.mark.parametrize(("toml", "field", "says", "remedy"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_each_mistake_names_file_field_and_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, toml: str, field: str | None, says: str, remedy: str
) -> None:
    """Whatever is wrong or unsupported in task.toml is refused by name, never ignored."""
    if field and field.endswith("allowed_hosts"):
        monkeypatch.setenv("WOODSHED_TASK_NETWORK", "declared")
    folder = make(tmp_path / "t", toml)
    with pytest.raises(UsageError) as caught:
        load_task(folder)
    error = caught.value
    assert (str(error.file), error.field) == (str(folder / "task.toml"), field)
    assert says in error.message
    assert error.remedy is not None
    assert remedy in error.remedy


def _drop(name: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).unlink()


def _put(name: str, content: bytes) -> Callable[[Path], None]:
    def put(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return put


def _link(name: str, target: str) -> Callable[[Path], None]:
    def link(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(target)
    return link


def _loop(name: str) -> Callable[[Path], None]:
    def loop(folder: Path) -> None:
        shutil.rmtree(folder / name)
        (folder / name).symlink_to(Path(name).name)
    return loop


def _leak(folder: Path) -> None:
    """The workspace is a link to the tests."""
    (folder / "environment/workspace/start.txt").unlink()
    (folder / "environment/workspace").rmdir()
    (folder / "environment/workspace").symlink_to("../tests")


def _bare(folder: Path) -> None:
    for name in ("objects", "refs"):
        (folder / "environment/workspace/repo" / name).mkdir(parents=True)
    (folder / "environment/workspace/repo/HEAD").touch()


def _pipe(folder: Path) -> None:
    (folder / "task.toml").unlink()
    os.mkfifo(folder / "task.toml")


BROKEN: dict[str, tuple[Callable[[Path], None], str, str]] = {
    "no task.toml": (_drop("task.toml"), "task.toml", "missing"),
    "toml not UTF-8": (_put("task.toml", b"a = '\xff'"), "task.toml", "not UTF-8"),
    "toml too deep": (_put("task.toml", b"a = " + b"[" * 100_000), "task.toml", "broken TOML"),
    "toml too large": (_put("task.toml", b"#" * 1_000_001), "task.toml", "larger"),
    "no instruction": (_drop("instruction.md"), "instruction.md", "missing"),
    "empty instruction": (_put("instruction.md", b" \n"), "instruction.md", "empty"),
    "instruction not UTF-8": (_put("instruction.md", b"\xff\xfe"), "instruction.md", "not UTF-8"),
    "instruction too large": (_put("instruction.md", b"x" * 1_000_001), "instruction.md", "larger"),
    "no tests": (_drop("tests/test.sh"), "tests/test.sh", "no tests"),
    "no solve.sh": (_drop("solution/solve.sh"), "solution", "solve.sh"),
    "Dockerfile": (_put("environment/Dockerfile", b"FROM x"), "task.toml", "WORKDIR"),
    "broken Dockerfile": (
        _put("environment/Dockerfile", b"FROM x\nFETCH y"), "environment/Dockerfile", "'FETCH' is no"),
    "compose": (_put("environment/docker-compose.yaml", b""), "environment/docker-compose.yaml", "compose"),
    "seed": (_put("trajectory.json", b"{}"), "trajectory.json", "trajectory"),
    "steps folder": (_put("steps/a/instruction.md", b"x"), "steps", "names none"),
    "link to the host": (_link("environment/workspace/p", "/etc/passwd"), "environment/workspace/p", "leaves"),
    "link out": (_link("tests/p", "../../other"), "tests/p", "leaves"),
    "workspace link to tests": (_link("environment/workspace/p", "../../tests/test.sh"),
                                "environment/workspace/p", "leaves the workspace"),
    "tests link to workspace": (_link("tests/p", "../environment/workspace/start.txt"), "tests/p", "leaves tests/"),
    "workspace is tests": (_leak, "task.toml", "the attempt would see tests"),
    "loop as workspace": (_loop("environment/workspace"), "", "no folder|cannot be read"),
    "loop as solution": (_loop("solution"), "", "cannot be read|solve.sh|no tests"),
    "loop as tests": (_loop("tests"), "tests/test.sh", "no tests"),
    "git": (_put("environment/workspace/.git/HEAD", b"x"), "environment/workspace/.git", "history"),
    "git, other case": (_put("environment/workspace/a/.GIT/HEAD", b"x"), "environment/workspace/a/.GIT", "history"),
    "git file": (_put("environment/workspace/sub/.git", b"gitdir: x"), "environment/workspace/sub/.git", "history"),
    "bare repository": (_bare, "environment/workspace/repo/objects", "history"),
    "fifo": (lambda folder: os.mkfifo(folder / "tests/pipe"), "tests/pipe", "none of them"),
    "fifo as task.toml": (_pipe, "task.toml", "none of them"),
}


@pytest.mark.parametrize(("breaks", "file", "says"), list(BROKEN.values()), ids=list(BROKEN))
def test_each_broken_folder_names_the_file_and_the_remedy(
    tmp_path: Path, breaks: Callable[[Path], None], file: str, says: str
) -> None:
    """What is missing, too large, special, or could carry the answer into an attempt is refused by its path."""
    folder = make(tmp_path / "t")
    assert load_task(folder).id == "t"
    breaks(folder)
    with pytest.raises(UsageError) as caught:
        load_task(folder)
    assert str(caught.value.file) == str(folder / file) or not file
    assert re.search(says, caught.value.message)
    assert caught.value.remedy


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything; run the tests as an ordinary user")
def test_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    """A file without read rights is an error with its path, not a traceback."""
    folder = make(tmp_path / "t")
    (folder / "tests/test_it.py").chmod(0)
    with pytest.raises(UsageError, match=r"test_it\.py: cannot be read"):
        load_task(folder)


def test_expected_tests_need_a_framework(tmp_path: Path) -> None:
    """Tests that no framework runs are an error, and so are files of two frameworks."""
    folder = make(tmp_path / "t", '[woodshed]\nexpected_tests = ["a"]', tests__check_a_dot_py="")
    with pytest.raises(UsageError, match=r"woodshed.framework: .*pytest and script"):
        load_task(folder)
    (folder / "tests/check_a.py").unlink()
    (folder / "tests/test_it.py").unlink()
    with pytest.raises(UsageError, match=r"suggest none.*Write pytest, script or node"):
        load_task(folder)


def test_a_tree_gives_its_tasks_in_order_each_with_its_group(tmp_path: Path) -> None:
    """Folders are searched below, hidden ones and tasks within tasks are not, and a task named twice counts once."""
    for name in ("tree/b", "tree/a", "tree/deep/c", "tree/.hidden/x", "tree/a/environment/workspace/inner"):
        make(tmp_path / name)
    tasks = find_tasks([tmp_path / "tree", tmp_path / "tree/b"])
    assert [(task.id, task.group) for task in tasks] == [("a", "tree"), ("b", "tree"), ("c", "deep")]


def test_a_link_in_the_path_to_a_task_is_no_other_task(tmp_path: Path) -> None:
    """The same folder by two paths is one task."""
    make(tmp_path / "real/a")
    (tmp_path / "link").symlink_to("real")
    assert len(find_tasks([tmp_path / "link/a", tmp_path / "real"])) == 1


def test_two_tasks_of_one_id_are_refused(tmp_path: Path) -> None:
    """Ids are unique in a run; the error names both folders."""
    make(tmp_path / "one/a")
    make(tmp_path / "two/a")
    with pytest.raises(UsageError, match=r"two/a.*'a' is also that of .*one/a"):
        find_tasks([tmp_path / "one", tmp_path / "two"])


@pytest.mark.parametrize(("path", "says"), [
    ("gone", "no such folder"), ("empty", "no task here"), ("file", "a file, not a folder"),
])
def test_a_path_without_tasks_is_refused_with_the_remedy(tmp_path: Path, path: str, says: str) -> None:
    """A missing, empty or wrong path is an error that tells what to pass."""
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=says) as caught:
        find_tasks([tmp_path / path])
    assert caught.value.remedy


def test_a_folder_name_that_is_no_id_is_refused(tmp_path: Path) -> None:
    """Ids stand in paths and tables, so a name with other characters needs a [task] name."""
    with pytest.raises(UsageError, match="no task name"):
        load_task(make(tmp_path / "my task"))
    assert load_task(make(tmp_path / "my other", '[task]\nname = "my-other"')).id == "my-other"
