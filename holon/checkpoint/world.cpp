#include "holon/checkpoint/world.h"

#include <algorithm>
#include <numeric>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/comm/communicator.h"

namespace holon::checkpoint {

namespace {

comm::Communicator& whole_world() {
  std::vector<int> ranks(static_cast<size_t>(Context::current().world_size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return comm::communicator(ranks);
}

}  // namespace

std::vector<std::string> share(const char* op, const std::string& mine) {
  int n = Context::current().world_size();
  if (n == 1) return {mine};
  auto& world = whole_world();
  std::vector<uint64_t> sizes(static_cast<size_t>(n));
  uint64_t size = mine.size();
  world.all_gather_bytes({op}, &size, sizeof size, sizes.data());
  std::vector<std::string> texts(sizes.size());
  uint64_t largest = *std::max_element(sizes.begin(), sizes.end());
  if (largest == 0) return texts;
  std::string padded = mine, all(largest * sizes.size(), '\0');
  padded.resize(largest);
  world.all_gather_bytes({op}, padded.data(), largest, all.data());
  for (size_t r = 0; r < texts.size(); ++r) texts[r] = all.substr(r * largest, sizes[r]);
  return texts;
}

std::string share_from(const char* op, int root, const std::string& mine) {
  if (Context::current().world_size() == 1) return mine;
  auto& world = whole_world();
  auto size = static_cast<int64_t>(mine.size());
  world.broadcast(&size, 1, int64, root);
  std::string text = mine;
  text.resize(static_cast<size_t>(size));
  if (size > 0) world.broadcast(text.data(), size, uint8, root);
  return text;
}

void together(const char* op, const std::function<void()>& step) {
  if (Context::current().world_size() == 1) return step();
  std::string mine;
  ErrorKind kind = ErrorKind::kRuntime;
  try {
    step();
  } catch (const Error& e) {
    mine = e.what();
    kind = e.kind();
  } catch (const std::exception& e) {
    mine = e.what();
  }
  std::string status = mine.empty() ? "" : std::string(1, static_cast<char>(kind)) + mine;
  auto all = share(op, status);
  for (size_t r = 0; r < all.size(); ++r)
    if (!all[r].empty()) fail(static_cast<ErrorKind>(all[r][0]), "{}: rank {}: {}", op, r, all[r].substr(1));
}

}  // namespace holon::checkpoint
