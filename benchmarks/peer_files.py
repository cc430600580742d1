"""Child of `device.py`, run by the interpreter that has ExecuTorch: `.pte` files that ExecuTorch itself writes.

``python peer_files.py MODELS.py FOLDER`` writes ``NAME.pte``, and ``NAME.npz`` with the inputs of one execution, for
each of `FILES`.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from common import CALIBRATION, EVALUATION, Entry, load_models
from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner
from executorch.backends.arm.quantizer import EthosUQuantizer, get_symmetric_quantization_config
from executorch.exir import to_edge, to_edge_transform_and_lower
from peer import MEMORY
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

FILES = (
    ("ds_cnn", "ethos-u55-128"),
    ("resnet8", "ethos-u55-128"),
    ("autoencoder", "ethos-u55-128"),
    ("ds_cnn", "cpu"),
    ("lstm_kws", "cpu"),
)
"""Model, and the NPU it is compiled for; ``cpu``: float32 on portable kernels."""


def lowered(entry: Entry, target: str) -> bytes:
    factory, example, generate = entry
    model, inputs = factory(), example()
    if target == "cpu":
        return bytes(to_edge(torch.export.export(model, inputs)).to_executorch().buffer)
    system_config, memory_mode = MEMORY[target.split("-")[1]]
    spec = EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode)
    quantizer = EthosUQuantizer(spec)
    quantizer.set_global(get_symmetric_quantization_config())
    prepared = prepare_pt2e(torch.export.export(model, inputs).module(check_guards=False), quantizer)
    with torch.no_grad():
        for sample in generate(*CALIBRATION):
            prepared(*sample)
    exported = torch.export.export(convert_pt2e(prepared), inputs)
    edge = to_edge_transform_and_lower(exported, partitioner=[EthosUPartitioner(spec)])
    return bytes(edge.to_executorch().buffer)


def main(models: str, folder: Path) -> None:
    loaded = load_models(models)
    for name, target in FILES:
        stem = f"{name} {target}"
        sample = loaded[name][2](*EVALUATION)[0]
        (folder / f"{stem}.pte").write_bytes(lowered(loaded[name], target))
        np.savez(folder / f"{stem}.npz", *[x.numpy() for x in sample])


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
