"""How long compiling takes, beside the peer (ExecuTorch's Arm backend) run on the same machine in turn.

    python benchmarks/compile_time.py --models ../shared/bench/models.py --interop .venv-interop/bin/python

Seconds from the quantized graph to the bytes of the ``.pte``, and the seconds of importing. Both sides run in fresh
child processes, in turn, so that what else the machine does weighs on both; of ``--repeat`` runs the fastest of each
side counts. The interpreter of the peer needs what ``make peer`` installs.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from common import CALIBRATION, load_models, run_child

FASTER = 5.0
"""The peer must take at least this many times as long."""
IMPORT_FASTER = 2.0

Seconds = dict[str, float]


def measure(models: str, name: str, target: str) -> Seconds:
    """Our side, in a child process."""
    started = time.perf_counter()
    import arm_lower

    bare = time.perf_counter() - started
    for public in arm_lower.__all__:
        getattr(arm_lower, public)
    everything = time.perf_counter() - started
    from quant import EthosUQuantizer, quantize

    factory, example, generate = load_models(models)[name]
    inputs = example()
    quantized = quantize(factory(), inputs, generate(*CALIBRATION), EthosUQuantizer(target))
    begin = time.perf_counter()
    compiled = arm_lower.compile(quantized, None, target, example_inputs=inputs)
    lower = time.perf_counter() - begin
    return {
        "import_s": bare,
        "import_all_s": everything,
        "lower_s": lower,
        "pte_bytes": compiled.report.pte_bytes,
    }


def child(command: list[str]) -> Seconds:
    """Runs a child whose last argument is the file of its result, which is added here."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "seconds.json"
        error = run_child([*command, str(file)], timeout=1800)
        if error:
            sys.exit(f"{' '.join(command)}: {error}")
        found: Seconds = json.loads(file.read_text())
        return found


def fastest(runs: Sequence[Seconds]) -> Seconds:
    """The least of each number."""
    return {key: min(run[key] for run in runs) for key in runs[0]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", required=True, help="Python file with MODELS")
    parser.add_argument("--only", default="ds_cnn,resnet8,mobilenet_v2", help="comma-separated names of models")
    parser.add_argument("--target", default="ethos-u55-128")
    default = os.environ.get("ARM_LOWER_INTEROP_PYTHON", ".venv-interop/bin/python")
    parser.add_argument("--interop", default=default, help="interpreter that has ExecuTorch")
    parser.add_argument("--repeat", type=int, default=3, help="runs of each side")
    parser.add_argument("--child", nargs=2, metavar=("NAME", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        name, file = options.child
        Path(file).write_text(json.dumps(measure(options.models, name, options.target)))
        return 0
    if not Path(options.interop).is_file():
        sys.exit(f"no interpreter {options.interop}: run `make peer`, or give --interop")

    here = Path(__file__).parent
    missed = []
    print(f"{'':20} {'ours s':>8} {'peer s':>8} {'ratio':>6}   import: {'ours':>6} {'peer':>6} {'ratio':>6}")
    for name in options.only.split(","):
        mine = [sys.executable, __file__, "--models", options.models, "--target", options.target, "--child", name]
        others = [options.interop, str(here / "peer.py"), options.models, name, options.target]
        runs = [(child(mine), child(others)) for _ in range(options.repeat)]
        ours, peer = (fastest(side) for side in zip(*runs))
        ratio = peer["lower_s"] / ours["lower_s"]
        imports = peer["import_s"] / ours["import_all_s"]
        print(
            f"{name:20} {ours['lower_s']:8.2f} {peer['lower_s']:8.2f} {ratio:6.1f}           "
            f"{ours['import_all_s']:6.2f} {peer['import_s']:6.2f} {imports:6.1f}   "
            f"(`import arm_lower` alone {ours['import_s']:.3f} s)",
            flush=True,
        )
        if ratio < FASTER:
            missed.append(f"{name}: {ratio:.1f} times faster, wanted {FASTER:g}")
        if imports < IMPORT_FASTER:
            missed.append(f"{name}: importing everything {imports:.1f} times faster, wanted {IMPORT_FASTER:g}")
    for text in missed:
        print(f"FAIL {text}")
    if not missed:
        print(f"PASS at least {FASTER:g} times faster, importing at least {IMPORT_FASTER:g} times")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
