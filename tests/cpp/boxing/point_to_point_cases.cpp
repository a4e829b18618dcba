#include "boxing/point_to_point_cases.h"

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "boxing/specs.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/boxing/executor.h"
#include "holon/comm/core/communicator.h"
#include "holon/kernels/copy.h"

namespace holon::testing_boxing {

using boxing::Input;
using boxing::PointToPoint;

namespace {

void fill(const Array& a, int byte) {
  if (a.defined() && a.nbytes() && a.is_contiguous()) std::memset(a.bytes(), byte, a.nbytes());
}

bool near(const Array& a, const Array& b) {
  if (a.defined() != b.defined()) return false;
  if (!a.defined()) return true;
  const Array x = kernels::contiguous(a), y = kernels::contiguous(b);
  for (int64_t i = 0; i < x.numel(); ++i)
    if (std::abs(x.data<float>()[i] - y.data<float>()[i]) > 1e-3f) return false;
  return true;
}

}  // namespace

std::string transfer_is_wrong(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype, int channel,
                              bool strided, bool exact) {
  const Array source = some_part(from, shape, dtype, strided);
  auto before = comm::stats();
  const Array expected = boxing::redistribute(from, to, shape, dtype, source);
  const auto bytes = comm::stats().bytes_read - before.bytes_read;

  auto h = PointToPoint::prepare(from, to, shape, dtype, channel, strided ? Input::kAnyStrides : Input::kContiguous);
  if (h.has_in() != source.defined() || h.has_out() != expected.defined()) return "it is wrong about who has what";
  if (h.read_bytes() != static_cast<int64_t>(bytes))
    return fmt::format("it promised {} bytes, not {}", h.read_bytes(), bytes);
  Array in = source;
  if (!strided && source.defined()) in = garbage(true, source.shape, dtype);
  const Array out = garbage(h.has_out(), h.out_shape(), dtype);
  auto send_scratch = scratch_of(h.send_scratch_bytes()), receive_scratch = scratch_of(h.receive_scratch_bytes());
  for (int round = 0; round < 3; ++round) {
    if (!strided && in.defined() && in.nbytes()) std::memcpy(in.bytes(), source.bytes(), in.nbytes());
    fill(out, 0xcd);
    before = comm::stats();
    h.send(in, send_scratch);
    h.receive(out, receive_scratch);
    if (exact && comm::stats().bytes_read - before.bytes_read != bytes)
      return fmt::format("{} bytes, not {}", comm::stats().bytes_read - before.bytes_read, bytes);
    if (!(exact ? same_bits(out, expected) : near(out, expected))) return fmt::format("round {} differs", round);
    h.release();
    if (!h.try_release()) return "what was released is not";
    // All of it may be written at once.
    if (!strided) fill(in, 0xee);
    for (auto* list : {&send_scratch, &receive_scratch})
      for (auto& s : *list) fill(s, 0xee);
  }
  return {};
}

void check_transfers() {
  int channel = 0;
  auto check = [&](const std::vector<const GlobalSpec*>& specs, const Dims& shape, DType dtype, bool strided) {
    for (auto* from : specs)
      for (auto* to : specs)
        if (auto wrong = transfer_is_wrong(from, to, shape, dtype, channel++ % 3, strided); !wrong.empty())
          fail_runtime("{} -> {}, {} {}: {}", *from, *to, name(dtype), shape, wrong);
  };
  auto rows = specs_of_rows(), grids = specs_of_grids();
  for (auto& ranks : {std::vector<int64_t>{0, 1}, {3, 2}})
    for (auto* s : all_specs(Placement("cpu", ranks), options_of(2))) rows.push_back(s);
  auto apart = all_specs(Placement("cpu", {2, 1}, {3, 2}), {sbp::split(1), sbp::partial_sum()});
  grids.insert(grids.end(), apart.begin(), apart.end());
  check(rows, {5, 7}, float32, false);
  check(rows, {1, 3}, bfloat16, true);
  check(rows, {70, 50}, bfloat16, false);
  check(grids, {6, 5}, float32, false);
  check(grids, {70, 50}, float32, true);
}

void check_transfers_between_hosts() {
  int channel = 0;
  for (auto& specs : {specs_of_rows(), specs_of_grids()})
    for (size_t i = 0; i < specs.size(); ++i)
      for (size_t k = i % 3; k < specs.size(); k += 3) {
        const Dims shape = i % 2 ? Dims{6, 5} : Dims{70, 50};
        auto wrong = transfer_is_wrong(specs[i], specs[k], shape, float32, channel++ % 2, (i + k) % 2, false);
        if (!wrong.empty()) fail_runtime("{} -> {}, {}: {}", *specs[i], *specs[k], shape, wrong);
      }
}

void check_private_memory() {
  const int rank = Context::current().rank();
  auto spec = [](int s) { return intern_spec(Placement("cpu", {s}), sbp::broadcast()); };
  auto h = PointToPoint::prepare(spec(0), spec(1), {5000}, float32, 0);
  std::vector<float> mine(5000);
  Array in = garbage(rank == 0, {5000}, float32);
  if (rank == 0) in.storage = borrow_storage(mine.data(), mine.size() * sizeof(float), nullptr, [](void*) {});
  const Array out = garbage(rank == 1, {5000}, float32);
  for (int round = 0; round < 20; ++round) {
    std::fill(mine.begin(), mine.end(), static_cast<float>(round));
    h.send(in, {});
    // A copy has been sent.
    if (!h.try_release()) fail_runtime("round {} is not released", round);
    std::fill(mine.begin(), mine.end(), -1.f);
    h.receive(out, {});
    for (int i = 0; rank == 1 && i < 5000; ++i)
      if (out.data<float>()[i] != static_cast<float>(round)) fail_runtime("round {}: {}", round, out.data<float>()[i]);
  }
}

void check_pipeline(int stages, int micro_batches) {
  const int stage = Context::current().rank();
  const Dims shape = {40, 50};
  auto spec = [](int s) { return intern_spec(Placement("cpu", {s}), sbp::broadcast()); };
  // As many of each kind as may be under way at once: a stage is at most so far ahead.
  const int in_flight = std::min(stages, micro_batches);
  auto link = [&](int a, int b, int kind) {
    std::vector<PointToPoint> list;
    if (std::min(a, b) < 0 || std::max(a, b) >= stages) return list;
    for (int i = 0; i < in_flight; ++i)
      list.push_back(PointToPoint::prepare(spec(a), spec(b), shape, float32, 2 * i + kind));
    return list;
  };
  auto forth_in = link(stage - 1, stage, 0), forth_out = link(stage, stage + 1, 0);
  auto back_in = link(stage + 1, stage, 1), back_out = link(stage, stage - 1, 1);
  struct Buffers {
    Array in, out, grad_in, grad_out;
  };
  std::vector<Buffers> buffers;
  for (int i = 0; i < in_flight; ++i) {
    auto make = [&] { return garbage(true, shape, float32); };
    buffers.push_back({make(), make(), make(), make()});
  }
  auto at = [&](int micro) { return static_cast<size_t>(micro % in_flight); };
  auto set = [](const Array& a, const Array& from, float more, float base) {
    for (int64_t i = 0; i < a.numel(); ++i)
      a.data<float>()[i] = (from.defined() ? from.data<float>()[i] : base + static_cast<float>(i % 17)) + more;
  };
  auto expect = [&](const Array& a, float base, const char* what, int micro) {
    for (int64_t i = 0; i < a.numel(); ++i)
      if (a.data<float>()[i] != base + static_cast<float>(i % 17))
        fail_runtime("{} of micro-batch {} at stage {}: element {} is {}, not {}", what, micro, stage, i,
                     a.data<float>()[i], base + static_cast<float>(i % 17));
  };
  auto forward = [&](int micro) {
    Buffers& b = buffers[at(micro)];
    if (!forth_in.empty()) forth_in[at(micro)].receive(b.in, {});
    if (!forth_out.empty()) forth_out[at(micro)].release();  // b.out is about to be written
    const float base = 100.f * static_cast<float>(micro);
    set(b.out, forth_in.empty() ? Array{} : b.in, 1, base);
    expect(b.out, base + static_cast<float>(stage + 1), "the activation", micro);
    if (!forth_out.empty()) forth_out[at(micro)].send(b.out, {});
  };
  auto backward = [&](int micro) {
    Buffers& b = buffers[at(micro)];
    if (!back_in.empty()) back_in[at(micro)].receive(b.grad_in, {});
    if (!back_out.empty()) back_out[at(micro)].release();
    set(b.grad_out, back_in.empty() ? b.out : b.grad_in, 1, 0);
    const float turns = static_cast<float>(stages + stages - stage);
    expect(b.grad_out, 100.f * static_cast<float>(micro) + turns, "the gradient", micro);
    if (!back_out.empty()) back_out[at(micro)].send(b.grad_out, {});
  };
  for (int step = 0; step < 20; ++step) {
    const int warm_up = std::min(stages - stage - 1, micro_batches);
    int next = 0;
    for (; next < warm_up; ++next) forward(next);
    for (int done = 0; done < micro_batches; ++done) {
      if (next < micro_batches) forward(next++);
      backward(done);
    }
  }
  for (auto* list : {&forth_out, &back_out})
    for (auto& h : *list) h.release();
}

void die_before_posting() {
  const int rank = Context::current().rank();
  auto spec = [](int s) { return intern_spec(Placement("cpu", {s}), sbp::broadcast()); };
  auto h = PointToPoint::prepare(spec(1), spec(0), {64, 64}, float32, 7);
  const Array a = garbage(rank < 2, {64, 64}, float32);
  for (int i = 0; i < 5; ++i) {
    if (rank == 1 && i == 3) raise(SIGKILL);
    h.send(a, {});
    h.receive(a, {});
    h.release();
  }
}

}  // namespace holon::testing_boxing
