import ast
import importlib
import importlib.util
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer

import jspec
from jspec.drafters.plugins import BUILTIN

ROOT = Path(__file__).parents[1]
CORE = ("decode", "drafters", "models", "pallas", "rounds", "sampling", "verify")
HOSTS = r"pypi\.org|pythonhosted\.org|npmjs\.(org|com)|deb\.debian\.org|proxy\.golang"
PLACES = r"(?<![\w.])/(root|work|home|Users|opt|tmp)/[\w.]"
SUPPRESSIONS = r"#\s*(type:\s*ignore|pyrefly:\s*ignore|pyright:|noqa|beartype: ignore)"


def tracked(*patterns):
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if listed.returncode:
        pytest.skip("not a git checkout, so nothing says which files are ours")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    return [path for path in files if path.is_file()]


def lines_with(pattern, paths):
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text("utf-8", "ignore").splitlines(), 1)
        if re.search(pattern, line)
    ]


def modules(package):
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        name = ".".join(parts).removesuffix(".__init__")
        yield name, ast.parse(path.read_text("utf-8"))


def readme_commands():
    text = (ROOT / "README.md").read_text("utf-8")
    for block in re.findall(r"```(?:sh|bash|console)\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line.removeprefix("$ "), comments=True)
            if words:
                yield words


def names_of(app):
    return set(typer.main.get_command(app).commands)


@pytest.mark.parametrize("pattern", [HOSTS, PLACES])
def test_no_tracked_file_names_a_registry_host_or_a_place_on_one_machine(pattern):
    assert (
        lines_with(pattern, tracked(":!benchmarks/data/*/*.jsonl", ":!LICENSE")) == []
    )


def test_every_method_stands_in_the_readme_and_in_the_docs():
    rows = (ROOT / "README.md").read_text("utf-8").partition("| method |")[2]
    table = rows.partition("\n\n")[0]
    docs = (ROOT / "docs" / "methods.md").read_text("utf-8")
    assert len(BUILTIN) > 8
    assert [name for name in sorted(BUILTIN) if f"`{name}`" not in table] == []
    assert [name for name in sorted(BUILTIN) if f"Method `{name}`" not in docs] == []


def test_every_module_stands_among_the_floors_of_the_docs():
    text = (ROOT / "docs" / "architecture.md").read_text("utf-8")
    floors = text.partition("## Floors")[2].split("```")[1]
    below = {path.stem for path in (ROOT / "jspec").glob("*.py")}
    below |= {path.parent.name for path in (ROOT / "jspec").glob("*/__init__.py")}
    said = set(re.findall(r"\w+", floors))
    assert below - {"__init__"} <= said


def test_the_core_suppresses_no_checker():
    paths = [
        path
        for path in (ROOT / "jspec").rglob("*.py")
        if path.relative_to(ROOT / "jspec").with_suffix("").parts[0] in CORE
    ]
    assert paths
    assert lines_with(SUPPRESSIONS, paths) == []


def test_every_public_name_is_importable():
    missing = [name for name in jspec.__all__ if not hasattr(jspec, name)]
    assert missing == []


@pytest.mark.parametrize("package", ["jspec", "converters"])
def test_every_module_lists_what_exists(package):
    for name, tree in modules(package):
        listed = [
            ast.literal_eval(node.value)
            for node in tree.body
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == "__all__"
        ]
        if not listed:
            continue
        module = importlib.import_module(name)
        assert [public for public in listed[0] if not hasattr(module, public)] == []


def test_only_the_top_floor_imports_the_package_itself():
    below = {
        name: tree
        for name, tree in modules("jspec")
        if not name.startswith(("jspec.cli", "jspec.server", "jspec.testing"))
    }
    floors = {name.removeprefix("jspec.").split(".")[0] for name, _ in modules("jspec")}
    culprits = {
        name
        for name, tree in below.items()
        for node in ast.walk(tree)
        if (isinstance(node, ast.ImportFrom) and node.module == "jspec")
        and not {alias.name for alias in node.names} <= floors
    }
    assert culprits == set()


def test_every_command_of_the_readme_exists():
    targets = set(
        re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    )
    commands = list(readme_commands())
    assert {words[1] for words in commands if words[0] == "make"} <= targets
    ours = [words[1] for words in commands if words[0] == "jspec"]
    if ours:
        cli = importlib.import_module("jspec.cli")
        assert set(ours) <= names_of(cli.app)
    for words in commands:
        if words[:2] == ["python", "-m"]:
            assert importlib.util.find_spec(words[2]), words[2]
