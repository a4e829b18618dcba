"""The specification's own programs, where they are above this repository."""

from pathlib import Path

RUNNER = next(
    (
        p / "shared" / "seeds" / "run"
        for p in Path(__file__).resolve().parents
        if (p / "shared" / "seeds" / "run").exists()
    ),
    None,
)

PROGRAMS = [
    "000_1_local",
    "000_2_data_parallel",
    "000_3_model_parallel",
    "000_4_pipeline",
    "000_5_mixed_eager",
    "000_6_mixed_graph",
    "001_2_data_parallel",
    "001_4_pipeline_from_local",
    "002_1_mixed_parallelism_mlp",
    "002_2_mixed_parallelism_lenet",
    "004_1_randn_global",
    "004_2_local_to_global",
    "004_3_to_local",
    "004_4_split_to_broadcast",
    "004_5_matmul_sbp",
]
