"""What every benchmark leaves behind: a JSON file with its numbers, the machine, the versions and the time."""
import json
import os
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from fastcourse.train.core import device_facts

FOLDER = Path(__file__).with_name("results")


def save(name: str, **content) -> Path:
    "Writes results/NAME.json"
    head = dict(time=datetime.now(timezone.utc).isoformat(timespec="seconds"), machine=asdict(device_facts("cpu")) | dict(load_average=round(os.getloadavg()[0], 1)))
    file = FOLDER / f"{name}.json"
    FOLDER.mkdir(exist_ok=True)
    file.write_text(json.dumps(head | content, indent=1) + "\n")
    return file
