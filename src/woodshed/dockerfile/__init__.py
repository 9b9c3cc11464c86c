"""Dockerfiles as data: text in, stages and instructions out. Nothing is run, fetched or looked up.

Syntax: Docker's Dockerfile reference, and where that is silent BuildKit's parser and shell lexer.
"""

from woodshed.dockerfile.ignore import Ignored, pattern
from woodshed.dockerfile.parse import Beyond, Heredoc, Instruction, refuse
from woodshed.dockerfile.stages import Dockerfile, Stage, read, workdir

__all__ = [
    "Beyond", "Dockerfile", "Heredoc", "Ignored", "Instruction", "Stage", "pattern", "read", "refuse", "workdir",
]
