#include "boxing/device_point_to_point_cases.h"

#include <signal.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <thread>
#include <vector>

#include "boxing/point_to_point_cases.h"
#include "boxing/specs.h"
#include "holon/array/device_runtime.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/boxing/executor.h"
#include "holon/comm/core/background.h"
#include "holon/comm/core/communicator.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/regions.h"

namespace holon::testing_boxing {

namespace {

using boxing::Input;
using boxing::PointToPoint;

const Sbp S0 = sbp::split(0), S1 = sbp::split(1), B = sbp::broadcast(), P = sbp::partial_sum();

int my_rank() { return Context::current().rank(); }
int world_size() { return Context::current().world_size(); }

const GlobalSpec* on(const char* kind, std::vector<int64_t> ranks, Sbp s = B) {
  return intern_spec(Placement(kind, std::move(ranks)), s);
}
Device cuda() { return device_of_rank(parse_device_type("cuda"), false); }

Array to(Device device, const Array& a) {
  if (!a.defined()) return a;
  Array there = Array::empty(a.shape, a.dtype, device);
  kernels::copy(a, there);
  return there;
}

// Laid out as `a`, elsewhere.
Array like(const Array& a, Device device) {
  int64_t span = 1;
  for (int i = 0; i < a.ndim(); ++i) span += std::max<int64_t>(a.shape[i] - 1, 0) * a.strides[i];
  return Array::empty({span}, a.dtype, device).view(a.shape, a.strides);
}

// Small integers, whose sums are exact in every dtype and order.
Array integers(Array a) {
  Array f = Array::empty(a.shape, float32);
  kernels::copy(a, f);
  for (int64_t i = 0; i < f.numel(); ++i) f.data<float>()[i] = std::floor(std::fmod(f.data<float>()[i] + 40.f, 31.f));
  Array whole = like(a, {});
  kernels::copy(f, whole);
  return whole;
}

Array filled(const Dims& shape, float value, Device device = {}) {
  Array a = Array::empty(shape, float32, device);
  kernels::fill(a, Scalar(static_cast<double>(value)));
  return a;
}

void expect(const Array& a, float value, const std::string& what) {
  const Array here = to({}, a);
  for (int64_t i = 0; i < here.numel(); ++i)
    if (here.data<float>()[i] != value)
      fail_runtime("{} on rank {}: element {} is {}, not {}", what, my_rank(), i, here.data<float>()[i], value);
}

// On `from` and `to` and nowhere else, until the link from one to the other is made.
void await_link(int from, int to) {
  auto h = PointToPoint::prepare(on("cuda", {from}), on("cuda", {to}), {3, 5}, float32, 900);
  auto& both = comm::communicator(std::array{from, to});
  const Array a = filled({3, 5}, 7, cuda());
  for (int64_t linked = 0; !linked;) {
    const auto before = comm::stats().device_messages;
    if (my_rank() == from) h.send(a, {});
    if (my_rank() == to) h.receive(a, {});
    linked = comm::stats().device_messages > before;
    both.broadcast(&linked, 1, int64, 0);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  h.release();
}

const GlobalSpec* moved_to(const char* kind, const GlobalSpec* s) {
  const auto ranks = s->placement.ranks();
  return intern_spec(Placement(kind, s->placement.hierarchy(), {ranks.begin(), ranks.end()}), s->nd_sbp);
}

void must_agree(const GlobalSpec* from, const GlobalSpec* to_spec, const Dims& shape, DType dtype, int channel,
                bool strided, const char* kind_from, const char* kind_to) {
  Array source = some_part(from, shape, dtype, strided);
  if (source.defined()) source = integers(source);
  const Array expected = boxing::redistribute(from, to_spec, shape, dtype, source);
  auto h = PointToPoint::prepare(moved_to(kind_from, from), moved_to(kind_to, to_spec), shape, dtype, channel,
                                 strided ? Input::kAnyStrides : Input::kContiguous);
  auto device_of = [&](const char* kind) { return kind[0] == 'c' && kind[1] == 'u' ? cuda() : Device(); };
  if (h.has_in() != source.defined() || h.has_out() != expected.defined())
    fail_runtime("it is wrong about who has what");
  Array in = source.defined() ? like(source, device_of(kind_from)) : Array{};
  auto scratch = scratch_of(h.send_scratch_bytes()), receive_scratch = scratch_of(h.receive_scratch_bytes());
  const Array out = expected.defined() ? Array::empty(expected.shape, dtype, device_of(kind_to)) : Array{};
  for (int round = 0; round < 3; ++round) {
    if (in.defined()) kernels::copy(source, in);
    h.send(in, scratch);
    h.receive(out, receive_scratch);
    h.release();
    // What was sent and received may be written at once, in the device's order.
    const Array arrived = out.defined() ? to({}, out) : out;
    if (in.defined()) kernels::fill(in, Scalar(int64_t{99}));
    Array again = out;
    if (out.defined()) kernels::fill(again, Scalar(int64_t{98}));
    if (!same_bits(arrived, expected))
      fail_runtime("{} on {} -> {} on {}, {} {}, round {}: the result differs on rank {}", *from, kind_from, *to_spec,
                   kind_to, name(dtype), shape, round, my_rank());
  }
}

}  // namespace

void check_device_pairs() {
  int channel = 0;
  const auto rows = specs_of_rows(), grids = specs_of_grids();
  auto some = [&](const std::vector<const GlobalSpec*>& specs, const Dims& shape, DType dtype, bool strided,
                  size_t step) {
    for (size_t i = 0; i < specs.size(); ++i)
      for (size_t k = i % step; k < specs.size(); k += step)
        must_agree(specs[i], specs[k], shape, dtype, channel++ % 3, strided, "cuda", "cuda");
  };
  some(rows, {5, 7}, float32, false, 2);
  some(rows, {1, 3}, bfloat16, true, 3);
  some(rows, {30, 20}, float16, false, 5);
  some(grids, {6, 5}, float32, true, 5);
  for (auto [from, to_kind] : {std::pair{"cuda", "cpu"}, {"cpu", "cuda"}})
    for (size_t i = 0; i < rows.size(); ++i)
      must_agree(rows[i], rows[(i * 5 + 3) % rows.size()], {5, 7}, float32, channel++ % 3, i % 2, from, to_kind);
  // Two-byte floats are summed in float32, in the senders' order.
  for (auto [dtype, first] : {std::pair{bfloat16, 256.}, {float16, 2048.}}) {
    auto h = PointToPoint::prepare(on("cuda", {0, 1, 2}, P), on("cuda", {3}, B), {4}, dtype, 77);
    Array part = Array::empty({4}, dtype, cuda()), whole = Array::empty({4}, float32, cuda());
    kernels::fill(part, Scalar(my_rank() == 0 ? first : 1.));
    h.send(part, {});
    Array received = Array::empty({4}, dtype, cuda());
    h.receive(received, {});
    h.release();
    kernels::copy(received, whole);
    if (my_rank() == 3) expect(whole, static_cast<float>(first) + 2, "a sum of two-byte floats");
  }
}

void check_device_orders() {
  const int n = 5;
  if (my_rank() > 1) return;
  std::vector<PointToPoint> objects;
  std::vector<Dims> shapes;
  for (int i = 0; i < n; ++i) {
    shapes.push_back({i % 2 ? 70 : 3, 20 + i});
    objects.push_back(PointToPoint::prepare(on("cuda", {0}, B), on("cuda", {1}, B), shapes.back(), float32, i));
  }
  std::vector<Array> arrays;
  for (auto& s : shapes) arrays.push_back(filled(s, -1, cuda()));
  std::vector<int> order = {0, 1, 2, 3, 4};
  int round = 0;
  auto once = [&] {
    for (size_t i = 0; my_rank() == 0 && i < objects.size(); ++i) {
      kernels::fill(arrays[i], Scalar(static_cast<double>(100 * round + static_cast<int>(i))));
      objects[i].send(arrays[i], {});
    }
    for (int i : order)
      if (my_rank() == 1) {
        const auto k = static_cast<size_t>(i);
        objects[k].receive(arrays[k], {});
        expect(arrays[k], static_cast<float>(100 * round + i), "what is received in another order");
      }
    for (auto& h : objects) h.release();
    ++round;
  };
  do once();
  while (std::next_permutation(order.begin(), order.end()) && round < 40);
  await_link(0, 1);
  order = {4, 3, 2, 1, 0};
  do once();
  while (std::prev_permutation(order.begin(), order.end()));
  // Sends of an object before and after others', two of which are never under way at once.
  for (int i = 0; i < 30; ++i) {
    const auto k = static_cast<size_t>(i * i % n);
    if (my_rank() == 0) {
      objects[k].release();
      kernels::fill(arrays[k], Scalar(static_cast<double>(i)));
      objects[k].send(arrays[k], {});
    } else {
      objects[k].receive(arrays[k], {});
      expect(arrays[k], static_cast<float>(i), "the next send");
    }
  }
}

void check_device_circles() {
  const int n = world_size(), me = my_rank(), next = (me + 1) % n, before = (me + n - 1) % n;
  auto link = [](int a, int b, int channel) {
    return PointToPoint::prepare(on("cuda", {a}), on("cuda", {b}), {40, 50}, float32, channel);
  };
  auto forth = link(me, next, 1), from_before = link(before, me, 1);
  auto back = link(me, before, 2), from_next = link(next, me, 2);
  Array out = filled({40, 50}, 0, cuda()), in = filled({40, 50}, 0, cuda());
  auto start = std::chrono::steady_clock::now();
  auto elapsed = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(); };
  // At least until links have been made in the middle of it.
  auto& all = comm::communicator([&] {
    std::vector<int> ranks(static_cast<size_t>(n));
    for (int r = 0; r < n; ++r) ranks[static_cast<size_t>(r)] = r;
    return ranks;
  }());
  int64_t more = 1;
  for (int round = 0; more; ++round) {
    kernels::fill(out, Scalar(static_cast<double>(10 * round + me)));
    for (auto* h : {&forth, &back}) h->send(out, {});
    from_next.receive(in, {});
    expect(in, static_cast<float>(10 * round + next), "what comes back");
    from_before.receive(in, {});
    expect(in, static_cast<float>(10 * round + before), "what comes forth");
    for (auto* h : {&forth, &back}) h->release();
    const int64_t mine = round < 30 || (elapsed() < 20 && comm::stats().device_messages < 40);
    all.all_reduce(&mine, &more, 1, int64);
  }
  if (comm::stats().device_messages == 0) fail_runtime("no link was made");
}

void check_device_pipeline() {
  const int stages = world_size(), stage = my_rank(), micro_batches = 6;
  const Dims shape = {40, 50};
  auto link = [&](int a, int b, int kind) {
    std::vector<PointToPoint> list;
    if (std::min(a, b) < 0 || std::max(a, b) >= stages) return list;
    for (int i = 0; i < stages; ++i)
      list.push_back(PointToPoint::prepare(on("cuda", {a}), on("cuda", {b}), shape, float32, 2 * i + kind));
    return list;
  };
  auto forth_in = link(stage - 1, stage, 0), forth_out = link(stage, stage + 1, 0);
  auto back_in = link(stage + 1, stage, 1), back_out = link(stage, stage - 1, 1);
  struct Buffers {
    Array in, out, grad_in, grad_out;
  };
  std::vector<Buffers> buffers;
  for (int i = 0; i < stages; ++i) {
    auto make = [&] { return filled(shape, -1, cuda()); };
    buffers.push_back({make(), make(), make(), make()});
  }
  const Array one = filled(shape, 1, cuda());
  auto at = [&](int micro) { return static_cast<size_t>(micro % stages); };
  auto plus_one = [&](const Array& from, Array& to_array) {
    const Array* both[] = {&from, &one};
    kernels::sum_arrays(both, to_array);
  };
  std::vector<Array> results;
  auto forward = [&](int micro) {
    Buffers& b = buffers[at(micro)];
    if (!forth_in.empty())
      forth_in[at(micro)].receive(b.in, {});
    else
      kernels::fill(b.in, Scalar(100. * micro));
    if (!forth_out.empty()) forth_out[at(micro)].release();  // b.out is about to be written
    plus_one(b.in, b.out);
    if (!forth_out.empty()) forth_out[at(micro)].send(b.out, {});
  };
  auto backward = [&](int micro) {
    Buffers& b = buffers[at(micro)];
    if (!back_in.empty()) back_in[at(micro)].receive(b.grad_in, {});
    if (!back_out.empty()) back_out[at(micro)].release();
    plus_one(back_in.empty() ? b.out : b.grad_in, b.grad_out);
    results.push_back(filled(shape, 0, cuda()));
    kernels::copy(b.grad_out, results.back());
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
    // Only now does the host look at the device.
    for (int micro = 0; micro < micro_batches; ++micro)
      expect(results[static_cast<size_t>(micro)],
             100.f * static_cast<float>(micro) + static_cast<float>(2 * stages - stage),
             fmt::format("the gradient of micro-batch {} in step {}", micro, step));
    results.clear();
    if (step == 2 && stage + 1 < stages) await_link(stage, stage + 1);
    if (step == 2 && stage > 0) await_link(stage - 1, stage);
  }
  for (auto* list : {&forth_out, &back_out})
    for (auto& h : *list) h.release();
}

void check_device_links() {
  if (my_rank() > 1) return;
  await_link(0, 1);
  const Dims shape = {300, 40};
  std::vector<PointToPoint> objects;
  for (int i = 0; i < 4; ++i)
    objects.push_back(
        PointToPoint::prepare(on("cuda", {0}, i % 2 ? B : S0), on("cuda", {1}, i % 2 ? B : S1), shape, float32, i));
  std::vector<Array> arrays;
  for (int i = 0; i < 4; ++i) arrays.push_back(filled(shape, static_cast<float>(i), cuda()));
  auto& both = comm::communicator(std::array{0, 1});
  for (auto& h : objects) h.bind();
  device_runtime(cuda())->synchronize(cuda().index);
  const auto waits = device_runtime(cuda())->host_waits();
  const auto messages = comm::stats().device_messages;
  if (my_rank() == 0)
    for (size_t i = 0; i < objects.size(); ++i) {
      objects[i].send(arrays[i], {});
      objects[i].release();  // returns though nobody receives yet
      kernels::fill(arrays[i], Scalar(-5.));
    }
  both.barrier();
  if (my_rank() == 1)
    for (size_t i = objects.size(); i-- > 0;) objects[i].receive(arrays[i], {});
  if (const auto more = device_runtime(cuda())->host_waits() - waits; more != 0)
    fail_runtime("rank {} has waited for the host {} times", my_rank(), more);
  if (const auto sent = comm::stats().device_messages - messages; sent != (my_rank() == 0 ? objects.size() : 0))
    fail_runtime("rank {} has sent {} messages", my_rank(), sent);
  for (size_t i = 0; my_rank() == 1 && i < objects.size(); ++i)
    expect(arrays[i], static_cast<float>(i), "what was sent");
  if (my_rank() == 0) {
    device_runtime(cuda())->synchronize(cuda().index);
    for (auto& h : objects)
      if (!h.try_release()) fail_runtime("what was released is not");
  }
  both.barrier();
}

void check_device_background() {
  if (my_rank() > 1) return;
  await_link(0, 1);
  comm::run_in_background([] { await_link(0, 1); }).wait();
}

namespace {

// Raises what rank 0 hears, or that nothing was wrong.
template <class Call>
void rank_0_hears(Call call) {
  try {
    call();
    device_runtime(cuda())->synchronize(cuda().index);
  } catch (const Error& e) {
    std::printf("heard: %s\n", e.what());
    throw;
  }
  std::printf("nothing was wrong\n");
}

struct Two {
  explicit Two(int from) : h(PointToPoint::prepare(on("cuda", {from}), on("cuda", {1 - from}), {64, 64}, float32, 7)) {
    await_link(from, 1 - from);
    h.bind();
    comm::communicator(std::array{0, 1}).barrier();
  }
  PointToPoint h;
  Array a = filled({64, 64}, 1, cuda());
};

}  // namespace

void sender_dies() {
  Two two(1);
  if (my_rank() == 1) raise(SIGKILL);
  rank_0_hears([&] { two.h.receive(two.a, {}); });
}

void sender_dies_after_sending() {
  Two two(1);
  // What it has told of never comes: on the emulator nothing is sent before the device has come there.
  if (my_rank() == 1) {
    two.h.send(two.a, {});
    raise(SIGKILL);
  }
  rank_0_hears([&] {
    two.h.receive(two.a, {});
    device_runtime(cuda())->synchronize(cuda().index);
    two.h.receive(two.a, {});  // it may have come: then the next one does not
  });
}

void receiver_does_not_come() {
  Two two(0);
  if (my_rank() == 1) {
    std::this_thread::sleep_for(std::chrono::seconds(12));
    return;
  }
  rank_0_hears([&] {
    two.h.send(two.a, {});
    two.h.release();
  });
}

void receiver_dies() {
  Two two(0);
  if (my_rank() == 1) raise(SIGKILL);
  rank_0_hears([&] {
    two.h.send(two.a, {});
    two.h.release();
  });
}

}  // namespace holon::testing_boxing
