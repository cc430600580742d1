"""From a network trained on real images to a verified program for an Ethos-U55, in about a minute.

Trains a small CNN on scikit-learn's handwritten digits, quantizes it with training images, compiles it for
``ethos-u55-128``, verifies the program, and counts right answers in float, in the quantized graph and as executed from
the bytes of the ``.pte``. Exits with 1 if int8 loses more than one point, or if the
delegate is not bit-exact.

    python notebooks/digits.py [OUTPUT_FOLDER]
"""

from __future__ import annotations

import logging
import sys
import time
from pathlib import Path

# on import, torchao warns of kernels for GPUs that this machine does not have
for noisy in ("torchao", "torch.utils._pytree"):
    logging.getLogger(noisy).setLevel(logging.ERROR)

import numpy as np  # noqa: E402
import torch  # noqa: E402
from sklearn.datasets import load_digits  # noqa: E402
from sklearn.model_selection import train_test_split  # noqa: E402
from torch import nn  # noqa: E402

import arm_lower  # noqa: E402
from quant import EthosUQuantizer, quantize  # noqa: E402
from tosa_ref.host import Host  # noqa: E402
from tosa_ref.run import run  # noqa: E402

TARGET = "ethos-u55-128"
POINTS_TO_LOSE = 1.0
EPOCHS = 8


def network() -> nn.Module:
    """[N, 1, 8, 8] images in 0..1 to ten logits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def train(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    """The model after a few seconds of training, in eval mode."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    return model.eval()


def accuracy(answers: np.ndarray, labels: torch.Tensor) -> float:
    """Percentage of right answers; ``answers`` are logits [N, 10]."""
    return 100.0 * float((answers.argmax(1) == labels.numpy()).mean())


def on_reference_model(compiled: arm_lower.Compiled, image: np.ndarray) -> np.ndarray:
    """Logits from the delegate's TOSA alone: quantized, run on the reference model and dequantized here, without
    the ``.pte`` and what reads it."""
    (given,), (wanted,) = compiled.boundary["inputs"], compiled.boundary["outputs"]
    integers = np.clip(np.rint(image * np.float32(1 / given.scale)) + given.zero_point, -128, 127).astype(np.int8)
    (delegate,) = compiled.delegates
    (result,) = run(delegate.tosa_bytes, [integers])
    return (result.astype(np.float32) - wanted.zero_point) * np.float32(wanted.scale)


def main() -> int:
    torch.manual_seed(0)
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "build/demo")
    folder.mkdir(parents=True, exist_ok=True)

    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16
    x, test, y, labels = train_test_split(images, torch.tensor(digits.target), test_size=0.25, random_state=0)

    started = time.perf_counter()
    model = train(network(), x, y)
    print(f"trained on {len(x)} images in {time.perf_counter() - started:.1f} s")

    inputs = (test[:1],)
    calibration = [(image[None],) for image in x[:100]]
    quantized = quantize(model, inputs, calibration, EthosUQuantizer(TARGET))
    compiled = arm_lower.compile(quantized, None, TARGET, example_inputs=inputs)
    path = folder / "digits.pte"
    compiled.save(path)
    print(f"wrote {path} and {path.with_suffix('.record')}\n")
    print(compiled.report)

    host = Host(path)
    with torch.no_grad():
        results = {
            "fp32": model(test).numpy(),
            "fake-quant": np.concatenate([quantized(image[None]).numpy() for image in test]),
            "executed .pte": np.concatenate([host.run([image[None].numpy()])[0] for image in test]),
        }
    scores = {name: accuracy(answers, labels) for name, answers in results.items()}
    print(f"accuracy on {len(test)} test images")
    for name, score in scores.items():
        print(f"  {name:14} {score:6.2f} %")

    print("\nthe file executed on the NPU model, 50 images")
    verification = compiled.verify([(image[None],) for image in test[:50]])
    print("  " + str(verification).replace("\n", "\n  "))
    reference = np.concatenate([on_reference_model(compiled, image[None].numpy()) for image in test])
    bars = {
        f"int8 within {POINTS_TO_LOSE:g} point of fp32": scores["executed .pte"] >= scores["fp32"] - POINTS_TO_LOSE,
        "delegate bit-exact with the TOSA reference model": np.array_equal(reference, results["executed .pte"]),
        "reference model == NPU model": verification.exact and len(verification.delegates) == 1,
        "everything on the NPU": len(compiled.report.delegates) == 1 and not compiled.report.cpu_ops,
    }
    print()
    for name, holds in bars.items():
        print(f"{'PASS' if holds else 'FAIL'} {name}")
    return 0 if all(bars.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
