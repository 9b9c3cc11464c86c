"""The families' own formats: one object each, found by name, by a model's name, or by the marks in an answer."""

from __future__ import annotations

from collections.abc import Mapping

from woodshed.harness.dialects.families.calls import LFM2, LLAMA_PYTHONIC
from woodshed.harness.dialects.families.family import Family, Format, Found, Words
from woodshed.harness.dialects.families.gemma import FUNCTIONGEMMA, GEMMA
from woodshed.harness.dialects.families.harmony import GPT_OSS
from woodshed.harness.dialects.families.marked import DEEPSEEK_V3, DEEPSEEK_V31, KIMI
from woodshed.harness.dialects.families.objects import HERMES, LLAMA_JSON, MISTRAL, MISTRAL_V11
from woodshed.harness.dialects.families.tagged import DEEPSEEK_V4, DEEPSEEK_V32, GLM, MINIMAX, QWEN_CODER

__all__ = ["FAMILIES", "Family", "Format", "Found", "Words"]

_ALL: tuple[Family, ...] = (
    HERMES, QWEN_CODER, DEEPSEEK_V3, DEEPSEEK_V31, DEEPSEEK_V32, DEEPSEEK_V4, LLAMA_JSON, LLAMA_PYTHONIC, MISTRAL,
    MISTRAL_V11, GLM, KIMI, GPT_OSS, FUNCTIONGEMMA, GEMMA, MINIMAX, LFM2,
)
FAMILIES: Mapping[str, Family] = {family.name: family for family in _ALL}
