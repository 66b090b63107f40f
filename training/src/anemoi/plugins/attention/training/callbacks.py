# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Callbacks of the shipped training configurations."""

import logging
import os
from pathlib import Path

from pytorch_lightning import Callback
from pytorch_lightning import LightningModule
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import ModelCheckpoint

LOGGER = logging.getLogger(__name__)


class LinkLatestCheckpoint(Callback):
    """Give the inference checkpoint of the newest run a name that can be written into a run configuration.

    anemoi-training writes each run into a folder with a random name.

    Parameters
    ----------
    path : str or Path
        Symbolic link to create. A link that is already there is replaced; any other file is left alone.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Set the link, once the last checkpoint is written (checkpoint callbacks run after all others)."""
        if stage != "fit" or not trainer.is_global_zero:
            return
        callbacks = [item for item in trainer.checkpoint_callbacks if isinstance(item, ModelCheckpoint)]
        folders = [callback.dirpath for callback in callbacks if callback.dirpath]
        checkpoints = [Path(folder) / "inference-last.ckpt" for folder in folders]
        written = next((checkpoint for checkpoint in checkpoints if checkpoint.exists()), None)
        if written is None:
            return
        if self.path.exists() and not self.path.is_symlink():
            LOGGER.warning("%s is no link and was left alone. The checkpoint of this run is %s", self.path, written)
            return
        try:
            self._link(written)
        except OSError as error:
            # The training is done: a file system without links must not turn it into a failure.
            LOGGER.warning("%s could not be linked (%s). The checkpoint of this run is %s", self.path, error, written)
            return
        LOGGER.info("%s is the inference checkpoint of this run: %s", self.path, written)

    def _link(self, target: Path) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        # A relative target survives when the output folder is moved.
        relative = os.path.relpath(target.resolve(), self.path.parent.resolve())
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(relative)
        temporary.replace(self.path)
