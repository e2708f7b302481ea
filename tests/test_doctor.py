"""Each line of the doctor's can fail, and fails for the right reason."""
from pathlib import Path

import pytest
import torch
from conftest import fastcourse
from typer.testing import CliRunner

from fastcourse.course import doctor
from fastcourse.course.cli import app

NAMES = ["Python", "packages", "cores", "memory", "disk", "write", "device", "numbers", "kernel"]


def broken(*_): raise RuntimeError("the driver is too old")


@pytest.mark.parametrize("finding", [
    lambda: doctor.check_python((3, 10, 14)),
    lambda: doctor.check_packages(["torch>=2.6"], lambda name: "2.5.1"),
    lambda: doctor.check_packages(["torch>=2.6"], lambda name: None),
    lambda: doctor.check_cores(1),
    lambda: doctor.check_memory(1.9e9),
    lambda: doctor.check_disk(Path("."), 0.9e9),
    lambda: doctor.check_write(Path("/no/such/folder")),
    lambda: doctor.check_device(broken),
    lambda: doctor.check_numbers(lambda: [doctor.Error("sum", "float32", float("inf"), 1e-6)]),
    lambda: doctor.check_kernel(lambda: "/usr/bin/python3"),
    lambda: doctor.check_kernel(broken),
])
def test_a_line_that_fails_says_what_to_do(finding):
    found = finding()
    assert not found.ok and str(found).startswith(f"FAIL {found.name}") and str(found).endswith(found.next) and found.next


@pytest.mark.parametrize("version, ok", [("2.6.0", True), ("2.14.1+cu130", True), ("3.0.0.dev1", True), ("2.6.0rc1", False), ("2.5.9", False)])
def test_versions_are_compared_as_versions(version, ok):
    assert doctor.check_packages(["torch>=2.6"], lambda name: version).ok is ok


def test_extras_are_not_required():
    assert doctor.check_packages(['pytest>=8; extra == "test"', 'x; python_version < "3"'], lambda name: None).ok


def spoil(change):
    "The doctor's operations, each with `change` made to the float32 inputs or to the result"
    def wrap(operation): return lambda a, b: operation(a, b) if a.dtype == torch.float64 else change(operation, a, b)
    return lambda: {name: (n, wrap(operation)) for name, (n, operation) in doctor.operations().items()}


def tf32(x): return (x.contiguous().view(torch.int32) & ~0x1FFF).view(torch.float32) if x.dtype == torch.float32 else x


@pytest.mark.parametrize("change, caught", [
    (lambda f, a, b: f(a, b) * 1.05, {"matrix product", "convolution", "cross-entropy", "sum"}),
    (lambda f, a, b: f(a, b).flatten().index_fill(0, torch.tensor([0]), float("nan")).view(f(a, b).shape), {"matrix product", "convolution", "cross-entropy", "sum"}),
    (lambda f, a, b: f(a, b) * 0, {"matrix product", "convolution", "cross-entropy"}),
    (lambda f, a, b: f(tf32(a), tf32(b)), {"matrix product", "convolution", "cross-entropy"}),
])
def test_a_device_that_computes_wrong_is_caught(change, caught):
    errors = doctor.measure_errors("cpu", spoil(change))
    assert caught <= {e.operation for e in errors if e.dtype == "float32" and not e.ok}
    assert not doctor.check_numbers(lambda: errors).ok


def test_honest_arithmetic_is_well_inside_the_limits():
    assert all(e.error < e.limit / 2 for e in doctor.measure_errors("cpu"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no accelerator here")
def test_an_accelerator_is_honest_too(): assert all(e.ok for e in doctor.measure_errors("cuda"))


def test_a_check_that_breaks_is_a_line(monkeypatch):
    monkeypatch.setattr(doctor, "check_memory", broken)
    monkeypatch.setattr(doctor, "check_kernel", broken)
    found = {f.name: f for f in doctor.checkup(Path("."))}
    assert list(found) == NAMES and not found["memory"].ok and "driver" in found["memory"].found


@pytest.mark.parametrize("ok, code", [(True, 0), (False, 1)])
def test_the_command_s_exit_code(monkeypatch, ok, code):
    monkeypatch.setattr(doctor, "checkup", lambda folder: [doctor.Finding("disk", ok, "found", "next")])
    assert CliRunner().invoke(app, ["doctor"]).exit_code == code


@pytest.mark.slow
def test_on_this_machine(tmp_path):
    done = fastcourse("doctor", cwd=tmp_path)
    lines = done.stdout.splitlines()
    assert [line[5:17].strip() for line in lines] == NAMES
    assert done.returncode == any(line.startswith("FAIL") for line in lines)
    assert all(line.startswith("OK") for line in lines if line[5:17].strip() in ("Python", "packages", "write", "numbers", "kernel"))
