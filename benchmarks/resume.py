"""Killed a hundred times: `python benchmarks/resume.py [SEED]` (about five minutes) kills real training processes with SIGKILL at steps drawn from a
seed that it prints, starts each again from its checkpoint, and compares every byte of the end with a run that nobody killed.

The scenarios are those of tests/killed.py: augmentation, dropout, BatchNorm; two sizes, accumulation, clipping; EMA and momentum. Each run of
15 steps is killed four or five times; the tests do the same with ten kills."""
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
import killed
from result import save

KILLS = 100


def main(seed: int) -> int:
    print(f"seed {seed}")
    wholes, runs, done = {name: killed.whole(name) for name in killed.SCENARIOS}, [], 0
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        while done < KILLS:
            name = list(killed.SCENARIOS)[len(runs) % len(killed.SCENARIOS)]
            kills = sorted(rng.sample(range(1, 15), min(rng.choice([4, 5]), KILLS - done)))
            same = killed.survive(name, Path(folder) / f"{len(runs)}.ckpt", kills) == wholes[name]
            runs.append(dict(scenario=name, killed_after=kills, same=same))
            done += len(kills)
            print(f"{done:4} {name}: killed after {kills}: {'the same bits' if same else 'OTHER BITS'}", flush=True)
    save("resume", seed=seed, kills=done, runs=runs, all_the_same=all(run["same"] for run in runs))
    return int(not all(run["same"] for run in runs))


if __name__ == "__main__": sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else random.SystemRandom().randrange(2**32)))
