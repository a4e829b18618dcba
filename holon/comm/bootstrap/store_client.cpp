#include <algorithm>
#include <chrono>
#include <functional>
#include <thread>

#include "holon/base/index.h"
#include "holon/comm/bootstrap/connection.h"
#include "holon/comm/bootstrap/handshake.h"
#include "holon/comm/bootstrap/inherited.h"
#include "holon/comm/bootstrap/liveness.h"
#include "holon/comm/bootstrap/store.h"

namespace holon::comm {

namespace {

using Clock = std::chrono::steady_clock;

// One address gets this long to answer; then the name is looked up again, as it may have moved.
constexpr double kAttemptSeconds = 5;

}  // namespace

struct StoreClient::Reply {
  StoreStatus status;
  std::vector<std::string> fields;
};

StoreClient::StoreClient(const std::string& host, int port, const std::string& token, double timeout_s)
    : where_(place_text(host, port)) {
  using State = Handshake::State;
  const auto until = after(timeout_s);
  auto pause = std::chrono::microseconds(500);
  for (std::string why;;) {
    const auto addresses = resolve(host, port, &why);
    if (addresses.empty()) why = "the name has no network address: " + why;
    for (const Address& address : addresses) {
      Fd fd = connect_once(address, std::min(until, after(kAttemptSeconds)));
      if (!fd) {
        why = strerror(errno);
        continue;
      }
      switch (greet(fd.get(), token, kStorePurpose, 0, std::min(until, after(kAnswerSeconds)))) {
        case State::kDone:
          fd_ = fd.release();
          close_in_children(fd_);
          keep_alive(fd_, heartbeat_limit_s());
          return;
        case State::kRefused:
          fail_runtime("the store at {} refused this rank: its token is different. Another program may use this port; "
                       "choose another MASTER_PORT, or set the same HOLON_STORE_TOKEN on all ranks.",
                       where_);
        case State::kStranger:
          fail_runtime("what listens at {} is not a store of Holon. Choose another MASTER_PORT.", where_);
        // A store that strangers crowd may have closed the connection to make room.
        case State::kGoesOn: why = "it closed the connection without an answer";
      }
    }
    if (Clock::now() + pause > until)
      fail_runtime(
          "no store answers at {} ({}) within {:.3g} s. Rank 0 or the launcher serves it: check that rank 0 has "
          "started and that MASTER_ADDR and MASTER_PORT are the same everywhere; HOLON_RENDEZVOUS_TIMEOUT_S "
          "raises the limit.",
          where_, why, timeout_s);
    look_at_host_language();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(50'000));
  }
}

StoreClient::~StoreClient() {
  if (fd_ >= 0) ::close(fd_);
}

StoreClient::Reply StoreClient::call(const std::string& body, double timeout_s) {
  if (mark_.inherited())
    fail_runtime("process {} was forked from one that is connected to the store at {}; only that process may use it.",
                 getpid(), where_);
  HOLON_CHECK(body.size() <= kStoreMaxFrame, "a request of {} bytes to the store", body.size());
  std::lock_guard lock(mutex_);
  const auto until = after(timeout_s);
  std::string frame;
  put_u32(frame, static_cast<uint32_t>(body.size()));
  frame += body;
  char head[4];
  std::string answer;
  Io io = broken_ ? Io::kLate : write_all(fd_, frame.data(), frame.size(), until);
  // What an ending server has said may be there though nothing can be sent any more.
  if (io != Io::kLate) io = read_all(fd_, head, sizeof head, until);
  if (io == Io::kDone) {
    uint32_t size = get_u32(head);
    // A complete gathering is as long as all its values.
    if (size == 0 || size > (64u << 20)) fail_runtime("the store at {} sent an answer of {} bytes.", where_, size);
    answer.resize(size);
    io = read_all(fd_, answer.data(), size, until);
  }
  broken_ |= io != Io::kDone;
  if (io == Io::kLate)
    fail_runtime("the store at {} does not answer: rank 0 or the launcher, which serves it, is stopped.", where_);
  if (io == Io::kClosed)
    fail_runtime("the store at {} closed the connection: rank 0 or the launcher, which serves it, has ended. Read rank "
                 "0's output first.",
                 where_);
  Reply reply{static_cast<StoreStatus>(answer[0]), {}};
  const auto op = static_cast<StoreOp>(body[0]);
  if (reply.status == StoreStatus::kTimeout && op != StoreOp::kGet && op != StoreOp::kGather) {
    broken_ = true;
    fail_runtime("the store at {} has ended: rank 0 or the launcher, which served it, has finished.", where_);
  }
  for (size_t at = 1; at + 4 <= answer.size();) {
    size_t size = std::min<size_t>(get_u32(answer.data() + at), answer.size() - at - 4);
    reply.fields.push_back(answer.substr(at + 4, size));
    at += 4 + size;
  }
  if (reply.status == StoreStatus::kError)
    fail_runtime("the store at {} refused a request: {}.", where_, reply.fields.empty() ? "" : reply.fields[0]);
  return reply;
}

namespace {
std::string ms_text(double timeout_s) {
  return std::to_string(static_cast<int64_t>(std::clamp(timeout_s, 0.0, 1e8) * 1000));
}
}  // namespace

void StoreClient::set(const std::string& key, const std::string& value, double answer_s) {
  std::string f[] = {key, value};
  call(store_body(static_cast<uint8_t>(StoreOp::kSet), f), answer_s);
}

std::string StoreClient::get(const std::string& key, double timeout_s) {
  const auto until = after(timeout_s);
  do {
    const double left_s = std::chrono::duration<double>(until - Clock::now()).count();
    if (auto value = find(key, std::max(left_s, 0.0))) return *value;
  } while (Clock::now() < until);
  fail_runtime("no rank has set \"{}\" in the store at {} within {:g} s.", key, where_, timeout_s);
}

std::string StoreClient::get(const std::string& key, double timeout_s, const std::function<std::string()>& trouble) {
  constexpr double kSliceSeconds = 0.1;
  for (const auto until = after(timeout_s);;) {
    const double left_s = std::chrono::duration<double>(until - Clock::now()).count();
    if (auto value = find(key, std::clamp(left_s, 0.0, kSliceSeconds))) return *value;
    if (const std::string why = trouble(); !why.empty()) fail_runtime("{}", why);
    if (left_s <= 0) fail_runtime("no rank has set \"{}\" in the store at {} within {:g} s.", key, where_, timeout_s);
  }
}

std::optional<std::string> StoreClient::find(const std::string& key, double timeout_s) {
  std::string f[] = {key, ms_text(timeout_s)};
  Reply reply = call(store_body(static_cast<uint8_t>(StoreOp::kGet), f), timeout_s + kAnswerSeconds);
  if (reply.status != StoreStatus::kOk || reply.fields.size() != 1) return std::nullopt;
  return std::move(reply.fields[0]);
}

int64_t StoreClient::add(const std::string& key, int64_t amount, double answer_s) {
  std::string f[] = {key, std::to_string(amount)};
  Reply reply = call(store_body(static_cast<uint8_t>(StoreOp::kAdd), f), answer_s);
  return reply.fields.empty() ? 0 : std::stoll(reply.fields[0]);
}

void StoreClient::will(const std::string& key, const std::string& value, double answer_s) {
  std::string f[] = {key, value};
  call(store_body(static_cast<uint8_t>(StoreOp::kWill), f), answer_s);
}

void StoreClient::leave(const std::string& key, int index, const std::string& reason, double answer_s) {
  std::string f[] = {key, std::to_string(index), reason};
  call(store_body(static_cast<uint8_t>(StoreOp::kLeave), f), answer_s);
}

StoreClient::Gathered StoreClient::gather(const std::string& key, int index, int count, const std::string& value,
                                          double timeout_s) {
  std::string f[] = {key, std::to_string(index), std::to_string(count), value, ms_text(timeout_s)};
  Reply reply = call(store_body(static_cast<uint8_t>(StoreOp::kGather), f), timeout_s + kAnswerSeconds);
  Gathered result{Gathered::Outcome::kComplete, {}, {}, {}};
  switch (reply.status) {
    case StoreStatus::kTimeout:
      result.outcome = Gathered::Outcome::kTimeout;
      for (auto& s : reply.fields) result.missing.push_back(std::stoi(s));
      break;
    case StoreStatus::kTaken:
      result.outcome = Gathered::Outcome::kTaken;
      result.values = std::move(reply.fields);
      break;
    case StoreStatus::kOtherCount:
      result.outcome = Gathered::Outcome::kOtherCount;
      result.counts = std::move(reply.fields);
      break;
    case StoreStatus::kLeft:
      result.outcome = Gathered::Outcome::kLeft;
      result.left = reply.fields.empty() ? -1 : std::stoi(reply.fields[0]);
      result.values.assign(reply.fields.begin() + !reply.fields.empty(), reply.fields.end());
      break;
    default:
      if (static_cast<int>(reply.fields.size()) != count)
        fail_runtime("the store at {} sent {} values of {}.", where_, reply.fields.size(), count);
      result.values = std::move(reply.fields);
  }
  return result;
}

void StoreClient::barrier(const std::string& key, int index, int count, double timeout_s) {
  Gathered g = gather(key, index, count, "", timeout_s);
  if (g.outcome != Gathered::Outcome::kComplete)
    fail_runtime("the barrier \"{}\" at the store {} was not reached by all {} ranks within {:g} s.", key, where_,
                 count, timeout_s);
}

}  // namespace holon::comm
