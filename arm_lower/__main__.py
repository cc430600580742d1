"""``python -m arm_lower`` is the command ``arm-lower``."""

import sys

from arm_lower.cli import main

sys.exit(main())
