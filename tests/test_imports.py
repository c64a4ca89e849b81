"""The arrows between the packages, and what a fresh import may load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("configs", "privacy", "strategies", "fedmvc_client", "fedmvc_server")
MAX_LINES = 400

# Modules or whole packages that a package may import, itself aside.
ALLOWED = {
    "configs": set(),
    "privacy": {"configs"},
    "strategies": {"configs", "privacy"},
    "fedmvc_client": {"configs", "privacy", "strategies.messages", "strategies.records"},
    "fedmvc_server": {"configs", "privacy", "strategies"},
}
# Arrows of a module, or of all modules of a package, beyond its own package's.
ALSO = {
    # one machine plays both halves, so it needs the maths of the server's half
    "fedmvc_client.estimators": {
        "strategies.aggregation",
        "strategies.acceleration",
        "strategies.feature_ranking",
        "strategies.feature_rounds",
        "strategies.label_alignment",
        "strategies.label_coding",
        "strategies.preparation",
        "strategies.tensor_admm",
        "strategies.tensor_blending",
        "strategies.tensor_svd",
    },
    # a site rates its weights by the rule that the server ranks features by
    "fedmvc_client.solvers.feature_site": {"strategies.feature_ranking"},
    # runs both halves on one machine; socket_server is the worker's half of the relay
    "fedmvc_server.simulation": {
        "fedmvc_client.app",
        "fedmvc_client.worker",
        "fedmvc_client.relay",
        "fedmvc_client.socket_server",
    },
}
# Rooms that must not know Flower.
WITHOUT_FLOWER = (
    "configs",
    "privacy",
    "fedmvc_client.bundle",
    "fedmvc_client.solvers",
    "strategies.codec",
    "strategies.messages",
    *sorted(ALSO["fedmvc_client.estimators"]),
)


def module_name(path, root):
    parts = path.relative_to(root).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def python_files(root):
    return sorted(path for name in PACKAGES for path in (root / name).rglob("*.py"))


def imported(path, root):
    """Yield (line, dotted name) of every import, `from a import b` as a.b; a module or a name."""
    name = module_name(path, root)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = name.split(".") if path.stem == "__init__" else name.split(".")[:-1]
                above = package[: len(package) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"


def within(name, rooms):
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def forbidden_arrows(root):
    found = []
    for path in python_files(root):
        name = module_name(path, root)
        package = name.split(".")[0]
        also = [arrows for room, arrows in ALSO.items() if within(name, [room])]
        rooms = {package} | ALLOWED[package] | set().union(*also)
        for line, target in imported(path, root):
            ours = target.split(".")[0] in PACKAGES
            flower = within(name, WITHOUT_FLOWER) and within(target, ("flwr", "ray"))
            if (ours and not within(target, rooms)) or flower:
                found.append(f"{name}:{line} imports {target}")
    return found


def loaded_after(statement, *heavy):
    script = f"import sys; {statement}; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_every_package_was_found():
    assert {module_name(path, ROOT).split(".")[0] for path in python_files(ROOT)} == set(PACKAGES)


def test_arrows_run_as_the_architecture_says():
    assert forbidden_arrows(ROOT) == []


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("fedmvc_client/bad.py", "import fedmvc_server.app"),
        ("fedmvc_client/bad.py", "from fedmvc_server import app"),
        ("fedmvc_client/bad.py", "from strategies.aggregation import exact"),
        ("fedmvc_client/bad.py", "from strategies import aggregation"),
        ("fedmvc_client/solvers/bad.py", "from strategies.fedhk_mvfc import FedHKMVFC"),
        ("fedmvc_client/estimators/bad.py", "from strategies.tensor_fmvc import TensorStrategy"),
        ("fedmvc_client/estimators_bad.py", "from strategies.aggregation import exact"),
        ("fedmvc_client/solvers/bad.py", "def late():\n    import flwr.clientapp"),
        ("fedmvc_server/bad.py", "from fedmvc_client.data import load_site"),
        ("fedmvc_server/simulation.py", "from fedmvc_client.data import load_site"),
        ("fedmvc_server/report/bad.py", "from ...fedmvc_client import data"),
        ("strategies/bad.py", "import fedmvc_client"),
        ("privacy/bad.py", "from strategies import messages"),
        ("configs/bad.py", "from privacy import masking"),
        ("strategies/messages.py", "from flwr.common import RecordDict"),
    ],
)
def test_a_planted_arrow_is_found(tmp_path, module, statement):
    file = tmp_path / module
    file.parent.mkdir(parents=True)
    file.write_text(statement + "\n", encoding="utf-8")
    (found,) = forbidden_arrows(tmp_path)
    assert found.startswith(f"{module_name(file, tmp_path)}:")


@pytest.mark.parametrize(
    ("module", "statement"),
    [
        ("fedmvc_client/good.py", "from strategies.messages import Refusal"),
        ("fedmvc_client/good.py", "from strategies import messages, records"),
        ("fedmvc_client/good.py", "from .solvers import views\nfrom . import data"),
        ("fedmvc_client/estimators/good.py", "from strategies.aggregation import exact"),
        ("fedmvc_client/estimators/__init__.py", "from strategies import tensor_admm"),
        ("fedmvc_server/simulation.py", "from fedmvc_client.worker import SiteWorker"),
        ("strategies/good.py", "import flwr"),
    ],
)
def test_a_drawn_arrow_is_left_alone(tmp_path, module, statement):
    file = tmp_path / module
    file.parent.mkdir(parents=True)
    file.write_text(statement + "\n", encoding="utf-8")
    assert forbidden_arrows(tmp_path) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_package_imports_nothing_by_itself(package):
    tree = ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8"))
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def test_no_module_is_longer_than_a_reader_can_hold():
    lengths = {
        module_name(path, ROOT): len(path.read_text(encoding="utf-8").splitlines())
        for path in python_files(ROOT)
    }
    assert {name: n for name, n in lengths.items() if n > MAX_LINES} == {}


def test_client_app_starts_without_torch_or_data():
    heavy = ("torch", "sklearn", "pyarrow", "opacus", "fedmvc_client.worker", "fedmvc_client.data")
    assert loaded_after("import fedmvc_client.app", *heavy) == "[]"


@pytest.mark.parametrize("module", ["executor", "cli_executor", "clientapp", "fast_poll"])
def test_the_executor_starts_without_torch_or_data(module):
    heavy = ("torch", "sklearn", "pyarrow", "opacus", "fedmvc_client.worker", "fedmvc_client.data")
    assert loaded_after(f"import fedmvc_client.{module}", *heavy) == "[]"


@pytest.mark.parametrize("module", ["fedmvc_server.app", "fedmvc_server.simulation"])
def test_server_app_leaves_loading_the_client_app_to_flower(module):
    # both load in threads of one process under `flwr run`, and Flower takes what is half loaded
    assert loaded_after(f"import {module}", "fedmvc_client.app") == "[]"


def test_the_probe_sees_what_is_loaded():
    assert loaded_after("import fedmvc_client.data", "pyarrow", "torch") == "['pyarrow']"
