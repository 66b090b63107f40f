# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""A training callback that keeps the loss of every step."""

import json
from pathlib import Path
from typing import Any

from pytorch_lightning import Callback
from pytorch_lightning import LightningModule
from pytorch_lightning import Trainer
from torch import nn


class LossRecorder(Callback):
    """Write the training loss of every step, and the attention modules of the model, to a JSON file."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self.losses: list[float] = []

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Keep the loss."""
        self.losses.append(float(outputs["loss"] if isinstance(outputs, dict) else outputs))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Write the file."""
        modules = [str(module) for module in pl_module.modules() if _is_attention(module)]
        self.path.write_text(json.dumps({"loss": self.losses, "modules": modules}))


def _is_attention(module: nn.Module) -> bool:
    return type(module).__name__ in ("AttentionModule", "SDPAAttentionWrapper")
