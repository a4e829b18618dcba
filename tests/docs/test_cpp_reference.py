"""The C++ reference: what tools/reference/cpp.py reads of headers, and that it finds what has no comment."""

import sys

import pytest
from harness.ranks import ROOT

sys.path.insert(0, str(ROOT / "tools"))
cpp = pytest.importorskip("reference.cpp", reason="needs libclang (tools/requirements-test.txt)")

HEADER = """// A counter, which counts.
//
//   Counter counter;
//   counter.add(2);
#pragma once

namespace holon {

// How it counts:
//  - by ones, or
//  - by more
//    than that.
enum class Kind { kOne, kMore };

struct CounterOptions {
  int first = 0;  // the number that
                  // it begins with
  bool wraps = false, fast = true;
};

class Counter {
 public:
  explicit Counter(const CounterOptions& options = {}) : n_(options.first) {}
  Counter(const Counter&) = delete;
  // Counts on. Errors: a negative n.
  [[nodiscard]] Counter& add(int n) {
    n_ += n;
    return *this;
  }
  Counter& sub(int n) { return add(-n); }
  void sub(double) = delete;

  int value() const { return n_; }
  template <class T>
  T as() const;  // converted

 protected:
  // Called after each change.
  virtual void changed() {}

 private:
  int n_;
};

template <class T>
T Counter::as() const {
  return static_cast<T>(n_);
}

namespace detail {
int hidden();
}

int count(const char* text, int limit = {});

// Counts into x.
void count_(int* x);

}  // namespace holon
"""


@pytest.fixture
def entries(tmp_path):
    (tmp_path / "holon").mkdir()
    (tmp_path / "holon/holon.h").write_text('#include "counter.h"\n')
    (tmp_path / "holon/counter.h").write_text(HEADER)
    return {e.name: e for e in cpp.Reader(tmp_path).of("counter.h")}


def test_what_is_public(entries):
    assert list(entries) == ["Kind", "CounterOptions", "Counter", "count", "count_"]
    assert [e.name for e in entries["Counter"].inside] == ["Counter", "add", "sub", "value", "as", "changed"]
    assert entries["count"].text == "int count(const char* text, int limit = {})"
    assert entries["Kind"].text == "enum class Kind { kOne, kMore }"
    add = entries["Counter"].inside[1]
    assert add.text == "Counter& add(int n)" and add.doc == "Counts on. Errors: a negative n."


def test_what_has_no_comment(entries):
    missing = [name for entry in entries.values() for name in cpp.undocumented(entry)]
    assert missing == ["Counter::value", "count"]


def test_the_page(entries):
    problems = []
    page = cpp.page("Counters", "Of counters.", list(entries.values()), "A note.\n", problems, {})
    assert not problems
    assert "A counter, which counts.\n\n```c++\nCounter counter;\ncounter.add(2);\n```\n" in page
    assert "How it counts:\n\n- by ones, or\n- by more\n  than that.\n" in page
    assert "- `int first = 0`: the number that it begins with\n- `bool wraps = false, fast = true`\n" in page
    assert "- `Counter& add(int n)`<br>`Counter& sub(int n)`: Counts on. Errors: a negative n.\n" in page
    assert "For classes that derive from it:\n\n- `void changed()`: Called after each change.\n" in page
    assert "int n_" not in page and "hidden" not in page


def test_two_classes_of_one_name_are_told(entries):
    problems = []
    twice = [entries["Counter"], entries["Counter"]]
    cpp.page("Counters", "", twice, "", problems, {})
    assert problems == ["counter.h: two classes Counter on one page"]


def test_every_header_of_programs_has_a_page(monkeypatch):
    assert cpp.missing_headers() == []
    monkeypatch.delitem(cpp.PAGES, "graph")
    assert cpp.missing_headers() == ["graph/nn_graph.h"]
