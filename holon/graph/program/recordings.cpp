#include "holon/graph/program/recordings.h"

#include <algorithm>

#include "holon/base/error.h"
#include "holon/base/log.h"
#include "holon/base/settings.h"

namespace holon::graph {

namespace {

constexpr size_t kShortest = 3;  // instructions that are worth a launch of their own kind
constexpr int kMostMoves = 4;    // of parameters, after each of which all is recorded again

}  // namespace

Recordings::Recordings(Program& program) : program_(program) {
  // Waits after every op cannot be recorded.
  on_ = settings::flag("HOLON_CUDA_GRAPHS") && !settings::flag("HOLON_SYNC") && device_runtime();
  size_t devices = 0;
  for (auto& arena : program_.arenas)
    if (arena.device.is_cuda()) device_ = arena.device, ++devices;
  for (auto& i : program_.instructions) may_.push_back(i->records());
  on_ = on_ && devices == 1 && std::count(may_.begin(), may_.end(), true) >= static_cast<ptrdiff_t>(kShortest);
}

Recordings::~Recordings() = default;

size_t Recordings::recorded() const {
  return static_cast<size_t>(std::count_if(ranges_.begin(), ranges_.end(), [](auto& r) { return r.graph != nullptr; }));
}

void Recordings::find_ranges() {
  for (size_t i = 0; i < may_.size();) {
    size_t end = i;
    while (end < may_.size() && may_[end]) ++end;
    if (end - i >= kShortest) ranges_.push_back({i, end, nullptr});
    i = std::max(end, i + 1);
  }
  ready_ = true;
  on_ = !ranges_.empty();
  if (!on_) return;
  for (Buffer& b : program_.buffers) {
    if (b.kind == Buffer::Kind::kExternal) outside_.emplace_back(&b, b.storage->data());
    if ((b.kind != Buffer::Kind::kInput && b.kind != Buffer::Kind::kOutput) || !(b.device == device_) || b.bytes == 0)
      continue;
    (b.kind == Buffer::Kind::kInput ? inputs_ : outputs_)
        .push_back({&b, device_runtime()->allocate(device_.index, b.bytes)});
  }
}

bool Recordings::moved() {
  bool any = false;
  for (auto& [buffer, at] : outside_)
    if (buffer->storage->data() != at) at = buffer->storage->data(), any = true;
  return any;
}

void Recordings::before_step() {
  for (Fixed& f : outputs_) f.given = nullptr;  // of a step that ended in an error
  if (!on_ || !looked_) return;
  if (!ready_) find_ranges();
  if (!on_) return;
  if (moved()) {
    for (Range& r : ranges_) r.graph.reset();
    if (++times_moved_ > kMostMoves)
      return give_up("parameters or other tensors from outside have new memory in every step");
  }
  for (Fixed& f : inputs_) {
    if (!f.buffer->storage->data()) continue;
    device_runtime()->copy_between(device_.index, f.storage->data(), device_.index, f.buffer->storage->data(),
                                   f.buffer->bytes);
    f.buffer->storage->rebind(f.storage->data(), f.buffer->bytes);
  }
  for (Fixed& f : outputs_) {
    f.given = f.buffer->storage->data();
    f.buffer->storage->rebind(f.storage->data(), f.buffer->bytes);
  }
}

void Recordings::after_step() {
  for (Fixed& f : outputs_) {
    if (!f.given) continue;
    device_runtime()->copy_between(device_.index, f.given, device_.index, f.storage->data(), f.buffer->bytes);
    f.given = nullptr;
  }
}

void Recordings::run(size_t& at) {
  auto& list = program_.instructions;
  if (on_ && !looked_) return look_at(at);
  auto range = ranges_.begin();
  for (; at < list.size(); ++at) {
    while (on_ && range != ranges_.end() && range->end <= at) ++range;
    if (on_ && range != ranges_.end() && range->first == at) {
      if (!range->graph) record(*range);
      if (range->graph) {
        range->graph->launch();
        device_runtime()->check(device_.index);
        at = range->end - 1;
        continue;
      }
    }
    list[at]->run();
  }
}

// The first step: which instructions need the host.
void Recordings::look_at(size_t& at) {
  auto& list = program_.instructions;
  for (; at < list.size(); ++at) {
    const int64_t before = device_runtime()->host_meetings();
    list[at]->run();
    if (device_runtime()->host_meetings() != before) may_[at] = false;
  }
  looked_ = true;
}

void Recordings::record(Range& range) {
  DeviceRuntime& devices = *device_runtime();
  const DeviceGraph* with = nullptr;
  for (Range& r : ranges_)
    if (r.graph) with = r.graph.get();
  try {
    devices.begin_capture(device_.index, with);
    for (size_t i = range.first; i < range.end; ++i) program_.instructions[i]->run();
    range.graph = devices.end_capture(device_.index);
  } catch (const Error& e) {
    devices.abandon_capture(device_.index);
    // What earlier work has found wrong is no fault of the recording.
    if (e.kind() != ErrorKind::kRuntime && e.kind() != ErrorKind::kInternal) throw;
    give_up(e.what());
  }
}

void Recordings::give_up(const char* why) {
  log::warn(
      fmt::format("nn.Graph: the step is not recorded as a CUDA graph, its kernels are launched one by one: {}", why));
  on_ = false;
  for (Range& r : ranges_) r.graph.reset();
}

}  // namespace holon::graph
