"""Child of `compile_time.py`, run by the interpreter that has ExecuTorch: what its own Arm backend takes.

``python peer.py MODELS.py NAME TARGET RESULT.json`` writes seconds of import, quantization and lowering (re-export of
the quantized graph up to the bytes of the ``.pte``), and the size of the file.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

started = time.perf_counter()
from executorch.backends.arm.ethosu import EthosUCompileSpec, EthosUPartitioner  # noqa: E402
from executorch.backends.arm.quantizer import EthosUQuantizer, get_symmetric_quantization_config  # noqa: E402
from executorch.exir import to_edge_transform_and_lower  # noqa: E402

IMPORT_SECONDS = time.perf_counter() - started

import torch  # noqa: E402
from common import CALIBRATION, load_models  # noqa: E402
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e  # noqa: E402

MEMORY = {
    "u55": ("Ethos_U55_High_End_Embedded", "Shared_Sram"),
    "u65": ("Ethos_U65_High_End", "Dedicated_Sram_384KB"),
    "u85": ("Ethos_U85_SYS_DRAM_Mid", "Sram_Only"),
}


def measure(models: str, name: str, target: str) -> dict[str, float]:
    factory, example, generate = load_models(models)[name]
    model, inputs = factory(), example()
    system_config, memory_mode = MEMORY[target.split("-")[1]]
    spec = EthosUCompileSpec(target, system_config=system_config, memory_mode=memory_mode)
    quantizer = EthosUQuantizer(spec)
    quantizer.set_global(get_symmetric_quantization_config())

    begin = time.perf_counter()
    prepared = prepare_pt2e(torch.export.export(model, inputs).module(check_guards=False), quantizer)
    with torch.no_grad():
        for sample in generate(*CALIBRATION):
            prepared(*sample)
    quantized = convert_pt2e(prepared)
    middle = time.perf_counter()
    exported = torch.export.export(quantized, inputs)
    edge = to_edge_transform_and_lower(exported, partitioner=[EthosUPartitioner(spec)])
    data = edge.to_executorch().buffer
    end = time.perf_counter()
    return {
        "import_s": IMPORT_SECONDS,
        "quantize_s": middle - begin,
        "lower_s": end - middle,
        "pte_bytes": len(data),
    }


if __name__ == "__main__":
    Path(sys.argv[4]).write_text(json.dumps(measure(*sys.argv[1:4])))
