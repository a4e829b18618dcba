// Other programs at a transfer's ports: some that know the token, and some that do not.
#include <gtest/gtest.h>

#include <poll.h>

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "checkpoint/two_jobs.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/checkpoint/core/pieces.h"
#include "holon/checkpoint/formats/source.h"
#include "holon/checkpoint/transfer.h"
#include "holon/checkpoint/transfer/address.h"
#include "holon/checkpoint/transfer/manifest.h"
#include "holon/checkpoint/transfer/part_server.h"
#include "holon/checkpoint/transfer/transfer_source.h"
#include "holon/checkpoint/transfer/wire.h"
#include "holon/comm/bootstrap/authenticated_listener.h"
#include "holon/comm/bootstrap/connection.h"
#include "holon/comm/bootstrap/tcp.h"
#include "holon/ops/create.h"
#include "holon/ops/shape.h"
#include "tests/cpp/checkpoint/same_bits.h"
#include "tests/cpp/error_of.h"

namespace holon::checkpoint {
namespace {

using comm::Fd;
using comm::Io;

constexpr double kLong = 60;

comm::Address address_of(const std::string& text) {
  const HostPort place = parse_address("test", text);
  std::string why;
  return comm::resolve(place.host, place.port, &why).at(0);
}

// Waits until somebody listens there.
Fd connect_to(const std::string& address) {
  for (;;)
    if (Fd fd = comm::connect_once(address_of(address), comm::after(kLong))) return fd;
}

Fd listen_here() {
  std::string why;
  return comm::listen_tcp(comm::resolve("127.0.0.1", 0, &why).at(0));
}

// A connection whose two sides know each other, at which this side listens.
Fd accept_from(Fd listener, const std::string& token, const std::string& purpose) {
  std::vector<Fd> sockets;
  sockets.push_back(std::move(listener));
  comm::AuthenticatedListener known(std::move(sockets), token, purpose);
  for (;;) {
    std::vector<pollfd> fds;
    known.add_to(fds);
    ::poll(fds.data(), fds.size(), 1000);
    if (auto found = known.take(); !found.empty()) return std::move(found[0].fd);
  }
}

// What is sent until the other side closes the connection.
std::string all_of(const Fd& fd) {
  std::string text;
  char c;
  while (comm::read_all(fd.get(), &c, 1, comm::after(kLong)) == Io::kDone) text += c;
  return text;
}

Manifest small_manifest(const std::vector<std::string>& addresses) {
  return {tree_of_names({{"w", float32, {4, 3}, 0, 0}}), addresses, "s", {{{"w", float32, {4, 3}, 0, 0}, {}}}};
}

TEST(Manifest, ComesBack) {
  Manifest m = small_manifest({"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"});
  m.tensors.push_back({{"g", bfloat16, {5, 4}, 0, 0}, SavedLayout{"cpu", {3}, {2, 0, 1}, {sbp::split(1)}}});
  const Manifest back = parse_manifest(manifest_text(m), "the job");
  EXPECT_EQ(back.tree, m.tree);
  EXPECT_EQ(back.addresses, m.addresses);
  ASSERT_EQ(back.tensors.size(), 2u);
  EXPECT_EQ(back.tensors[1].info.dtype, bfloat16);
  const auto held = held_regions(back.tensors[1]);
  ASSERT_EQ(held.size(), 3u);
  EXPECT_EQ(held[0].region, (Region{{0, 0}, {5, 2}}));
  EXPECT_EQ(held[0].ranks, (std::vector<int>{2}));
  EXPECT_EQ(held_regions(back.tensors[0])[0].ranks, (std::vector<int>{0}));
}

TEST(Manifest, NonsenseIsAnError) {
  auto replaced = [](std::string from, const std::string& to) {
    Manifest m = small_manifest({"127.0.0.1:1", "127.0.0.1:2"});
    m.tensors[0].layout = SavedLayout{"cpu", {2}, {0, 1}, {sbp::split(0)}};
    std::string text = manifest_text(m);
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from << " in " << text;
    return text.replace(at, from.size(), to);
  };
  const std::pair<std::string, std::string> cases[] = {
      {"", "what it sends is not JSON"},
      {"{", "what it sends is not JSON"},
      {"[]", "there is no 'format'"},
      {"{\"format\": \"holon-folder\"}", "it does not say what it exports"},
      {std::string(100000, '['), "nested more than 16 levels"},
      {replaced("\"version\":1", "\"version\":2"), "it exports by version 2; this Holon receives version 1"},
      {replaced("\"version\":1", "\"version\":[]"), "it exports by version []"},
      {replaced("[\"127.0.0.1:1\",\"127.0.0.1:2\"]", "[]"), "it has no ranks"},
      {replaced("[\"127.0.0.1:1\",\"127.0.0.1:2\"]", "[1]"), "an address is not text"},
      {replaced("[\"127.0.0.1:1\",\"127.0.0.1:2\"]", "[\"127.0.0.1:1\"]"), "is larger than its world of 1 ranks"},
      {replaced("[4,3]", "[4,-3]"), "'shape' is not a list of sizes"},
      {replaced("[4,3]", "[4,3,1,1,1,1,1,1,1]"), "'shape' has 9 axes"},
      {replaced("[4,3]", "[4611686018427387904,4611686018427387904]"), "is larger than any memory"},
      {replaced("[4,3]", "[]"), "splits axis 0, and its shape is []"},
      {replaced("\"F32\"", "\"F33\""), "unknown dtype"},
      {replaced("\"ranks\":[0,1]", "\"ranks\":[0,0]"), "has rank 0 twice, or outside the world"},
      {replaced("\"ranks\":[0,1]", "\"ranks\":[0,2]"), "has rank 2 twice, or outside the world"},
      {replaced("\"ranks\":[0,1]", "\"ranks\":[0]"), "has 1 ranks on 2 places"},
      {replaced("\"hierarchy\":[2]", "\"hierarchy\":[0]"), "is larger than its world"},
      {replaced("\"hierarchy\":[2]", "\"hierarchy\":[9223372036854775807]"), "is larger than its world"},
      {replaced("\"hierarchy\":[2]", "\"hierarchy\":[2,1]"), "one sbp for each axis"},
      {replaced("\"sbp\":[0]", "\"sbp\":[\"P\"]"), "an sbp is neither"},
      {replaced("\"sbp\":[0]", "\"sbp\":[1000]"), "an sbp is neither"},
      {replaced("\"tensors\":[", "\"tensors\":[{\"name\":\"w\",\"dtype\":\"F32\",\"shape\":[]},"), "two tensors have"},
      {replaced("\"tensors\":[", "\"tensors\":[7,"), "there is no 'name'"},
  };
  for (auto& [text, why] : cases) {
    const std::string error = error_of([&, &text = text] { parse_manifest(text, "the job"); });
    EXPECT_TRUE(error.starts_with("the job: ")) << error;
    EXPECT_NE(error.find(why), std::string::npos) << why << ": " << error;
  }
}

// What receive() says of a job that speaks by hand once it is connected.
std::string error_of_receive(const std::function<void(const Fd&)>& speak, const LoadOptions& options = {}) {
  const std::string address = free_address();
  std::thread other([&] {
    Fd fd = connect_to(address);
    EXPECT_EQ(comm::greet(fd.get(), "secret", kControlPurpose, 0, comm::after(kLong)), comm::Handshake::State::kDone);
    Message taken;
    EXPECT_EQ(read_message(fd.get(), &taken, kMostText, kLong, [] {}), Io::kDone);
    speak(fd);
  });
  std::string all;
  comm::run_ranks(2, [&](int rank) {
    const std::string error = error_of([&] { receive(address, options, {.token = "secret"}); });
    if (rank == 0) all = error;
  });
  other.join();
  return all;
}

TEST(TransferFaults, WhoExportsByHand) {
  auto raw = [](const std::string& bytes) {
    return [bytes](const Fd& fd) { comm::write_all(fd.get(), bytes.data(), bytes.size(), comm::after(kLong)); };
  };
  auto message = [](MessageKind kind, const std::string& text) {
    return [kind, text](const Fd& fd) { write_message(fd.get(), {kind, text}, kLong, [] {}); };
  };
  EXPECT_NE(error_of_receive(raw("")).find("ended before it had said what"), std::string::npos);
  EXPECT_NE(error_of_receive(raw("noise, noise, noise")).find("ended before it had said what"), std::string::npos);
  // Petabytes are announced, which nobody allocates; half of a manifest; a text of another kind.
  EXPECT_NE(error_of_receive(raw(std::string("m\0\0\0\0\0\0\x10\0", 9))).find("ended before"), std::string::npos);
  EXPECT_NE(error_of_receive(raw(std::string("m\0\0\0\x3f\0\0\0\0{", 10))).find("ended before"), std::string::npos);
  EXPECT_NE(error_of_receive(message(MessageKind::kDone, "")).find("does not say what"), std::string::npos);
  EXPECT_NE(error_of_receive(message(MessageKind::kFailed, "no memory")).find("failed: no memory"), std::string::npos);
  EXPECT_NE(error_of_receive(message(MessageKind::kManifest, "{}")).find("there is no 'format'"), std::string::npos);
  Manifest m = small_manifest({"127.0.0.1:1"});
  m.tree = std::string(100000, '[');
  EXPECT_NE(error_of_receive(message(MessageKind::kManifest, manifest_text(m))).find("nested more than"),
            std::string::npos);
  // Nothing listens where its rank should be; or the address is none.
  EXPECT_NE(error_of_receive(message(MessageKind::kManifest, manifest_text(small_manifest({free_address()}))))
                .find("cannot be reached: Connection refused"),
            std::string::npos);
  EXPECT_NE(error_of_receive(message(MessageKind::kManifest, manifest_text(small_manifest({"::::"}))))
                .find("the address is \"::::\""),
            std::string::npos);
  // More memory than there is.
  m = small_manifest({"127.0.0.1:1"});
  m.tensors[0].info.shape = {int64_t{1} << 50};
  EXPECT_NE(error_of_receive(message(MessageKind::kManifest, manifest_text(m))), "no error");
}

// What read() says of a rank that answers by hand.
std::string error_of_read(const std::function<void(const Fd&)>& answer, DType dtype = float32, double limit_s = kLong) {
  Fd listener = listen_here();
  Manifest m = small_manifest({comm::local_address(listener.get()).str()});
  m.tensors[0].info.dtype = dtype;
  auto source = transfer_source(m, "the other job", "", limit_s);
  std::thread other([&, listener = std::move(listener)]() mutable {
    Fd fd = accept_from(std::move(listener), "", kPartsPurpose + m.session);
    answer(fd);
  });
  const std::string error = error_of([&] { source->read("w", {0, 0}, {4, 3}); });
  source.reset();  // closes the connection
  other.join();
  return error;
}

TEST(TransferFaults, WhoServesByHand) {
  auto raw = [](const std::string& bytes) {
    return [bytes](const Fd& fd) { comm::write_all(fd.get(), bytes.data(), bytes.size(), comm::after(kLong)); };
  };
  EXPECT_NE(error_of_read(raw("")).find("closed the connection before it had sent all of 'w'"), std::string::npos);
  EXPECT_NE(error_of_read(raw(answer_head(false, 48) + "half")).find("closed the connection before"),
            std::string::npos);
  EXPECT_NE(error_of_read(raw(answer_head(false, uint64_t{1} << 60))).find("answers with 1152921504606846976 bytes"),
            std::string::npos);
  EXPECT_NE(error_of_read(raw(answer_head(true, uint64_t{1} << 60))).find("answers with"), std::string::npos);
  EXPECT_NE(error_of_read(raw("\7" + answer_head(false, 48))).find("answers with"), std::string::npos);
  EXPECT_NE(error_of_read(raw(answer_head(true, 4) + "why?")).find(": why?."), std::string::npos);
  EXPECT_NE(error_of_read(raw(answer_head(false, 12) + std::string(12, '\2')), boolean).find("that is not a bool"),
            std::string::npos);
  // It stays, and says nothing.
  std::string silent = error_of_read([](const Fd& fd) { all_of(fd); }, float32, 1);
  EXPECT_NE(silent.find("has sent nothing of 'w' for 1 s"), std::string::npos) << silent;
}

TEST(TransferFaults, PartsAreServedAfterTheHandshakeOnly) {
  const Tensor w = arange(12).reshape({4, 3});
  Fd listener = listen_here();
  const std::string address = comm::local_address(listener.get()).str();
  PartServer server(std::move(listener), "secret", "session", {{"w", {whole({4, 3}), w.array()}}});
  // A request, without any handshake; with another token; for another session.
  const std::string request = request_text({"w", whole({4, 3})});
  Fd stranger = connect_to(address);
  comm::write_all(stranger.get(), request.data(), request.size(), comm::after(kLong));
  EXPECT_EQ(all_of(stranger), "");
  for (auto& [token, session] : {std::pair("secret", "another"), std::pair("wrong", "session"), std::pair("", "")}) {
    Fd fd = connect_to(address);
    EXPECT_EQ(comm::greet(fd.get(), token, std::string(kPartsPurpose) + session, 0, comm::after(kLong)),
              comm::Handshake::State::kRefused);
    comm::write_all(fd.get(), request.data(), request.size(), comm::after(kLong));
    EXPECT_EQ(all_of(fd), "");
  }
  auto known = [&] {
    Fd fd = connect_to(address);
    EXPECT_EQ(comm::greet(fd.get(), "secret", std::string(kPartsPurpose) + "session", 0, comm::after(kLong)),
              comm::Handshake::State::kDone);
    return fd;
  };
  // Who knows the token gets what is there.
  const Request bad[] = {{"x", whole({4, 3})},
                         {"w", {{0, 0}, {4, 4}}},
                         {"w", {{-1, 0}, {4, 3}}},
                         {"w", {{INT64_MAX, 0}, {2, 3}}},
                         {"w", {{0, 0}, {INT64_MAX, 3}}},
                         {"w", {{0, 0}, {0, 3}}},
                         {"w", {{0}, {4}}}};
  Fd fd = known();
  for (auto& request : bad) {
    const std::string text = request_text(request);
    comm::write_all(fd.get(), text.data(), text.size(), comm::after(kLong));
    char head[kAnswerHead];
    ASSERT_EQ(comm::read_all(fd.get(), head, sizeof head, comm::after(kLong)), Io::kDone);
    EXPECT_EQ(head[0], 1);
    std::string why(get_u64(head + 1), '\0');
    ASSERT_EQ(comm::read_all(fd.get(), why.data(), why.size(), comm::after(kLong)), Io::kDone);
    EXPECT_NE(why.find("this rank does not have the region"), std::string::npos);
  }
  // The same connection goes on; one with noise is closed.
  const std::string text = request_text({"w", {{1, 0}, {2, 2}}});
  comm::write_all(fd.get(), text.data(), text.size(), comm::after(kLong));
  char head[kAnswerHead];
  int64_t values[4];
  ASSERT_EQ(comm::read_all(fd.get(), head, sizeof head, comm::after(kLong)), Io::kDone);
  EXPECT_EQ(get_u64(head + 1), sizeof values);
  ASSERT_EQ(comm::read_all(fd.get(), values, sizeof values, comm::after(kLong)), Io::kDone);
  EXPECT_EQ(values[0], 3);
  EXPECT_EQ(values[3], 7);
  for (const std::string& noise : {std::string(100, '\xff'), std::string(100, '\0')}) {
    Fd other = known();
    comm::write_all(other.get(), noise.data(), noise.size(), comm::after(kLong));
    EXPECT_EQ(all_of(other), "");
  }
}

TEST(TransferFaults, WhatIsWrongFromTheStart) {
  for (auto& address : {"", "host", "host:", ":1", "host:0", "host:65536", "host:1x", "fd00::1:29600", "[fd00::1]"}) {
    EXPECT_NE(value_error_of([&] { export_to({}, address); }).find("export: the address is "), std::string::npos);
    EXPECT_NE(value_error_of([&] { receive(address); }).find("receive: the address is "), std::string::npos);
  }
  for (auto& address : {"192.0.2.1:29600", "[2001:db8::1]:29600"}) {
    EXPECT_NE(value_error_of([&] { export_to({}, address, {.token = ""}); }).find("export: "), std::string::npos);
    EXPECT_NE(value_error_of([&] { receive(address, {}, {.token = ""}); }).find("Set HOLON_TRANSFER_TOKEN"),
              std::string::npos);
  }
  const std::string address = free_address();
  EXPECT_NE(value_error_of([&] { receive(address, {.global_src_rank = 0}); }).find("global_src_rank"),
            std::string::npos);
  EXPECT_NE(value_error_of([&] { receive(address, {}, {.timeout_s = -1}); }).find("timeout is -1"), std::string::npos);
  EXPECT_NE(value_error_of([&] {
              receive(address, {.device = Device(), .like = {{"w", ones({2})}}});
            }).find("the state dict says where each tensor goes"),
            std::string::npos);
  EXPECT_NE(error_of([&] { receive("192.0.2.1:29600", {}, {.token = "secret"}); }).find("cannot listen at"),
            std::string::npos);
}

// Of two jobs that export to one address, the second is taken by the next receive().
TEST(TransferFaults, TwoJobsAtOnce) {
  const std::string address = free_address();
  std::vector<std::string> errors(2);
  std::vector<std::thread> jobs;
  for (int i = 0; i < 2; ++i)
    jobs.emplace_back([&, i] { at_index(errors, i) = error_of([&] { export_to({{"job", i}}, address); }); });
  int64_t sum = 0;
  for (int i = 0; i < 2; ++i) sum += 1 + receive(address)["job"].integer();
  for (auto& job : jobs) job.join();
  EXPECT_EQ(sum, 3);
  EXPECT_EQ(errors[0] + errors[1], "no errorno error");
}

TEST(TransferFaults, ConnectionsWithAnotherTokenAreReported) {
  const std::string address = free_address();
  std::thread other([&] {
    auto greeted = comm::Handshake::State::kGoesOn;
    while (greeted != comm::Handshake::State::kRefused) {
      Fd fd = connect_to(address);
      greeted = comm::greet(fd.get(), "wrong", kControlPurpose, 0, comm::after(kLong));
    }
  });
  // It may come after the time, and then to the next one.
  std::string error;
  while (error.find("(1 connections had another token") == std::string::npos) {
    error = error_of([&] { receive(address, {}, {.timeout_s = 1, .token = "right"}); });
    EXPECT_NE(error.find("receive: no job has exported to"), std::string::npos) << error;
  }
  other.join();
}

}  // namespace
}  // namespace holon::checkpoint
