"""The layering, and that the README names what there is."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

from schedsim.algorithms import PLANNERS

ROOT = Path(__file__).parents[1]
OUTWARD = {"api.py", "__main__.py", "adjoint.py", "jax.py"}
CORE = [
    file
    for file in sorted((ROOT / "schedsim").rglob("*.py"))
    if "cli" not in file.relative_to(ROOT).parts and file.name not in OUTWARD
]


@cache
def parsed(file: Path) -> ast.Module:
    """Its syntax tree, which several tests read."""
    return ast.parse(file.read_text())


@cache
def nodes(tree: ast.AST) -> tuple[ast.AST, ...]:
    """All nodes of `tree`: to walk it takes most of the time of these tests."""
    return tuple(ast.walk(tree))


def imported(file: Path) -> set[str]:
    """Absolute names of the modules that `file` imports anywhere."""
    parts = list(file.relative_to(ROOT).with_suffix("").parts)
    if parts[0] in ("algorithms", "validation"):
        parts.insert(0, "schedsim")
    names = set()
    for node in nodes(parsed(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            base = parts[: -node.level] if node.level else []
            names.add(".".join([*base, *(node.module or "").split(".")]).strip("."))
    return names


def imports_from(files: list[Path], *rooms: str) -> list[tuple[str, str]]:
    """What `files` import of these rooms: (file, module)."""
    return [
        (str(file.relative_to(ROOT)), name)
        for file in files
        for name in sorted(imported(file))
        if name.startswith(rooms)
    ]


def test_the_core_does_not_look_outward():
    """Only the command line and api.py know planners."""
    rooms = ("schedsim.algorithms", "schedsim.validation", "schedsim.cli")
    assert imports_from(CORE, *rooms) == []


def test_planners_know_the_core_alone():
    """No planner imports the command line, the api or validation."""
    files = sorted((ROOT / "algorithms").rglob("*.py"))
    assert imports_from(files, "schedsim.cli", "schedsim.api", "schedsim.validation") == []


def test_real_models_do_not_know_the_command_line():
    """Validation is called by the commands, and calls none."""
    assert imports_from(sorted((ROOT / "validation").rglob("*.py")), "schedsim.cli") == []


def test_imports_of_other_rooms_are_found():
    command = ROOT / "schedsim" / "cli" / "plan.py"
    assert ("schedsim/cli/plan.py", "schedsim.cli.help") in imports_from([command], "schedsim.cli")


def private_names(tree: ast.Module) -> set[str]:
    """Names with one leading underscore that a module gives to something of its own."""
    found = set()
    for node in nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute) and getattr(node.value, "id", "") in ("self", "cls"):
            found.add(node.attr)
    return {name for name in found if name.startswith("_")}


def reaches_into_torch(tree: ast.Module, ours: set[str]) -> list[str]:
    """What a module takes by a private name that nothing of `ours` has; ops of aten are public."""
    found, has_torch = [], False
    for node in nodes(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            inside = getattr(node, "module", None) or ""
            names = [f"{inside}.{alias.name}".strip(".") for alias in node.names]
            has_torch |= any(name.partition(".")[0] == "torch" for name in names)
            found += [name for name in names if re.match(r"(torch|functorch)\b.*\.(_|exp)", name)]
    if not has_torch:
        return found
    for node in nodes(tree):
        if isinstance(node, ast.Attribute) and re.match(r"_[a-z_]*[a-z]$", node.attr):
            text = ast.unparse(node)
            of_torch = text.startswith("torch.") or node.attr not in ours
            if of_torch and not re.match(r"(torch\.ops\.)?aten\._|os\._exit", text):
                found.append(text)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
            if re.match(r"_[a-z]", name) and name not in ours:
                found.append(ast.unparse(node))
    return found


def test_one_room_knows_what_torch_does_not_document():
    """Private modules, functions and attributes of torch are reached for in it alone."""
    room = ROOT / "validation" / "torch_private"
    folders = ("schedsim", "algorithms", "validation")
    files = [file for folder in folders for file in sorted((ROOT / folder).rglob("*.py"))]
    files = [file for file in files if room not in file.parents]
    ours = {name for file in files for name in private_names(parsed(file))}
    found = {str(f.relative_to(ROOT)): reaches_into_torch(parsed(f), ours) for f in files}
    assert {file: names for file, names in found.items() if names} == {}


def test_what_reaches_into_torch_is_found():
    """Imports, attributes, names in texts; neither ops nor names of our own."""
    code = """
