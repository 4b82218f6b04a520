"""All of Covertype through a residual network: certificates a second, and how far from the arithmetic floor.

    python benchmarks/neural.py prepare --data covertype.parquet --out .cache/covertype.npz
    python benchmarks/neural.py run --data .cache/covertype.npz --out neural.json

`run` needs numpy and torch alone: the numerical core is loaded by its path, so a machine with a GPU needs no install.
Every row x every state of the default protocol (12 groups, K = 10, two operators x 10 severities) goes through a ResMLP
(width 256, 4 blocks), trained for a few epochs first: early stopping depends on the weights, nothing else does.

The arithmetic floor is the time of the matrix products of all evaluated states, each through the whole network, at the
throughput measured in the same run for products of the network's own shape (states, width) x (width, width): the best
over several batch sizes. Variants:

    float32 cells    stressed rows made on the device; what `audit` does with a float32 torch module
    float32 sums     states as sums behind the first layer, in float32
    float64 sums     the same in float64; what `audit` does with a ResMLPClassifier
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))  # standalone.py, however this script is started
from standalone import load_core

SOURCE = Path(__file__).resolve().parents[1] / "src" / "fragility"
MEASUREMENTS = 10  # first columns of Covertype; then 4 columns of one field, and 40 of another
WILDERNESS, SOIL = 4, 40
GROUPS = np.repeat(np.arange(12), [1] * MEASUREMENTS + [WILDERNESS, SOIL])
SEVERITIES = tuple(round(0.1 * i, 1) for i in range(1, 11))
DEPTH = 10
VARIANTS = ("float32 cells", "float32 sums", "float64 sums")
CUDA_BATCHES, CPU_BATCHES = (16384, 32768, 65536, 131072, 262144), (1024, 4096)
CHECKED_ROWS = 2048


def load_source(path: str) -> ModuleType:
    """Import a module of the package by its path, without the package."""
    name = "standalone_" + Path(path).stem
    spec = importlib.util.spec_from_file_location(name, SOURCE / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


# --- data ---------------------------------------------------------------------------------------------------


def prepare(data: Path, out: Path) -> None:
    """Write the table as small integers: numbers as int16, each one-hot field as one code."""
    import pandas as pd

    table = pd.read_parquet(data)
    cells = table.drop(columns="Cover_Type").to_numpy()
    wilderness, soil = cells[:, MEASUREMENTS : MEASUREMENTS + WILDERNESS], cells[:, MEASUREMENTS + WILDERNESS :]
    if not ((wilderness.sum(axis=1) == 1).all() and (soil.sum(axis=1) == 1).all()):
        raise SystemExit("each row must have one wilderness area and one soil type")
    out.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        out,
        numbers=cells[:, :MEASUREMENTS].astype(np.int16),
        wilderness=wilderness.argmax(axis=1).astype(np.uint8),
        soil=soil.argmax(axis=1).astype(np.uint8),
        cover=(table["Cover_Type"].to_numpy() - 1).astype(np.uint8),
    )
    print(f"{out}: {out.stat().st_size / 1e6:.1f} MB, {len(table)} rows")


def read_rows(path: Path, rows: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the standardised float32 matrix (n, 54) and the class codes."""
    stored = np.load(path)
    numbers = stored["numbers"].astype(np.float64)
    numbers = (numbers - numbers.mean(axis=0)) / numbers.std(axis=0)
    n = len(numbers)
    x = np.zeros((n, MEASUREMENTS + WILDERNESS + SOIL), np.float32)
    x[:, :MEASUREMENTS] = numbers
    x[np.arange(n), MEASUREMENTS + stored["wilderness"].astype(int)] = 1.0
    x[np.arange(n), MEASUREMENTS + WILDERNESS + stored["soil"].astype(int)] = 1.0
    chosen = slice(None)
    if rows is not None and rows < n:
        chosen = np.random.default_rng(0).permutation(n)[:rows]
    return x[chosen], stored["cover"][chosen].astype(np.int64)


# --- measuring ----------------------------------------------------------------------------------------------


