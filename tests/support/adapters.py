"""Adapters made by ``peft`` alone, to start runs from."""

from pathlib import Path
from typing import Any

import peft
import torch
from transformers import AutoModelForCausalLM


def plain_adapter(base: Path, folder: Path, **options: Any) -> peft.PeftModel:
    """Save a LoRA adapter with random A and B, as users of ``peft`` have; return its model."""
    settings = {"r": 3, "lora_alpha": 9, "target_modules": ["q_proj", "v_proj"], **options}
    model = AutoModelForCausalLM.from_pretrained(base)
    made = peft.get_peft_model(model, peft.LoraConfig(task_type="CAUSAL_LM", **settings))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_" in name:
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
    made.save_pretrained(str(folder))
    return made.eval()
