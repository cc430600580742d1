"""Post-training quantization and quantization-aware training for Arm Ethos-U, on torchao's PT2E."""

from quant.calibrate import CalibrationWarning, calibrate, quantize
from quant.config import QuantizationConfig, get_symmetric_quantization_config
from quant.pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from quant.quantizer import EthosUQuantizer

__all__ = [
    "CalibrationWarning",
    "EthosUQuantizer",
    "QuantizationConfig",
    "calibrate",
    "convert_pt2e",
    "get_symmetric_quantization_config",
    "prepare_pt2e",
    "prepare_qat_pt2e",
    "quantize",
]
