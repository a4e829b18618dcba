"""Every source includes what it uses of the standard library, itself or through the project's headers: the precompiled
header hides what is missing, and a build without it (ThreadSanitizer's) fails."""

import functools
import re

import pytest
from harness.ranks import ROOT

# What each header of the standard library is used for here: a name without parentheses is a function or type of std.
NAMES = {
    "algorithm": "sort stable_sort max_element min_element find find_if any_of all_of none_of count_if copy_n "
    "transform fill fill_n reverse rotate lower_bound upper_bound nth_element partial_sort is_sorted clamp equal_range",
    "atomic": "atomic atomic_ref atomic_flag atomic_thread_fence memory_order_relaxed memory_order_acquire",
    "chrono": "chrono",
    "cmath": "sqrt exp log log1p expm1 pow isnan isinf isfinite floor ceil tanh sin cos lround llround fma erf hypot "
    "trunc round nearbyint ldexp frexp fmod log2 exp2 copysign signbit lgamma nextafter",
    "condition_variable": "condition_variable condition_variable_any",
    "cstdio": "fprintf printf snprintf fputs puts fopen fclose fflush FILE rename remove",
    "cstdlib": "getenv abort exit _Exit quick_exit atexit strtol strtod system",
    "cstring": "memcpy memset memcmp strlen strcmp strerror memmove strncmp",
    "deque": "deque",
    "exception": "exception_ptr current_exception rethrow_exception terminate uncaught_exceptions",
    "filesystem": "filesystem",
    "fstream": "ifstream ofstream fstream",
    "functional": "function hash less greater plus minus multiplies multiplies invoke reference_wrapper bind",
    "iostream": "cout cerr cin",
    "limits": "numeric_limits",
    "list": "list",
    "map": "map multimap",
    "memory": "unique_ptr shared_ptr weak_ptr make_unique make_shared enable_shared_from_this",
    "mutex": "mutex recursive_mutex timed_mutex lock_guard unique_lock scoped_lock call_once once_flag",
    "numeric": "accumulate iota inner_product gcd lcm partial_sum exclusive_scan reduce",
    "optional": "optional nullopt",
    "queue": "queue priority_queue",
    "random": "mt19937 mt19937_64 uniform_int_distribution uniform_real_distribution normal_distribution random_device",
    "set": "set multiset",
    "shared_mutex": "shared_mutex shared_lock",
    "span": "span",
    "sstream": "ostringstream istringstream stringstream",
    "stdexcept": "runtime_error logic_error invalid_argument out_of_range",
    "string": "string to_string stoi stol stoll stoull stod",
    "string_view": "string_view",
    "thread": "thread this_thread jthread",
    "tuple": "tuple tie make_tuple tuple_size_v apply ignore",
    "unordered_map": "unordered_map",
    "unordered_set": "unordered_set",
    "utility": "pair exchange index_sequence make_index_sequence",
    "variant": "variant visit holds_alternative get_if monostate",
    "vector": "vector",
}
HEADER_OF = {name: header for header, names in NAMES.items() for name in names.split()}
# What a header of the standard library brings by its definition, or is written to bring.
BRINGS = {
    "map": ["utility"],
    "unordered_map": ["utility"],
    "string": ["string_view"],
    "variant": ["utility"],
    "tuple": ["utility"],
    "filesystem": ["string"],
    "fstream": ["string"],
    "sstream": ["string"],
    "iostream": ["string"],
    "queue": ["deque", "vector"],
    "shared_mutex": ["mutex"],
    "condition_variable": ["mutex"],
    "future": ["thread", "mutex"],
    "stdexcept": ["string", "exception"],
    "gtest/gtest.h": ["memory", "string", "vector", "tuple", "map", "set", "ostream"],
}
INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
COMMENT_OR_TEXT = re.compile(r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"', re.S)
USE = re.compile(r"\bstd::(\w+)")


def includes_of(text):
    return [(quote == '"', name) for quote, name in INCLUDE.findall(text)]


def uses_of(text):
    kept = COMMENT_OR_TEXT.sub(" ", text)
    return {name for name in USE.findall(kept) if name in HEADER_OF}


@functools.cache
def headers_reached(path):
    """The standard library's headers that a file has, by itself and by the project's headers."""
    reached, seen, todo = set(), set(), [path]
    while todo:
        at = todo.pop()
        if at in seen:
            continue
        seen.add(at)
        for _, name in includes_of(at.read_text()):
            places = [at.parent / name, ROOT / name, ROOT / "tests/cpp" / name, ROOT / "tests" / name]
            inner = next((p.resolve() for p in places if p.is_file()), None)
            if inner:
                todo.append(inner)
            else:
                reached.update([name, *BRINGS.get(name, [])])
    return reached


def missing_in(uses, reached):
    return {f"std::{name} (<{HEADER_OF[name]}>)" for name in uses if HEADER_OF[name] not in reached}


FOLDERS = ["holon", "python/src", "tests/cpp", "tests/device", "tests/cuda", "benchmarks", "examples", "tools"]


@pytest.mark.parametrize("folder", FOLDERS)
def test_sources_include_what_they_use(folder):
    sources = [p for p in sorted((ROOT / folder).rglob("*")) if p.suffix in {".h", ".cpp", ".cc", ".cuh", ".cu"}]
    found = {}
    for path in sources:
        if missing := missing_in(uses_of(path.read_text()), headers_reached(path.resolve())):
            found[str(path.relative_to(ROOT))] = sorted(missing)
    assert not found, f"include these: {found}"


def test_the_check_finds_what_it_is_for():
    assert missing_in(uses_of("return std::sqrt(x);"), {"vector"}) == {"std::sqrt (<cmath>)"}
    assert not missing_in(uses_of('// std::sqrt\nf("std::sqrt"); std::sqrt(1)'), {"cmath"})
