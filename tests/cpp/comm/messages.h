// What ranks have to say of a failure, for tests.
#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <string>
#include <vector>

#include "holon/comm/run_ranks.h"

namespace holon::comm::test {

// What each rank's body threw, "" for nothing. hosts: of each rank, which plays at being there.
inline std::vector<std::string> messages(const std::vector<int>& hosts, const std::function<void(int)>& body) {
  std::vector<std::string> result(hosts.size());
  run_ranks(hosts, [&](int rank) {
    try {
      body(rank);
    } catch (const std::exception& e) {
      result[static_cast<size_t>(rank)] = e.what();
    }
  });
  return result;
}

// All ranks on one host.
inline std::vector<std::string> messages(int n, const std::function<void(int)>& body) {
  return messages(std::vector<int>(static_cast<size_t>(n)), body);
}

}  // namespace holon::comm::test

#define EXPECT_HAS(text, part) EXPECT_NE((text).find(part), std::string::npos) << (text)
