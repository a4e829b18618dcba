"""A format string that does not fit its arguments does not compile, and the compiler names the reason."""

import subprocess

import pytest
from harness.ranks import ROOT

NOT_CLOSED = "error_a_brace_of_the_format_string_is_not_closed"
NO_ARGUMENT = "error_a_field_of_the_format_string_has_no_argument"
NO_FIELD = "error_an_argument_has_no_field_in_the_format_string"
NOT_LIKE_THAT = "error_the_argument_cannot_be_formatted_like_that"

CALLS = {
    'formatted("{}", 1)': None,
    'formatted("{{}} {:>8.3f}", 1.0)': None,
    'fail_value("{}")': NO_ARGUMENT,
    'fail_value("{} {}", 1)': NO_ARGUMENT,
    'fail_value("{}", 1, 2)': NO_FIELD,
    'fail_value("none", 1)': NO_FIELD,
    'fail_value("{{}}", 1)': NO_FIELD,
    'fail_value("{", 1)': NOT_CLOSED,
    'fail_value("{} }", 1)': NOT_CLOSED,
    'fail_value("{{} {}", 1)': NOT_CLOSED,
    'fail_value("{:d}", "text")': NOT_LIKE_THAT,
    'fail_value("{:.2f}", 1)': NOT_LIKE_THAT,
    'fail_value("{:x}", 1.0)': NOT_LIKE_THAT,
    'fail_value("{:s}", 1)': NOT_LIKE_THAT,
    'fail_value("{:03}", "text")': NOT_LIKE_THAT,
    'fail_value("{0} {0:x} {1}", 1, "text")': None,
    'fail_value("{1}", 1)': NO_ARGUMENT,
    'fail_value("{0} {2}", 1, 2, 3)': NO_FIELD,
    'fail_value("{} {1}", 1, 2)': "error_only_some_fields_of_the_format_string_are_numbered",
    'fail_value("{:{}}", 1, 2)': NOT_CLOSED,
    'fail_value("{}", E::k)': "a message takes numbers, text",
    "fail_value(text)": "const",  # not a literal
    'HOLON_CHECK(text[0], "{}")': NO_ARGUMENT,
}


@pytest.mark.parametrize("call", CALLS)
def test_format_strings(call):
    source = (
        '#include "holon/base/error.h"\nusing namespace holon;\nenum class E { k };\n'
        f"void f(const char* text) {{ {call}; }}\n"
    )
    command = ["c++", "-std=c++20", "-fsyntax-only", f"-I{ROOT}", "-x", "c++", "-"]
    done = subprocess.run(command, input=source, capture_output=True, text=True)
    if CALLS[call] is None:
        assert done.returncode == 0, done.stderr
    else:
        assert done.returncode != 0 and CALLS[call] in done.stderr, done.stderr
