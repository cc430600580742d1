"""Runs in the environment that has ExecuTorch: loads programs in the stock runtime and runs them.

Arguments: a file of cases, written by ``torch.save``, and a file for the results. A case is a tuple (program
bytes, method name, list of argument lists); its result is a list of output lists, one for each argument list,
or the text of the error. Results are pickled one after the other as they come, so that what came before a crash
is not lost.
"""

import pickle
import sys
from typing import Any

import executorch.kernels.quantized  # noqa: F401 - registers quantize and dequantize
import torch
from executorch.extension.pybindings import portable_lib


def run(data: bytes, method: str, calls: list[list[Any]]) -> Any:
    try:
        module = portable_lib._load_for_executorch_from_buffer(data)
        return [
            [o.clone() if isinstance(o, torch.Tensor) else o for o in module.run_method(method, tuple(c))]
            for c in calls
        ]
    except RuntimeError as error:
        return str(error)


def main() -> None:
    torch.set_num_threads(1)
    cases = torch.load(sys.argv[1], weights_only=True)
    with open(sys.argv[2], "wb") as file:
        for case in cases:
            pickle.dump(run(*case), file)
            file.flush()


main()