class Bench:
    """One run: the device, the trained network, the rows and the plan of states."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        self.torch = torch
        self.core = load_core()  # first: it stands in for the package, which the others name
        self.states = load_source("engines/neural_states.py")
        self.scores = load_source("scores.py")
        self.options = options
        self.device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.batches = CUDA_BATCHES if self.device.type == "cuda" else CPU_BATCHES
        self.x, self.codes = read_rows(options.data, options.rows)
        try:
            self.network, self.training = self._train(options.epochs)
        except Exception as error:  # the costs do not need trained weights; the record says what it got
            self.network, self.training = self._train(0)
            self.training["training_failed"] = f"{type(error).__name__}: {error}"
        self.plan = self.states.TracePlan(
            # of ``engines.trace.TraceStates``, which this machine need not be able to import
            SimpleNamespace(
                n_groups=12,
                depth=DEPTH,
                widths=(12, 1),
                fading=None,
                severities=SEVERITIES,
                reading="support",
                resolution=1e-6,
                smoothing=0.0,
            ),
            baseline=self.x.mean(axis=0, dtype=np.float64),
            column_group=GROUPS,
        )

    def _train(self, epochs: int) -> tuple[Any, dict[str, Any]]:
        core, options = self.core, self.options
        shape = core.NetworkShape(self.x.shape[1], 7, options.width, options.blocks)
        if epochs == 0:
            return core.new_network(shape, 0).eval(), {"weights": "random"}
        batch = int(min(4096, max(64, len(self.x) // 50)))
        plan = core.TrainingPlan(max_epochs=epochs, batch_size=batch, learning_rate=2e-3)
        started = time.perf_counter()
        trained = core.train_network(core.Rows(self.x, self.codes), shape, plan, device=self.device)
        seconds = time.perf_counter() - started
        logits = core.compute_logits(trained.network, self.x[:20000], self.device, self.torch.float32)
        return trained.network.eval(), {
            "weights": f"trained for {epochs} epochs on the audited rows",
            "seconds": seconds,
            "accuracy_on_them": float((logits.argmax(axis=1) == self.codes[:20000]).mean()),
        }

    def split(self, variant: str) -> Any:
        precision, space = variant.split()
        dtype = getattr(self.torch, precision)
        module = self.core.ResidualNetwork(self.network.shape)
        module.load_state_dict(self.network.state_dict())
        module = module.to(device=self.device, dtype=dtype).eval()
        first, rest = self.states.split_module(module) if space == "sums" else (None, module)
        return self.states.SplitNetwork(first, rest, "logits", 7, self.device, dtype)

    def trace(self, network: Any, plan: Any, n: int, batch: int) -> tuple[dict[str, np.ndarray], int]:
        sizes = self.states.Sizes.fitting(network, plan, batch)
        if self.options.chunk:
            sizes = replace(sizes, rows=min(self.options.chunk, sizes.rows))
        return self.states.trace_states(lambda a, b: self.x[a:b], n, network, plan, sizes=sizes)  # type: ignore[no-any-return]

    def seconds(self, call: Callable[[], Any], repeats: int) -> list[float]:
        times = []
        for _ in range(repeats):
            self._synchronize()
            started = time.perf_counter()
            call()
            self._synchronize()
            times.append(time.perf_counter() - started)
        return times

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            self.torch.cuda.synchronize()

    # --- the floor

    def forward_flops(self) -> int:
        """Floating-point operations of the matrix products of one state."""
        width, blocks = self.options.width, self.options.blocks
        return 2 * (self.x.shape[1] * width + 2 * blocks * width * width + width * 7)

    def throughput(self, dtype: str) -> dict[str, float]:
        """FLOP/s of (batch, width) x (width, width) by batch size, and of one large square product."""
        torch, width = self.torch, self.options.width
        kind = {"dtype": getattr(torch, dtype), "device": self.device}
        found = {}
        with self.states.steady_arithmetic(self.device):
            w = torch.randn(width, width, **kind) / width**0.5
            for batch in self.batches:
                a, b = torch.randn(batch, width, **kind), torch.empty(batch, width, **kind)
                rounds = max(1, int(4e11 if self.device.type == "cuda" else 2e9) // (2 * batch * width * width))

                def products(a: Any = a, b: Any = b, rounds: int = rounds) -> None:
                    for _ in range(rounds):
                        torch.mm(a, w, out=b)

                products()
                best = min(self.seconds(products, 5))
                found[str(batch)] = 2 * batch * width * width * rounds / best
            side = 8192 if self.device.type == "cuda" else 1024
            a, b = torch.randn(side, side, **kind), torch.randn(side, side, **kind)
            a @ b
            found["square"] = 2 * side**3 / min(self.seconds(lambda: a @ b, 5))
        return found

    # --- variants

    def tuned_batch(self, network: Any) -> tuple[int, dict[str, float]]:
        n = min(len(self.x), 65536)
        plan = replace(self.plan, early_stop=False)
        times = {}
        for batch in self.batches:
            self.trace(network, plan, min(n, 4096), batch)
            times[batch] = min(self.seconds(lambda batch=batch: self.trace(network, plan, n, batch), 2))
        return min(times, key=lambda batch: times[batch]), {str(batch): seconds for batch, seconds in times.items()}

    def variant(self, name: str, throughput: float) -> dict[str, Any]:
        network = self.split(name)
        batch, tuning = self.tuned_batch(network)
        record: dict[str, Any] = {"batch": batch, "tuning_seconds_by_batch": tuning}
        n = len(self.x)
        for label, early in (("every state", False), ("early stop", True)):
            plan = replace(self.plan, early_stop=early)
            if self.device.type == "cuda":
                self.torch.cuda.reset_peak_memory_stats()
            arrays, evaluations = self.trace(network, plan, n, batch)
            times = self.seconds(lambda plan=plan: self.trace(network, plan, n, batch), self.options.repeats)
            seconds = statistics.median(times)
            floor = evaluations * self.forward_flops() / throughput
            record[label] = {
                "seconds": seconds,
                "all_seconds": times,
                "certificates_per_second": n / seconds,
                "evaluations": evaluations,
                "states_per_row": evaluations / n,
                "floor_seconds": floor,
                "multiple_of_floor": seconds / floor,
                "achieved_tflops": evaluations * self.forward_flops() / seconds / 1e12,
            }
            if self.device.type == "cuda":
                record[label]["peak_device_bytes"] = self.torch.cuda.max_memory_allocated()
        started = time.perf_counter()
        record["scores"] = {**self.summary(arrays), "seconds_on_host": time.perf_counter() - started}
        record["against_float64_cells"] = self.agreement(network, batch)
        return record

    def summary(self, arrays: dict[str, np.ndarray]) -> dict[str, float]:
        """k*, RCMA and FDS of every row, by the definitions, on the host."""
        flipped = arrays["path_predicted"] != arrays["predicted"][:, None]
        budget = self.scores.flip_budget(flipped)
        area = self.scores.rcma(self.scores.collapse(arrays["margin"], arrays["path_margin"], "support"))
        fds = self.scores.fds(area, budget, arrays["threshold"], (1 / 3, 1 / 3, 1 / 3))
        return {
            "mean_flip_budget": float(budget.mean()),
            "mean_rcma": float(area.mean()),
            "mean_fds": float(fds.mean()),
            "flipped_share": float((budget <= DEPTH).mean()),
        }

    def agreement(self, network: Any, batch: int) -> dict[str, float]:
        """Largest margin differences from, and shares of rows equal to, stressed cells in float64."""
        n = min(CHECKED_ROWS, len(self.x))
        reference, _ = self.trace(self.split("float64 cells"), self.plan, n, batch)
        claimed, _ = self.trace(network, self.plan, n, batch)
        gaps = {
            f"largest_gap_{name}": float(np.abs(claimed[name] - reference[name]).max())
            for name in ("margin", "one_step_margin", "path_margin")
        }
        shares = {
            f"equal_share_{name}": float((claimed[name] == reference[name]).reshape(n, -1).all(axis=1).mean())
            for name in ("predicted", "order", "path_predicted", "threshold")
        }
        return {**gaps, **shares}

    def run(self) -> dict[str, Any]:
        torch = self.torch
        throughput = {kind: self.throughput(kind) for kind in ("float32", "float64")}
        best = {kind: max(v for k, v in found.items() if k != "square") for kind, found in throughput.items()}
        cuda = self.device.type == "cuda"
        document: dict[str, Any] = {
            "rows": len(self.x),
            "network": {"width": self.options.width, "blocks": self.options.blocks, **self.training},
            "protocol": {"groups": 12, "depth": DEPTH, "operators": 2, "severities": len(SEVERITIES)},
            "paper_states_per_row": 1 + 12 + DEPTH + 2 * len(SEVERITIES),
            "forward_flops": self.forward_flops(),
            "device": torch.cuda.get_device_name() if cuda else f"CPU, {torch.get_num_threads()} threads",
            "versions": {"torch": torch.__version__, "numpy": np.__version__, "python": platform.python_version()},
            "tf32": False,
            "throughput_flops": throughput,
        }
        for name in self.options.variants:
            document[name] = self.variant(name, best[name.split()[0]])
            print(f"{name}: {_line(document[name])}", file=sys.stderr, flush=True)
            self._save(document)
        return document

    def _save(self, document: dict[str, Any]) -> None:
        """Write what there is: a later variant that fails costs only itself."""
        if self.options.out is not None:
            self.options.out.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")


def _line(record: dict[str, Any]) -> str:
    return "; ".join(
        f"{label} {record[label]['seconds']:.3f} s, {record[label]['certificates_per_second']:,.0f} certificates/s, "
        f"{record[label]['multiple_of_floor']:.2f} x floor"
        for label in ("every state", "early stop")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    preparing = commands.add_parser("prepare", help="write the data as one small file")
    preparing.add_argument("--data", type=Path, required=True, help="covertype.parquet")
    preparing.add_argument("--out", type=Path, required=True)
    running = commands.add_parser("run", help="measure; prints JSON")
    running.add_argument("--data", type=Path, required=True, help="what `prepare` wrote")
    running.add_argument("--out", type=Path, help="also write the JSON here, after each variant")
    running.add_argument("--rows", type=int, help="a random sample of so many rows (default: all)")
    running.add_argument("--device", help="cuda or cpu (default: cuda where there is one)")
    running.add_argument("--width", type=int, default=256)
    running.add_argument("--blocks", type=int, default=4)
    running.add_argument("--epochs", type=int, default=3, help="0: random weights")
    running.add_argument("--repeats", type=int, default=3)
    running.add_argument("--chunk", type=int, help="rows held at a time (default: what fits, at most 32768)")
    running.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    options = parser.parse_args()
    if options.command == "prepare":
        prepare(options.data, options.out)
    else:
        print(json.dumps(Bench(options).run(), indent=2))


if __name__ == "__main__":
    main()
