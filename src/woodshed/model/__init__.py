"""Frozen records: the nouns of the system, without I/O."""

from woodshed.model.agent import Agent, AgentLimits, ModelSpec, Sampling
from woodshed.model.attempt import (
    Attempt,
    AttemptState,
    Outcome,
    Run,
    RunSpec,
    RunState,
    StopReason,
    Usage,
)
from woodshed.model.calibration import Calibration, CheckSpec, Label, Measured, Survivor, Tries
from woodshed.model.changes import Change, ChangeKind, ChangeSet
from woodshed.model.deadlines import Deadlines, StageDeadlines
from woodshed.model.durability import CheckpointRule, Durability
from woodshed.model.event import Event, EventKind
from woodshed.model.past import Answer, Checkpoint, Past, PastCall, StepPast
from woodshed.model.policy import Limits, SandboxPolicy
from woodshed.model.record import Record
from woodshed.model.snapshot import SnapshotManifest
from woodshed.model.task import (
    Collect,
    EnvironmentSpec,
    Framework,
    Healthcheck,
    Program,
    Task,
    TaskStep,
    Upload,
    VerifierSpec,
)
from woodshed.model.toolcall import printable, read_object, written_call
from woodshed.model.trajectory import Message, Observation, Step, ToolCall, Trajectory
from woodshed.model.used import Used
from woodshed.model.verdict import Assurance, Invalid, TestOutcome, Valid, Verdict

__all__ = [
    "Agent", "AgentLimits", "Answer", "Assurance", "Attempt", "AttemptState", "Calibration", "Change", "ChangeKind",
    "ChangeSet", "CheckSpec", "Checkpoint", "CheckpointRule", "Collect", "Deadlines", "Durability", "EnvironmentSpec",
    "Event", "EventKind", "Framework", "Healthcheck", "Invalid", "Label", "Limits", "Measured", "Message", "ModelSpec",
    "Observation", "Outcome", "Past", "PastCall", "Program", "Record", "Run", "RunSpec", "RunState", "Sampling",
    "SandboxPolicy", "SnapshotManifest", "StageDeadlines", "Step", "StepPast", "StopReason", "Survivor", "Task",
    "TaskStep", "TestOutcome", "ToolCall", "Trajectory", "Tries", "Upload", "Usage", "Used", "Valid", "Verdict",
    "VerifierSpec", "printable", "read_object", "written_call",
]
