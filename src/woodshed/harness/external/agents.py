"""The agents that are declared here. Versions are pinned: a result names what ran."""

from __future__ import annotations

from woodshed.harness.external.spec import ExternalAgent
from woodshed.model import StopReason

MINI_SWE_AGENT = ExternalAgent(
    name="mini-swe-agent",
    pip=("mini-swe-agent==2.4.6",),
    without=("boto3", "botocore", "datasets", "dill", "hf-xet", "multiprocess", "numpy", "pandas", "pyarrow",
             "s3transfer", "xxhash"),  # of its benchmark runner and of providers other than OpenAI
    command=("{bin}/mini", "--yolo", "--exit-immediately", "--model", "openai/{model}", "--task", "{instruction}",
             "--output", "{home}/trajectory.json", "--config", "mini.yaml", "--config", "agent.cost_limit=0"),
    env={"MSWEA_CONFIGURED": "true", "MSWEA_GLOBAL_CONFIG_DIR": "{home}", "MSWEA_COST_TRACKING": "ignore_errors",
         "MSWEA_SILENT_STARTUP": "1", "LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_TELEMETRY": "False",
         "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": "3"},
    result_code=r'"returncode": (-?\d+)',
    trajectory="trajectory.json",
)
QWEN_CODE = ExternalAgent(
    name="qwen-code",
    npm=("@qwen-code/qwen-code@0.15.10",),
    command=("{bin}/qwen", "--yolo", "--auth-type", "openai", "--model", "{model}", "--prompt", "{instruction}"),
    env={"QWEN_TELEMETRY_ENABLED": "false", "QWEN_HOME": "{home}", "NO_COLOR": "1", "CI": "1"},
    result_code=r"(?m)^Exit Code: (-?\d+)",
    exit_codes={53: StopReason.TURNS},
    litter=(".qwen",),
)
