// Devices of a type that holon/ does not know: loaded, used and refused from C++.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "holon/array/device_backend.h"
#include "holon/array/device_runtime.h"
#include "holon/base/error.h"
#include "holon/comm/run_ranks.h"
#include "holon/dispatch/dispatch.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/softmax.h"
#include "holon/kernels/variants.h"
#include "holon/ops/arithmetic.h"
#include "holon/ops/cast.h"
#include "holon/ops/create.h"
#include "holon/ops/matmul.h"
#include "holon/ops/norm.h"
#include "holon/ops/shape.h"
#include "holon/ops/sort.h"
#include "holon/ops/to_global.h"
#include "holon/ops/values.h"
#include "holon/tensor.h"

namespace holon {
namespace {

std::string library() { return std::getenv("HOLON_DEVICE_LIBRARIES"); }

std::string error_of(auto&& call) {
  try {
    call();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

int64_t runs_on_host(const std::string& kernel) {
  for (auto& [name, count] : kernels::host_runs())
    if (name == kernel) return count;
  return 0;
}

Tensor ramp(const Dims& shape, Device device = {}) {
  return to_device(reshape(arange(0, shape.numel(), 1, {.dtype = float32}), shape), device);
}

TEST(Toy, IsLoadedWhenItsNameIsFirstAskedFor) {
  const Device d = Device::parse("toy:1");
  EXPECT_EQ(d.str(), "toy:1");
  EXPECT_FALSE(d.is_host());
  EXPECT_EQ(Device::parse("plaything:1"), d);
  const auto types = device_types();
  EXPECT_EQ(types[0], "cpu");
  EXPECT_EQ(std::count(types.begin(), types.end(), "toy"), 1);
  EXPECT_EQ(load_device_library(library()), "toy");  // nothing is loaded twice
  EXPECT_EQ(device_types(), types);
}

TEST(Toy, WhatCannotBeADeviceIsRefused) {
  EXPECT_NE(error_of([] { Device::parse("toy:4"); }).find("this host has 4 toy device(s)"), std::string::npos);
  EXPECT_NE(error_of([] { Device::parse("tin"); }).find("Expected one of cpu, cuda, toy device type"),
            std::string::npos);
  EXPECT_NE(error_of([] { load_device_library("/no/such.so"); }).find("there is no file /no/such.so"),
            std::string::npos);
  EXPECT_EQ(error_of([] { check_device_type(parse_device_type("toy")); }), "");
  EXPECT_NE(error_of([] { Placement("tin", {0}); }), "");
}

TEST(Toy, TheHostCannotReadItsMemory) {
  const Tensor x = ramp({4}, Device::parse("toy"));
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_EQ(write(ends[1], x.array().bytes(), 4), -1);
  EXPECT_EQ(errno, EFAULT);
  close(ends[0]);
  close(ends[1]);
  EXPECT_NE(error_of([&] { x.data<float>(); }).find("the host cannot read"), std::string::npos);
  EXPECT_EQ(to_vector<float>(x), (std::vector<float>{0, 1, 2, 3}));
}

// The library and the backend share one table: it is where the kernel is.
TEST(Toy, ItsVariantsAreFoundByTheKernelsThemselves) {
  const DeviceType toy = parse_device_type("toy");
  EXPECT_NE(kernels::KernelVariants<&kernels::softmax>::table[static_cast<size_t>(toy)], nullptr);
  EXPECT_EQ(kernels::KernelVariants<&kernels::softmax>::table[static_cast<size_t>(DeviceType::kCpu)], nullptr);
  EXPECT_EQ(kernels::KernelVariants<&kernels::log_sum_exp>::table[static_cast<size_t>(toy)], nullptr);
  const auto names = kernels::device_kernels(toy);
  EXPECT_EQ(names,
            (std::vector<std::string>{"binary", "binary_scalar", "copy", "fill", "log_softmax", "masked_fill", "matmul",
                                      "reduce", "softmax", "softmax_backward", "ternary", "unary", "where"}));
}

TEST(Toy, AKernelRunsThereOrOnTheHostAndIsCounted) {
  const Device d = Device::parse("toy");
  const Tensor x = ramp({3, 5}), there = to_device(x, d);
  const auto before = kernels::host_runs();
  EXPECT_EQ(to_vector<float>(softmax(there * 0.1, 1)), to_vector<float>(softmax(x * 0.1, 1)));
  EXPECT_EQ(kernels::host_runs(), before);
  const int64_t sorts = runs_on_host("sort");
  const auto sorted = sort(there, 1, true);
  EXPECT_EQ(to_vector<float>(sorted.values), to_vector<float>(sort(x, 1, true).values));
  EXPECT_EQ(sorted.values.device(), d);
  EXPECT_EQ(runs_on_host("sort"), sorts + 1);
  // A part of fill() is left to the host by the variant itself.
  const int64_t fills = runs_on_host("fill");
  Array window = there.array().view({3, 2}, {5, 1});
  kernels::fill(window, 7.0);
  EXPECT_EQ(runs_on_host("fill"), fills + 1);
  EXPECT_EQ(to_vector<float>(there)[6], 7);
  EXPECT_EQ(to_vector<float>(there)[7], 7);
}

TEST(Toy, WhatAKernelFindsWrongIsRaisedWhereTheHostWaits) {
  const Device d = Device::parse("toy");
  const Tensor ones = to_device(full({2}, int64_t{1}, {.dtype = int64}), d);
  const Tensor zeros = to_device(full({2}, int64_t{0}, {.dtype = int64}), d);
  std::string error = error_of([&] { floor_divide(ones, zeros); });
  if (error.empty()) error = error_of([&] { device_runtime(d)->synchronize(d.index); });
  EXPECT_NE(error.find("by zero"), std::string::npos) << error;
  EXPECT_EQ(to_vector<int64_t>(ones + ones), (std::vector<int64_t>{2, 2}));  // it is told once
}

TEST(Toy, MemoryIsCountedAndGivenBack) {
  const Device d = Device::parse("toy:3");
  DeviceRuntime& toy = *device_runtime(d);
  const size_t before = toy.memory_stats(3).in_use_bytes;
  {
    const Tensor x = ramp({1024}, d);
    EXPECT_EQ(toy.memory_stats(3).in_use_bytes, before + 4096);
  }
  EXPECT_EQ(toy.memory_stats(3).in_use_bytes, before);
  toy.release_cached_memory(3);
  EXPECT_EQ(toy.memory_stats(3).cached_bytes, 0u);
  EXPECT_NE(error_of([&] { toy.allocate(3, size_t{1} << 40); }).find("out of memory"), std::string::npos);
}

TEST(Toy, DataTravelsBetweenItsDevicesAndTheCpu) {
  const Tensor x = ramp({2, 3});
  const Tensor one = to_device(x, Device::parse("toy:1"));
  const Tensor two = to_device(transpose(one, 0, 1), Device::parse("toy:2"));  // through the host: no peer copies
  EXPECT_EQ(to_vector<float>(two), (std::vector<float>{0, 3, 1, 4, 2, 5}));
  auto event = device_runtime(one.device())->make_event(1, true),
       later = device_runtime(one.device())->make_event(1, true);
  EXPECT_TRUE(event->query());
  event->record();
  one + one;
  later->record();
  later->synchronize();
  EXPECT_TRUE(later->query());
  EXPECT_GE(later->elapsed_ms(*event), 0);
}

TEST(Toy, RanksRedistributeBetweenItAndTheCpu) {
  comm::run_ranks(2, [](int) {
    const Placement cpu = Placement::all("cpu"), toy = Placement::all("toy");
    const Tensor x = to_global(ramp({4, 3}), cpu, sbp::broadcast());
    const Tensor there = to_global(to_global(x, cpu, sbp::split(0)), toy, sbp::split(1));
    EXPECT_EQ(there.array().device.str(), device_of_rank(toy.device_type(), false).str());
    const Tensor product =
        matmul(to_global(there, toy, sbp::split(0)), transpose(to_global(x, toy, sbp::broadcast()), 0, 1));
    EXPECT_EQ(product.nd_sbp(), NdSbp(sbp::split(0)));
    EXPECT_EQ(to_vector<float>(to_global(product, cpu, sbp::broadcast())),
              to_vector<float>(matmul(x, transpose(x, 0, 1))));
  });
}

}  // namespace
}  // namespace holon
