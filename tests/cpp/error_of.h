// What a call raises, for tests of messages.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <utility>

#include "holon/base/error.h"

namespace holon {

// The text of the Error that call() throws, of that kind where one is given; "no error" if it throws none.
template <class F>
std::string error_of(F&& call, std::optional<ErrorKind> kind = {}) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind.value_or(e.kind()));
    return e.what();
  }
  return "no error";
}

// That of an Error that is a ValueError in Python.
template <class F>
std::string value_error_of(F&& call) {
  return error_of(std::forward<F>(call), ErrorKind::kValue);
}

}  // namespace holon
