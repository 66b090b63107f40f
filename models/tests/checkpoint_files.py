# (C) Copyright 2026 Anemoi contributors.
#
# This software is licensed under the terms of the Apache Licence Version 2.0
# which can be obtained at http://www.apache.org/licenses/LICENSE-2.0.

"""Checkpoints of layers of the released anemoi-models, made in a process of their own, and where to open them.

As a program: ``python checkpoint_files.py WANTED``, where WANTED is JSON: a list of the arguments of :func:`save`.
"""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

FLASH_FUNCTION = """
def flash_attn_func(query, key, value, **options):
    raise RuntimeError("a stand-in computes nothing")
"""
ROTARY = """
import torch


class RotaryEmbedding(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("inv_freq", torch.ones(dim // 2), persistent=False)
"""
# As their packages have them: module of the function, name under which the host imports it.
STAND_INS = {
    2: {
        "flash_attn/__init__.py": "from .interface import flash_attn_func\nimport packaging.version\n"
        "__version__ = packaging.version.Version('2.7.4')\n",
        "flash_attn/interface.py": FLASH_FUNCTION,
        "flash_attn/layers/__init__.py": "",
        "flash_attn/layers/rotary.py": ROTARY,
    },
    3: {"flash_attn_interface.py": FLASH_FUNCTION},
    4: {
        "flash_attn/__init__.py": "",
        "flash_attn/cute/__init__.py": "from .interface import flash_attn_func\n",
        "flash_attn/cute/interface.py": FLASH_FUNCTION,
    },
}


def write_stand_in(directory: Path, generation: int) -> Path:
    """Write a package that has the names of a generation of flash-attention, and return the folder for PYTHONPATH."""
    for name, text in STAND_INS[generation].items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    return directory


def stock_site(directory: Path) -> Path:
    """Return a folder of packages like this environment's, without those of this repository."""
    ours = ("anemoi_plugins_attention", "hydra_plugins")
    site = Path(sysconfig.get_paths()["purelib"])
    (directory / "anemoi").mkdir(parents=True)
    for entry in (*site.iterdir(), *(site / "anemoi").iterdir()):
        if entry.name not in ("anemoi", "plugins") and not any(name in entry.name for name in ours):
            (directory / entry.relative_to(site)).symlink_to(entry)
    return directory


def python(program: str, *arguments: str, site: Path | None = None, path: Path | None = None) -> str:
    """Run a program in a process of its own and return what it printed, errors too; with ``site``, on those packages.

    ``path`` is put in front of the packages.
    """
    folders = [str(folder) for folder in (path, site) if folder is not None]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANEMOI_")}
    done = subprocess.run(
        [sys.executable, *(["-S"] if site else []), "-c", program, *arguments],
        env={**environment, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(folders)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + ("" if done.returncode == 0 else f"\nexit status {done.returncode}")


FLASH = "flash_attention"
SDPA = "scaled_dot_product_attention"
WANTED: dict[str, dict[str, object]] = {
    "stock": {"attention": SDPA},
    "flash2": {"attention": FLASH, "generation": 2},
    "flash3": {"attention": FLASH, "generation": 3},
    "flash4": {"attention": FLASH, "generation": 4},
    "rotary": {"attention": FLASH, "generation": 2, "use_rotary_embeddings": True},
    "softcap": {"attention": FLASH, "generation": 2, "softcap": 0.5, "use_alibi_slopes": True, "dropout_p": 0.1},
    "graph": {"attention": SDPA, "graph": "triton"},
    "older_host": {"attention": SDPA, "rename": "anemoi.models.layers.attention.OlderWrapper"},
    "older_plugin": {"attention": SDPA, "rename": "anemoi.plugins.attention.models.older_module.OlderModule"},
    "foreign": {"attention": SDPA, "rename": "my_package.layers.Attention"},
    "removed": {"attention": SDPA, "rename": "anemoi.models.layers.block.RemovedBlock"},
}


def build(directory: Path) -> dict[str, Path]:
    """Make the checkpoints above in another process, and return them by name."""
    wanted = []
    for name, options in WANTED.items():
        generation = options.get("generation")
        stand_in = write_stand_in(directory / f"stand-in-{generation}", generation) if generation else None
        wanted.append({"out": f"{directory}/{name}.ckpt", "stand_in": stand_in and str(stand_in), **options})
    printed = python(Path(__file__).read_text(), json.dumps(wanted))
    assert "exit status" not in printed, printed
    return {name: directory / f"{name}.ckpt" for name in WANTED}


def save(
    out: str,
    attention: str,
    stand_in: str | None = None,
    generation: int | None = None,
    graph: str = "pyg",
    rename: str | None = None,
    **options: object,
) -> None:
    """Save a model of three layers as a checkpoint with metadata and arrays.

    Parameters
    ----------
    out : str
        The file.
    attention, graph : str
        Backends that the stock layers are built with.
    stand_in : str or None
        Folder of a package that exists only here.
    generation : int or None
        Of the package there.
    rename : str or None
        Name under which another release had the class of the attention.
    **options
        Of the transformer layers.
    """
    import numpy as np
    import torch
    from anemoi.models.layers import attention as host
    from anemoi.models.layers.block import GraphTransformerProcessorBlock
    from anemoi.models.layers.utils import load_layer_kernels
    from anemoi.utils.checkpoints import save_metadata
    from torch import nn

    if stand_in is not None:
        sys.path.insert(0, stand_in)
    torch.manual_seed(1996)
    kernels = load_layer_kernels()
    options = {"window_size": 4, **options}
    model = nn.ModuleDict(
        {
            "self": host.MultiHeadSelfAttention(4, 32, kernels, attention_implementation=attention, **options),
            "cross": host.MultiHeadCrossAttention(4, 32, kernels, attention_implementation=attention, **options),
            "graph": GraphTransformerProcessorBlock(
                in_channels=16,
                hidden_dim=16,
                out_channels=16,
                num_heads=4,
                edge_dim=3,
                layer_kernels=kernels,
                graph_attention_backend="pyg",
            ),
        }
    )
    if graph == "triton":
        # Without a GPU, the host would not take it.
        from anemoi.models.triton.gt import graph_transformer_attention_conv

        model["graph"]._modules.pop("conv")
        model["graph"].conv = graph_transformer_attention_conv
        model["graph"].graph_attention_backend = "triton"
    if rename is not None:
        # As a release that had the class under another name.
        module, _, name = rename.rpartition(".")
        for depth in range(module.count(".") + 1):
            part = module.rsplit(".", depth)[0]
            sys.modules.setdefault(part, type(sys)(part))
        holder = sys.modules[module]
        renamed = type(name, (type(model["self"].attention),), {"__module__": module})
        setattr(holder, name, renamed)
        model["self"].attention.__class__ = renamed
    torch.save(model, out)
    arrays = {"data": {"latitudes": np.linspace(20, 60, 7), "mask": np.arange(5) % 2 == 0}}
    layer = {"num_heads": 4, "num_channels": 32, "num_layers": 2, "attention_implementation": attention, **options}
    metadata = {"version": "1.0", "config": {"model": {"processor": layer}}, "note": "Größe\u2028"}
    save_metadata(out, metadata, supporting_arrays=arrays)
    if stand_in is not None:
        sys.path.remove(stand_in)
        for name in [name for name in sys.modules if name.startswith("flash_attn")]:
            del sys.modules[name]


if __name__ == "__main__":
    for arguments in json.loads(sys.argv[1]):
        save(**arguments)
