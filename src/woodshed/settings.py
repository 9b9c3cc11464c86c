"""One table of settings: name, default, help, and the WOODSHED_* variable that sets each."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_data_path


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting. Its variable is ``WOODSHED_`` and the upper-case name."""

    name: str
    default: str
    help: str

    @property
    def variable(self) -> str:
        """The environment variable that overrides the default."""
        return f"WOODSHED_{self.name.upper()}"


SETTINGS = (
    Setting("home", "", "where runs, blobs, layers and models live (default: the platform's user data folder)"),
    Setting("database_url", "", "SQLAlchemy URL of the store (default: SQLite in the home)"),
    Setting("project", "default", "project of a run or a schedule when --project is not given"),
    Setting("engine", "native", "sandbox engine when --engine is not given"),
    Setting("model_url", "", "endpoint of --model NAME when it names none, e.g. http://127.0.0.1:8000/v1"),
    Setting("model_key", "", "name of the variable that holds the endpoint's key, e.g. OPENAI_API_KEY"),
    Setting("model_calls", "", "calls that one endpoint is sent at a time (default: as many as there are)"),
    Setting("dialects", "", "formats of tool calls by model, PATTERN=DIALECT by commas, asked before our own table"),
    Setting("python", "", "the Python that sandboxes of the host image use (default: the one running Woodshed)"),
    Setting("pip_args", "", "extra arguments for pip when layers of requirements are made"),
    Setting("task_env", "", "variables (by commas) of this environment that tasks may take as ${NAME}"),
    Setting("task_network", "", "'declared' lends tasks the hosts they declare (default: such tasks are refused)"),
    Setting("image_mb", "20480", "MB that one layer of an image may unpack to"),
    Setting("build_policy", "", "policy (TOML) of the commands that Dockerfiles run (default: no network)"),
    Setting("registry_mirror", "", "registry asked first for images of docker.io, e.g. https://mirror.example"),
    Setting("registry_http", "", "registries (host:port, by commas) spoken to without TLS, besides this machine's own"),
    Setting("egress_proxy", "", "proxy to hosts of network rules: http://HOST:PORT, or 'environment' (HTTPS_PROXY …)"),
    Setting("disk_reserve_mb", "", "MB that sandboxes leave free on the disk of the home (default: 5 %, at most 1024)"),
    Setting("docker_runtime", "", "runtime of the docker engine's containers, e.g. kata (default: the daemon's)"),
    Setting("gvisor_platform", "", "platform of runsc: systrap, ptrace or kvm (default: its own)"),
    Setting("serve_key", "", "key that 'woodshed serve' asks for (default: made once, in serve.key of the home)"),
    Setting("warm_sandboxes", "0", "sandboxes of each wanted kind that stand ready (default: none)"),
)
SERVE_KEY = "serve_key"
"""The one setting that is a secret itself: who reads it takes it out of the environment."""
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def setting(name: str) -> str:
    """The value of a setting: its variable if set and not empty, else its default. Raises KeyError."""
    entry = _BY_NAME[name]
    return os.environ.get(entry.variable) or entry.default


def home() -> Path:
    """The state folder, absolute; not created here."""
    chosen = setting("home")
    return Path(chosen).expanduser().absolute() if chosen else user_data_path("woodshed")
