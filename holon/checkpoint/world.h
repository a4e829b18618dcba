// What ranks tell each other while they save and load.
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace holon::checkpoint {

// Every rank's text, in their order. Collective over the world.
std::vector<std::string> share(const char* op, const std::string& mine);
// The text of one rank, on all. Collective over the world.
std::string share_from(const char* op, int root, const std::string& mine);

// Runs step, and returns when every rank of the world has run its own. Errors: if a rank's step failed, the same one on
// all ranks, which names that rank. Collective over the world.
void together(const char* op, const std::function<void()>& step);

}  // namespace holon::checkpoint