import torch._dynamo as dynamo
from torch.utils import _pytree
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.data import DataLoader
aten._softmax(torch.ops.aten._to_copy(torch.__version__))
torch.autograd._get_sequence_nr(module._buffers, own._mine, getattr(p, "_local_tensor", p))
"""
    assert sorted(reaches_into_torch(ast.parse(code), {"_mine"})) == [
        "getattr(p, '_local_tensor', p)",
        "module._buffers",
        "torch._dynamo",
        "torch.autograd._get_sequence_nr",
        "torch.fx.experimental.proxy_tensor.make_fx",
        "torch.utils._pytree",
    ]


def walks_of_the_process(tree: ast.Module) -> list[str]:
    """Calls that give every object of the process, or all that refer to one."""
    names = ("get_objects", "get_referrers")
    return [
        ast.unparse(node)
        for node in nodes(tree)
        if (isinstance(node, ast.Attribute) and node.attr in names)
        or (isinstance(node, ast.ImportFrom) and {it.name for it in node.names} & set(names))
    ]


def test_one_module_goes_through_the_objects_of_the_process():
    """A walk in Python lets other threads run, whose unfinished tuples then cannot grow."""
    found = {
        str(file.relative_to(ROOT)): walks
        for folder in ("schedsim", "algorithms", "validation")
        for file in sorted((ROOT / folder).rglob("*.py"))
        if (walks := walks_of_the_process(parsed(file)))
    }
    assert list(found) == ["validation/process_objects.py"], found


# Words of the core that happen to be names of planners, where they mean something else.
HOMONYMS = {
    "auto": {
        "cli/estimate.py",  # --static auto
        "cli/given/workload_source.py",
        "cli/given/workload_options.py",
        "cli/given/made_pipeline.py",  # --recompute auto, --partition auto
        "cli/given/pipeline_options.py",
        "cli/planning/step_options.py",  # --accumulate auto, --chunk auto
        "figures/notebook.py",  # matplotlib's aspect
        "figures/plot.py",
        "sweeps/experiment.py",  # static = "auto"
        "workloads/build.py",
    },
    "saved_bytes": {  # a field of stages and of variants
        "dataflow/chain.py",
        "dataflow/variants.py",
        "files/workload_parts.py",
        "files/plan_files.py",
        "files/workload_files.py",
    },
    "cuts": {"pipelines/pipeline.py", "pipelines/plan_file.py"},  # of a pipeline into stages
    "offload": {
        "export/to_maxtext.py",  # a place of its configuration
        "clusters/op_words.py",  # an op of a rank
        "clusters/rank_memory.py",
        "clusters/rank_time.py",
        "clusters/joint_choice.py",  # whether the search of a cluster may
        "sweeps/cluster_runs.py",
    },
    "store_all": {"analysis/explanation.py"},  # a field of its document
    "frontier": {"cli/plot/curve_pictures.py"},  # schedsim plot frontier
}


def literals(tree: ast.AST) -> set[str]:
    """Texts in the code of a module, without docstrings."""
    docs = set()
    for node in nodes(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            docs.add(id(node.value))
    return {
        node.value
        for node in nodes(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs
    }


def test_the_core_names_no_planner():
    """Neither as a text nor by its module: what differs is a field of the planner's row."""
    found = []
    for file in sorted((ROOT / "schedsim").rglob("*.py")):
        where = str(file.relative_to(ROOT / "schedsim"))
        tree = parsed(file)
        for name in sorted(literals(tree) & set(PLANNERS)):
            if where not in HOMONYMS.get(name, ()):
                found.append(f"{where}: {name!r}")
        for node in nodes(tree):
            if isinstance(node, ast.ImportFrom) and "algorithms" in (node.module or "").split("."):
                module = (node.module or "").rpartition(".")[2]
                names = {module, *(alias.name for alias in node.names)} & set(PLANNERS)
                found += [f"{where}: imports {name}" for name in sorted(names)]
    # Types of what pipelines are planned to, for annotations alone.
    assert [one for one in found if not one.endswith("imports plan_pipeline")] == []


