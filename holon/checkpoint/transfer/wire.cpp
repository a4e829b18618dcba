#include "holon/checkpoint/transfer/wire.h"

#include <algorithm>
#include <string_view>

#include "holon/base/index.h"

namespace holon::checkpoint {

namespace {

constexpr size_t kHead = 1 + 8;
constexpr size_t kAtOnce = size_t{1} << 20;

void put_u64(std::string& to, uint64_t v) {
  comm::put_u32(to, static_cast<uint32_t>(v));
  comm::put_u32(to, static_cast<uint32_t>(v >> 32));
}

}  // namespace

uint64_t get_u64(const char* from) {
  return comm::get_u32(from) | static_cast<uint64_t>(comm::get_u32(from + 4)) << 32;
}

comm::Io read_message(int fd, Message* to, uint64_t most_bytes, double limit_s, const comm::WhileWaiting& waiting) {
  char head[kHead];
  comm::Io io = comm::read_all(fd, head, sizeof head, comm::after(limit_s), waiting);
  if (io != comm::Io::kDone) return io;
  const uint64_t size = get_u64(head + 1);
  if (std::string_view("mbdf").find(head[0]) == std::string_view::npos || size > most_bytes) return comm::Io::kClosed;
  to->kind = static_cast<MessageKind>(head[0]);
  to->text.clear();
  while (to->text.size() < size && io == comm::Io::kDone) {
    const size_t have = to->text.size(), n = std::min(to_size(size) - have, kAtOnce);
    to->text.resize(have + n);
    io = comm::read_all(fd, to->text.data() + have, n, comm::after(limit_s), waiting);
  }
  return io;
}

comm::Io write_message(int fd, const Message& message, double limit_s, const comm::WhileWaiting& waiting) {
  std::string head(1, static_cast<char>(message.kind));
  put_u64(head, message.text.size());
  comm::Io io = comm::write_all(fd, head.data(), head.size(), comm::after(limit_s), waiting);
  for (size_t at = 0; at < message.text.size() && io == comm::Io::kDone; at += kAtOnce)
    io = comm::write_all(fd, message.text.data() + at, std::min(kAtOnce, message.text.size() - at),
                         comm::after(limit_s), waiting);
  return io;
}

std::string request_text(const Request& request) {
  std::string text;
  comm::put_u32(text, static_cast<uint32_t>(request.tensor.size()));
  text += static_cast<char>(request.region.shape.size());
  text += request.tensor;
  for (int a = 0; a < request.region.shape.size(); ++a) {
    put_u64(text, static_cast<uint64_t>(request.region.offset[a]));
    put_u64(text, static_cast<uint64_t>(request.region.shape[a]));
  }
  return text;
}

size_t request_rest(const char* head) {
  const size_t name = comm::get_u32(head), axes = static_cast<uint8_t>(head[4]);
  return name == 0 || name > kMostName || axes > kMaxAxes ? 0 : name + 16 * axes;
}

Request parse_request(const char* head, const char* rest) {
  Request out{{rest, comm::get_u32(head)}, {}};
  const char* at = rest + out.tensor.size();
  for (int axes = static_cast<uint8_t>(head[4]); axes > 0; --axes, at += 16) {
    out.region.offset.push_back(static_cast<int64_t>(get_u64(at)));
    out.region.shape.push_back(static_cast<int64_t>(get_u64(at + 8)));
  }
  return out;
}

std::string answer_head(bool failed, uint64_t bytes) {
  std::string head(1, static_cast<char>(failed));
  put_u64(head, bytes);
  return head;
}

}  // namespace holon::checkpoint
