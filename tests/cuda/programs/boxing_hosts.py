"""boxing_pairs.py where the ranks are on two hosts, as far as Holon knows."""

import os
import runpy
from pathlib import Path

os.environ["HOLON_HOST"] = f"host{int(os.environ['RANK']) // 2}"
runpy.run_path(str(Path(__file__).with_name("boxing_pairs.py")))
