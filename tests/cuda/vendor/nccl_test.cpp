// What NCCL is asked for. Ids and the words of errors are the library's own; calls that need devices are taken down
// here.
#if __has_include(<nccl.h>)
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/comm/device/nccl/vendor_nccl.h"

using namespace holon;
namespace nccl = holon::comm::nccl;

// By value in a call, and in 128 bytes on the way there.
static_assert(sizeof(ncclUniqueId) == NCCL_UNIQUE_ID_BYTES && alignof(ncclUniqueId) == 1);
static_assert(std::is_same_v<decltype(&ncclCommInitRank), ncclResult_t (*)(ncclComm_t*, int, ncclUniqueId, int)>);

namespace {

std::vector<std::string> calls;
ncclResult_t answer = ncclSuccess;
bool devices = false;  // whether groups can be made here

std::string at(const void* p) { return fmt::format("{}", reinterpret_cast<uintptr_t>(p)); }
template <class... A>
ncclResult_t note(const char* name, const A&... a) {
  std::string line = name;
  ((line += fmt::format(" {}", a)), ...);
  calls.push_back(line);
  return answer;
}

ncclResult_t init(ncclComm_t* comm, int n, ncclUniqueId id, int rank) {
  *comm = reinterpret_cast<ncclComm_t>(uintptr_t{77});
  return note("init", n, static_cast<int>(id.internal[0]), static_cast<int>(id.internal[127]), rank);
}
ncclResult_t all_reduce(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                        cudaStream_t s) {
  return note("all_reduce", at(in), at(out), count, static_cast<int>(type), static_cast<int>(op), at(comm), at(s));
}
ncclResult_t reduce_scatter(const void* in, void* out, size_t count, ncclDataType_t type, ncclRedOp_t op,
                            ncclComm_t comm, cudaStream_t s) {
  return note("reduce_scatter", at(in), at(out), count, static_cast<int>(type), static_cast<int>(op), at(comm), at(s));
}
ncclResult_t all_gather(const void* in, void* out, size_t count, ncclDataType_t type, ncclComm_t comm, cudaStream_t s) {
  return note("all_gather", at(in), at(out), count, static_cast<int>(type), at(comm), at(s));
}
ncclResult_t broadcast(const void* in, void* out, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                       cudaStream_t s) {
  return note("broadcast", at(in), at(out), count, static_cast<int>(type), root, at(comm), at(s));
}
ncclResult_t send(const void* in, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s) {
  return note("send", at(in), count, static_cast<int>(type), peer, at(comm), at(s));
}
ncclResult_t receive(void* out, size_t count, ncclDataType_t type, int peer, ncclComm_t comm, cudaStream_t s) {
  return note("receive", at(out), count, static_cast<int>(type), peer, at(comm), at(s));
}
ncclResult_t group_start() {
  calls.push_back("(");
  return ncclSuccess;
}
ncclResult_t group_end() {
  calls.push_back(")");
  return ncclSuccess;
}
ncclResult_t async_error(ncclComm_t, ncclResult_t* result) {
  *result = answer;
  return ncclSuccess;
}
ncclResult_t stop(ncclComm_t comm) { return note("abort", at(comm)); }
ncclResult_t init_anywhere(ncclComm_t* comm, int n, ncclUniqueId id, int rank);

decltype(&ncclCommInitRank) real_init = nullptr;
ncclResult_t init_anywhere(ncclComm_t* comm, int n, ncclUniqueId id, int rank) {
  return devices ? init(comm, n, id, rank) : real_init(comm, n, id, rank);
}

}  // namespace

// vendor_nccl.cpp is compiled to look here.
extern "C" void* holon_test_nccl_dlsym(void* library, const char* name) noexcept {
  static const std::map<std::string, void*> ours = {
      {"ncclCommInitRank", reinterpret_cast<void*>(&init_anywhere)},
      {"ncclAllReduce", reinterpret_cast<void*>(&all_reduce)},
      {"ncclReduceScatter", reinterpret_cast<void*>(&reduce_scatter)},
      {"ncclAllGather", reinterpret_cast<void*>(&all_gather)},
      {"ncclBroadcast", reinterpret_cast<void*>(&broadcast)},
      {"ncclSend", reinterpret_cast<void*>(&send)},
      {"ncclRecv", reinterpret_cast<void*>(&receive)},
      {"ncclGroupStart", reinterpret_cast<void*>(&group_start)},
      {"ncclGroupEnd", reinterpret_cast<void*>(&group_end)},
      {"ncclCommGetAsyncError", reinterpret_cast<void*>(&async_error)},
      {"ncclCommAbort", reinterpret_cast<void*>(&stop)},
  };
  void* theirs = dlsym(library, name);
  if (std::strcmp(name, "ncclCommInitRank") == 0) real_init = reinterpret_cast<decltype(real_init)>(theirs);
  const auto found = ours.find(name);
  return theirs && found != ours.end() ? found->second : theirs;
}

