"""Fixtures of train_support, for every test of this folder."""

import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from train_support import long_data, model  # noqa: E402, F401
