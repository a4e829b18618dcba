// What two jobs send each other while one exports a value and the other receives it. Numbers are little-endian.
//
// On the connection of both rank 0 (control), each message is a kind (1 byte), the size of its text (8) and the text:
//   receives -> exports   kBusy: of several jobs that have come, it is this one
//   exports -> receives   kManifest
//   receives -> exports   kBusy, every second; at the end kDone
//   either                kFailed with the reason
//
// On a connection of a rank that receives to one that exports (parts), where tensors are in row-major order:
//   receives -> exports   request: the length of a tensor's name (4), its number of axes (1), the name, and for each
//                         axis offset and size (8 each)
//   exports -> receives   answer: 0 or 1 (1), a size (8), and so many bytes: of the region, or of text that says why
//   not
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "holon/comm/bootstrap/connection.h"
#include "holon/global/slice.h"

namespace holon::checkpoint {

inline constexpr const char* kControlPurpose = "holon transfer 1";
// Behind it the session of the manifest: who has not seen that is a stranger.
inline constexpr const char* kPartsPurpose = "holon transfer parts 1 ";

enum class MessageKind : char { kManifest = 'm', kBusy = 'b', kDone = 'd', kFailed = 'f' };

struct Message {
  MessageKind kind = MessageKind::kBusy;
  std::string text;
};

// Each byte that arrives within limit_s of the last one is early enough. Text of more than most_bytes counts as
// kClosed, as does a message of no such kind; no more memory is taken than what has arrived.
comm::Io read_message(int fd, Message* to, uint64_t most_bytes, double limit_s, const comm::WhileWaiting& waiting);
comm::Io write_message(int fd, const Message& message, double limit_s, const comm::WhileWaiting& waiting);

inline constexpr uint64_t kMostManifest = uint64_t{1} << 30;
inline constexpr uint64_t kMostText = 1 << 16;
inline constexpr size_t kMostName = 1 << 16;

struct Request {
  std::string tensor;
  Region region;
};
inline constexpr size_t kRequestHead = 4 + 1;
inline constexpr size_t kAnswerHead = 1 + 8;

std::string request_text(const Request& request);
// How many bytes follow the head. 0: nobody of this library has sent that.
size_t request_rest(const char* head);
Request parse_request(const char* head, const char* rest);

std::string answer_head(bool failed, uint64_t bytes);
uint64_t get_u64(const char* from);

// Parts of larger arrays that are not in one piece are sent and received in pieces of this size.
inline constexpr int64_t kPieceBytes = 4 << 20;

}  // namespace holon::checkpoint