def test_the_readme_lists_every_planner():
    """A row per name."""
    text = (ROOT / "README.md").read_text()
    assert [name for name in PLANNERS if f"| `{name}` |" not in text] == []


def test_every_public_function_has_a_docstring():
    """Modules, classes and functions that do not begin with an underscore."""
    lacking = []
    folders = ("schedsim", "algorithms", "validation")
    for file in [file for folder in folders for file in (ROOT / folder).rglob("*.py")]:
        tree = parsed(file)
        if not ast.get_docstring(tree):
            lacking.append(str(file))
        for node in tree.body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"
            if public and not ast.get_docstring(node):
                lacking.append(f"{file}:{node.name}")
    assert lacking == []


MOST_PARAMETERS = 8
MOST_PARAMETERS_OF_FACADE = 12

# What people call by hand, where every choice has a keyword of its own.
FACADE = {
    "schedsim/dataflow/chain.py:from_arrays",
    "schedsim/plans/maximize.py:maximize",
    "schedsim/plans/pareto.py:pareto",
    "schedsim/plans/plan.py:make_plan",  # how planners end, those of other packages too
    "validation/block_level/chain_capture.py:capture_chain",  # as the guide shows it
    "validation/rematerialize.py:rematerialize",
    "validation/rematerialize.py:ways",
    # Planners: their options are those of `schedsim.plan` and of `--option`.
    "algorithms/auto.py:auto",
    "algorithms/graphs/local_search.py:local_search",
    "algorithms/graphs/moccasin.py:moccasin",
    "algorithms/offload/offload.py:offload",
    "algorithms/offload/poet.py:poet",
    # Models: their parameters are the options of ``model:NAME,OPTION=VALUE``.
    "validation/models/gpt2.py:build_gpt2",
    "validation/models/llama.py:build_llama",
    "validation/models/mixtral.py:build_mixtral",
    "validation/models/vit.py:build_vit",
}


def num_parameters(function: ast.FunctionDef) -> int:
    """How many a caller can give, with ``*`` and ``**`` as one each; without `self`."""
    given = function.args
    named = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    bound = named[:1] in (["self"], ["cls"])
    return len(named) - bound + (given.vararg is not None) + (given.kwarg is not None)


