"""The weights that learn: those of a GGUF file, dequantised, with a LoRA adapter over them."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from woodshed.trainers import lora

RANK, ALPHA = 8, 16.0
_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def dequantised(weights: Path, folder: Path) -> Path:
    """``folder`` holds the GGUF file's weights as transformers loads them; made once, in one piece; 2 GB."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    from transformers import AutoModelForCausalLM, GgufConfig

    if folder.is_dir():
        return folder
    partial = folder.with_name(folder.name + ".partial")
    model = AutoModelForCausalLM.from_pretrained(
        weights.parent, gguf_file=weights.name, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True))
    model.hf_quantizer = None  # transformers 5.24 refuses to save what it was told is quantised
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(partial)
    partial.rename(folder)
    return folder


class Policy:
    """A causal model with an adapter, which alone learns. ``logprobs`` is what :func:`grpo_step.update` calls."""

    def __init__(self, folder: Path, *, seed: int, rate: float, dtype: torch.dtype) -> None:
        os.environ["HF_HUB_OFFLINE"] = "1"
        from peft import LoraConfig, get_peft_model
        from transformers import AutoModelForCausalLM

        torch.manual_seed(seed)
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        self.architecture: str = base.config.model_type
        self.vocabulary: int = base.config.vocab_size
        self._model = get_peft_model(base, LoraConfig(
            r=RANK, lora_alpha=int(ALPHA), target_modules=list(_LAYERS), task_type="CAUSAL_LM"))
        self._inner = self._model.base_model.model
        self.optimizer = torch.optim.AdamW(self.learnt().values(), lr=rate, betas=(0.9, 0.95), weight_decay=0.0)

    @property
    def model(self) -> Any:
        """For trainers of others: a PeftModel."""
        return self._model

    def logprobs(self, ids: Tensor, where: Tensor) -> Tensor:
        """Logprobs (N, V) at the places of ``where``. Rows are padded behind, which nothing before it can see."""
        hidden = self._inner.model(input_ids=ids, use_cache=False).last_hidden_state
        return torch.log_softmax(self._inner.lm_head(hidden[where]).float(), -1)

    def write(self, path: Path) -> None:
        """The adapter as a GGUF file."""
        found: dict[str, list[Any]] = {}
        for name, value in self.learnt().items():
            module, _, rest = name.partition(".lora_")
            found.setdefault(module, [None, None])["AB".index(rest[0])] = value.detach().float().numpy()
        lora.write(path, {module: (down, up) for module, (down, up) in found.items()},
                   architecture=self.architecture, alpha=ALPHA)

    def save(self, path: Path) -> None:
        """The adapter and the optimizer stand in ``path``, in one piece."""
        partial = path.with_name(path.name + ".partial")
        torch.save({"adapter": self.learnt(), "optimizer": self.optimizer.state_dict()}, partial)
        partial.replace(path)

    def load(self, path: Path) -> None:
        """Go on from what :meth:`save` wrote."""
        saved = torch.load(path, weights_only=True)
        with torch.no_grad():
            for name, value in self.learnt().items():
                value.copy_(saved["adapter"][name])
        self.optimizer.load_state_dict(saved["optimizer"])

    def learnt(self) -> dict[str, Tensor]:
        """What learns, by name: A and B of each layer."""
        return {name: value for name, value in self._model.named_parameters() if value.requires_grad}


def seeded(seed: int) -> random.Random:
    """Dice that fall the same way again."""
    return random.Random(seed)  # noqa: S311 (repeatable, nothing secret)