namespace {

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = nccl::missing(); !why.empty()) GTEST_SKIP() << why;
    calls.clear();
    answer = ncclSuccess;
    devices = true;
  }
  const nccl::Handle group = reinterpret_cast<nccl::Handle>(uintptr_t{77});
  char* const in = reinterpret_cast<char*>(uintptr_t{1000});
  char* const out = reinterpret_cast<char*>(uintptr_t{2000});
  const cudaStream_t stream = reinterpret_cast<cudaStream_t>(uintptr_t{5});
};

// By the library itself, which needs no device for it.
TEST_F(Nccl, IdsAreTheLibrarys) {
  std::byte one[comm::DeviceCommunicatorFactory::kIdBytes] = {}, two[comm::DeviceCommunicatorFactory::kIdBytes] = {};
  nccl::make_id(one);
  nccl::make_id(two);
  EXPECT_NE(std::memcmp(one, two, sizeof one), 0);
}

TEST_F(Nccl, WhatTheLibrarySaysIsRaised) {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess && count > 0) GTEST_SKIP() << "there is a device";
  devices = false;
  std::byte id[comm::DeviceCommunicatorFactory::kIdBytes] = {};
  nccl::make_id(id);
  const int ranks[] = {0};
  try {
    nccl::start(ranks, 0, id);
    FAIL() << "a communicator without a device";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("ncclCommInitRank reports: "), std::string::npos) << e.what();
  }
}

TEST_F(Nccl, IdsGoByValue) {
  std::byte id[comm::DeviceCommunicatorFactory::kIdBytes] = {};
  id[0] = std::byte{11}, id[127] = std::byte{22};
  const int ranks[] = {4, 5, 9};
  EXPECT_EQ(nccl::start(ranks, 2, id), group);
  EXPECT_EQ(calls, std::vector<std::string>{"init 3 11 22 2"});
}

// "ncclInt8 0, ncclUint8 1, ncclInt32 2, ncclInt64 4, ncclFloat16 6, ncclFloat32 7, ncclFloat64 8, ncclBfloat16 9";
// "ncclSum 0, ncclMax 2".
TEST_F(Nccl, TypesAndOperationsAreTheLibrarys) {
  const std::pair<DType, const char*> types[] = {{DType::kBool, "1 2"},     {DType::kUInt8, "1 0"},
                                                 {DType::kInt8, "0 0"},     {DType::kInt32, "2 0"},
                                                 {DType::kInt64, "4 0"},    {DType::kFloat16, "6 0"},
                                                 {DType::kBFloat16, "9 0"}, {DType::kFloat32, "7 0"},
                                                 {DType::kFloat64, "8 0"}};
  for (auto [dtype, text] : types) {
    calls.clear();
    EXPECT_EQ(nccl::all_reduce(group, in, out, 3, dtype, stream), "");
    EXPECT_EQ(nccl::reduce_scatter(group, in, out, 3, dtype, stream), "");
    EXPECT_EQ(calls,
              (std::vector<std::string>{fmt::format("all_reduce 1000 2000 3 {} 77 5", text),
                                        fmt::format("reduce_scatter 1000 2000 3 {} 77 5", text)}));
  }
}

TEST_F(Nccl, BytesAreMovedAsBytes) {
  EXPECT_EQ(nccl::all_gather(group, in, out, 3, DType::kFloat64, stream), "");
  EXPECT_EQ(nccl::broadcast(group, in, 7, 1, stream), "");
  EXPECT_EQ(calls, (std::vector<std::string>{"all_gather 1000 2000 24 1 77 5", "broadcast 1000 1000 7 1 1 77 5"}));
}

TEST_F(Nccl, MessagesAreOneGroup) {
  const comm::DeviceMessage sends[] = {{1, in, 8}, {2, in + 8, 4}}, receives[] = {{2, out, 16}};
  EXPECT_EQ(nccl::exchange(group, sends, receives, stream), "");
  EXPECT_EQ(
      calls,
      (std::vector<std::string>{"(", "send 1000 8 1 1 77 5", "send 1008 4 1 2 77 5", "receive 2000 16 1 2 77 5", ")"}));
}

TEST_F(Nccl, AGroupThatWasBegunIsEnded) {
  const comm::DeviceMessage sends[] = {{1, in, 8}, {2, in + 8, 4}};
  answer = ncclInvalidArgument;
  EXPECT_NE(nccl::exchange(group, sends, {}, stream).find("ncclSend reports: "), std::string::npos);
  EXPECT_EQ(calls, (std::vector<std::string>{"(", "send 1000 8 1 1 77 5", ")"}));
  EXPECT_NE(nccl::trouble(group), "");
}

}  // namespace
#endif