def test_no_function_takes_more_than_eight_parameters():
    """What belongs together is one record; of the facade, twelve."""
    found, facade = {}, set()
    for folder in ("schedsim", "algorithms", "validation"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in nodes(parsed(file)):
                if isinstance(node, ast.FunctionDef) and num_parameters(node) > MOST_PARAMETERS:
                    name = f"{file.relative_to(ROOT)}:{node.name}"
                    facade |= {name} & FACADE
                    most = MOST_PARAMETERS_OF_FACADE if name in FACADE else MOST_PARAMETERS
                    if num_parameters(node) > most:
                        found[name] = num_parameters(node)
    assert found == {}
    assert facade == FACADE


def modules() -> dict[str, Path]:
    """Name -> file of every module of the three folders, as it is imported."""
    found = {}
    for folder in ("schedsim", "algorithms", "validation"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            parts = list(file.relative_to(ROOT).with_suffix("").parts)
            parts = parts if parts[0] == "schedsim" else ["schedsim", *parts]
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def imports_of(name: str, known: dict[str, Path]) -> set[str]:
    """The modules of ours that `name` imports: at the top and in functions, not for types alone."""
    tree = parsed(known[name])
    package = name.split(".")[: None if known[name].name == "__init__.py" else -1]
    for_types = {
        id(inner)
        for node in nodes(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for one in node.body
        for inner in ast.walk(one)
    }
    found = set()
    for node in nodes(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                whole = f"{module}.{alias.name}"
                found.add(whole if whole in known else module)
    return (found & known.keys()) - {name}


def circles(graph: dict[str, set[str]]) -> set[frozenset[str]]:
    """The sets of modules that import each other, directly or over others."""

    def reached(name: str) -> set[str]:
        seen: set[str] = set()
        left = [name]
        while left:
            new = graph[left.pop()] - seen
            seen |= new
            left += new
        return seen

    reach = {name: reached(name) for name in graph}
    return {
        frozenset({name, *(other for other in reach[name] if name in reach[other])})
        for name in graph
        if name in reach[name]
    }


def test_no_module_imports_itself_over_others():
    """Imports within functions count, too: they hide a circle, and do not mend it."""
    known = modules()
    assert circles({name: imports_of(name, known) for name in known}) == set()


def test_circles_are_found():
    """Circles of two modules and of three are found, and none in a line."""
    graph = {"a": {"b"}, "b": {"a"}, "c": {"d"}, "d": {"e"}, "e": {"c"}, "f": {"a"}}
    assert circles(graph) == {frozenset("ab"), frozenset("cde")}


# Modules that are called the same and are of the same idea, each with what the idea is. Of another
# idea, a module has another name.
SAME_MODULE = {
    "pipeline": "the command, and what it plans",
    "plan": "the command, and what it makes",
    "report": "the command, and the page that it writes",
    "resnet": "the network as a formula, and as a model of torch",
    "validate": "the command, and what it runs",
}
MOST_SAME_MODULES = 8


def test_few_modules_lie_outside_of_the_rooms():
    """The others are found by the name of their room."""
    flat = [file.stem for file in (ROOT / "schedsim").glob("*.py") if file.stem != "__init__"]
    assert len(flat) <= 8, flat


def test_a_module_name_has_one_meaning():
    """Over all folders; ``_name.py`` and ``name.py`` are one name."""
    seen: dict[str, list[str]] = {}
    for file in modules().values():
        if file.stem not in ("__init__", "__main__"):
            where = str(file.relative_to(ROOT))
            seen.setdefault(file.stem.lstrip("_"), []).append(where)
    several = {stem: files for stem, files in seen.items() if len(files) > 1}
    assert {stem: files for stem, files in several.items() if stem not in SAME_MODULE} == {}
    assert sorted(SAME_MODULE) == sorted(several)
    assert len(SAME_MODULE) <= MOST_SAME_MODULES


def test_a_class_name_has_one_meaning():
    """Private classes count, too: a reader finds both. ``_Name`` and ``Name`` are one name."""
    seen: dict[str, list[str]] = {}
    for file in modules().values():
        where = str(file.relative_to(ROOT))
        for node in nodes(parsed(file)):
            if isinstance(node, ast.ClassDef):
                seen.setdefault(node.name.lstrip("_"), []).append(where)
    several = {name: files for name, files in seen.items() if len(files) > 1}
    assert several == {}


def test_every_package_is_in_the_wheel():
    """Each folder with an ``__init__.py`` is listed, as the outer ones are mapped by hand."""
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = []
    for folder in ("schedsim", "algorithms", "validation"):
        for file in (ROOT / folder).rglob("__init__.py"):
            name = ".".join(file.parent.relative_to(ROOT).parts)
            found.append(name if folder == "schedsim" else f"schedsim.{name}")
    assert sorted(listed) == sorted(found)


def test_ranks_of_tests_are_processes_that_are_watched():
    """A group whose last holder is a wrapper's own C++ may wait for its threads for good.

    Such a wait keeps Python's lock: it holds up the whole run, where `run_ranks` ends a process.
    """
    starts = {
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in (ROOT / "tests").rglob("*.py")
        if "init_process_group" in file.read_text()
        for node in nodes(parsed(file))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") == "init_process_group"
        and getattr(node.args[0], "value", "") != "fake"
    }
    assert {place.partition(":")[0] for place in starts} == {"tests/helpers/rank_processes.py"}, (
        sorted(starts)
    )


def test_modules_have_tests_of_their_own_name():
    """`a/_x.py` is tested in some ``test_x.py``; a module without one is listed with the reason.

    A line is ``path: reason``. The list only shrinks.
    """
    named = {file.name for file in (ROOT / "tests").rglob("test_*.py")}
    without = {
        str(file.relative_to(ROOT))
        for file in modules().values()
        if file.stem not in ("__init__", "__main__")
        and f"test_{file.stem.lstrip('_')}.py" not in named
    }
    lines = (ROOT / "tests/modules_without_tests.txt").read_text().splitlines()
    reasons = {path: reason.strip() for path, _, reason in (line.partition(":") for line in lines)}
    assert [path for path, reason in reasons.items() if len(reason) < 20] == []
    listed = set(reasons)
    assert sorted(without - listed) == []
    assert sorted(listed - without) == []
