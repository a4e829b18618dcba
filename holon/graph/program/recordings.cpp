#include "holon/graph/program/recordings.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/base/log.h"
#include "holon/base/settings.h"
#include "holon/boxing/planner.h"
#include "holon/boxing/rank_step.h"
#include "holon/comm/core/communicator.h"
#include "holon/graph/ir/gradients.h"
#include "holon/graph/program/instructions.h"

namespace holon::graph {

namespace {

constexpr size_t kShortest = 3;  // instructions that are worth a separate launch
constexpr int kMostMoves = 4;    // of parameters in steps on end, for each of which all is recorded again
constexpr size_t kNumbersOfUpdate = kernels::RecordedUpdate::kMost * sizeof(kernels::UpdateNumbers);

// The same on all of them.
std::vector<int> ranks_of_device_collectives(const Graph& g) {
  std::set<int> ranks;
  for (const Node& n : g.nodes) {
    if (n.kind != NodeKind::kBoxing) continue;
    const Value& in = g.value(n.in[0]);
    const GlobalSpec *from = in.spec, *to = g.value(n.out[0]).spec;
    if (!boxing::on_alike_devices(*from, *to)) continue;
    const boxing::Plan plan = boxing::plan(from, to, in.shape, in.dtype);
    if (std::none_of(plan.steps().begin(), plan.steps().end(), [](auto& s) { return s.communicates(); })) continue;
    for (const GlobalSpec* spec : {from, to})
      ranks.insert(spec->placement.ranks().begin(), spec->placement.ranks().end());
  }
  const auto gradients = taken_gradients(g);
  for (const GradClip& clip : g.clips) {
    if (clip.how.by != optim::Clip::By::kNorm || clip_device(clip, gradients).is_host()) continue;
    for (const GradClip::Of& at : clip.of)
      if (const GlobalSpec* spec = gradients.at(at)->spec; spec && !spec->nd_sbp.is_broadcast())
        ranks.insert(spec->placement.ranks().begin(), spec->placement.ranks().end());
  }
  return {ranks.begin(), ranks.end()};
}

}  // namespace

Recordings::Recordings(Program& program, const Graph& graph)
    : program_(program), ranks_(ranks_of_device_collectives(graph)) {
  // Waits after every op cannot be recorded.
  on_ = settings::flag("HOLON_CUDA_GRAPHS") && !settings::flag("HOLON_SYNC");
  size_t devices = 0;
  for (auto& arena : program_.arenas)
    if (!arena.device.is_host()) device_ = arena.device, ++devices;
  for (auto& i : program_.instructions)
    may_.push_back(i->records() && !(comm::calls_need_the_host() && !i->collectives().empty()));
  on_ = on_ && devices == 1 && runtime().capabilities().recording &&
      std::count(may_.begin(), may_.end(), true) >= static_cast<ptrdiff_t>(kShortest);
  if (std::find(ranks_.begin(), ranks_.end(), Context::current().rank()) == ranks_.end()) ranks_.clear();
}

Recordings::~Recordings() = default;

DeviceRuntime& Recordings::runtime() const { return *device_runtime(device_); }

size_t Recordings::recorded() const {
  return to_size(std::count_if(ranges_.begin(), ranges_.end(), [](auto& r) { return r.graph != nullptr; }));
}

// Collective among ranks_.
void Recordings::find_partners() {
  uint64_t shape = 0;  // of this rank's program; 0: it records nothing
  bool any = false;
  if (on_ && looked_) {
    Hasher h;
    for (size_t i = 0; i < may_.size(); ++i) {
      const size_t groups = may_[i] ? program_.instructions[i]->collectives().size() : 0;
      any |= groups > 0;
      h.add(groups * 2 + may_[i]);
    }
    shape = h.value();
  }
  comm::Communicator& all = comm::communicator(ranks_);
  std::vector<uint64_t> shapes(ranks_.size());
  all.all_gather_bytes({.op = "shapes of recordings"}, &shape, sizeof shape, shapes.data());
  auto alike = [&](int rank) {
    const auto place = std::find(ranks_.begin(), ranks_.end(), rank);
    return place != ranks_.end() && at_index(shapes, place - ranks_.begin()) == shape;
  };
  uint8_t closed = any;
  for (size_t i = 0; i < may_.size() && closed; ++i)
    if (may_[i])
      for (std::span<const int> members : program_.instructions[i]->collectives())
        closed &= std::all_of(members.begin(), members.end(), alike);
  std::vector<uint8_t> all_closed(ranks_.size());
  all.all_gather_bytes({.op = "partners of recordings"}, &closed, sizeof closed, all_closed.data());
  for (size_t k = 0; k < ranks_.size(); ++k) {
    if (shapes[k] != shape) continue;
    partners_.push_back(ranks_[k]);
    closed &= all_closed[k];
  }
  if (!closed) partners_.clear();
}

Recordings::Decision Recordings::agree(Decision mine) const {
  std::vector<Decision> words(partners_.size());
  comm::communicator(partners_).all_gather_bytes({.op = "launch of recordings"}, &mine, sizeof mine, words.data());
  return *std::max_element(words.begin(), words.end());
}

void Recordings::part() {
  partners_.clear();
  ranges_.clear();
  ready_ = false;
}

void Recordings::find_ranges() {
  // Where collectives are not recorded, neither are the waits for them, which would end the overlap early.
  auto fits = [&](size_t i) {
    const Instruction& own = *program_.instructions[i];
    return may_[i] && (!partners_.empty() || (!own.waits() && own.collectives().empty()));
  };
  for (size_t i = 0; i < may_.size();) {
    size_t end = i;
    bool communicates = false;
    for (; end < may_.size() && fits(end); ++end)
      communicates |= program_.instructions[end]->waits() || !program_.instructions[end]->collectives().empty();
    if (end - i >= kShortest) {
      Range& r = ranges_.emplace_back();
      r.first = i, r.end = end, r.communicates = communicates;
      for (size_t k = i; k < end; ++k)
        if (UpdateGroup* group = program_.instructions[k]->updates()) r.updates.push_back(group);
    }
    i = std::max(end, i + 1);
  }
  ready_ = true;
  // With partners there are ranges on all of them, or on none.
  if (ranges_.empty()) on_ = false, partners_.clear();
  if (on_ && !numbers_) fix_buffers();
}

void Recordings::fix_buffers() {
  host_numbers_.resize(sizeof(DrawStart) + program_.updates.size() * kNumbersOfUpdate);
  numbers_ = runtime().allocate(device_.index, host_numbers_.size());
  program_.draws.there = reinterpret_cast<const DrawStart*>(numbers_->data());
  for (size_t u = 0; u < program_.updates.size(); ++u)
    program_.updates[u].there =
        reinterpret_cast<const kernels::UpdateNumbers*>(numbers_->data() + sizeof(DrawStart) + u * kNumbersOfUpdate);
  for (Buffer& b : program_.buffers) {
    if (b.kind == Buffer::Kind::kExternal) outside_.emplace_back(&b, b.storage->data());
    if ((b.kind != Buffer::Kind::kInput && b.kind != Buffer::Kind::kOutput) || !(b.device == device_) || b.bytes == 0)
      continue;
    (b.kind == Buffer::Kind::kInput ? inputs_ : outputs_).push_back({&b, runtime().allocate(device_.index, b.bytes)});
  }
}

bool Recordings::moved() {
  bool any = false;
  for (auto& [buffer, at] : outside_)
    if (buffer->storage->data() != at) at = buffer->storage->data(), any = true;
  return any;
}

bool Recordings::read_updates(bool* changed) {
  for (Range& r : ranges_)
    for (UpdateGroup* group : r.updates) {
      const kernels::RecordedUpdate next = next_update(*group);
      if (!next.fits) return false;
      *changed |= r.graph && next.shape != group->recorded_shape;
      if (!next.numbers.empty())
        std::memcpy(host_numbers_.data() + (reinterpret_cast<const std::byte*>(group->there) - numbers_->data()),
                    next.numbers.data(), next.numbers.size() * sizeof next.numbers[0]);
    }
  return true;
}

void Recordings::before_step(bool traced) {
  for (Fixed& f : outputs_) f.given = nullptr;  // of a step that ended in an error
  plain_ = traced;
  if (++steps_ == 2 && ranks_.size() > 1) find_partners();
  if (on_ && looked_ && !ready_) find_ranges();
  bool anew = on_ && ready_ && moved();
  if (on_ && ready_ && !plain_) plain_ = !read_updates(&anew);
  times_moved_ = anew ? times_moved_ + 1 : 0;
  if (times_moved_ > kMostMoves) give_up("parameters or other external tensors have new memory in every step");
  if (!partners_.empty()) {
    const bool complete =
        std::all_of(ranges_.begin(), ranges_.end(), [](auto& r) { return r.graph || !r.communicates; });
    const Decision word = agree(!on_                    ? Decision::kNever
                                    : plain_            ? Decision::kUnrecorded
                                    : anew || !complete ? Decision::kRecord
                                                        : Decision::kLaunch);
    anew |= word == Decision::kRecord;
    plain_ |= word == Decision::kUnrecorded;
    if (word == Decision::kNever) {
      part();
      if (on_) find_ranges();
    }
  }
  if (anew)
    for (Range& r : ranges_) r.graph.reset();
  if (!on_ || !ready_ || plain_) return;
  const DrawStart& start = program_.draws;
  std::memcpy(host_numbers_.data(), &start, sizeof start);
  runtime().copy_from_host(device_.index, numbers_->data(), host_numbers_.data(), host_numbers_.size());
  for (Fixed& f : inputs_) {
    if (!f.buffer->storage->data()) continue;
    runtime().copy_between(device_.index, f.storage->data(), device_.index, f.buffer->storage->data(), f.buffer->bytes);
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
    runtime().copy_between(device_.index, f.given, device_.index, f.storage->data(), f.buffer->bytes);
    f.given = nullptr;
  }
}

void Recordings::run(size_t& at) {
  auto& list = program_.instructions;
  if (on_ && !looked_) return look_at(at);
  auto range = ranges_.begin();
  for (; at < list.size(); ++at) {
    while (range != ranges_.end() && range->end <= at) ++range;
    if (range != ranges_.end() && range->first == at && usable(*range)) {
      if (!range->graph) record(*range);
      if (range->graph) {
        launch(*range);
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
  program_.draws.by = Draws::By::kTrial;
  for (; at < list.size(); ++at) {
    const int64_t before = runtime().host_waits();
    list[at]->run();
    if (runtime().host_waits() != before || !list[at]->records()) may_[at] = false;
  }
  program_.draws.by = Draws::By::kArguments;
  looked_ = true;
}

// Where partners communicate, all of them come here together, also those who have given up since the step began.
void Recordings::record(Range& range) {
  if (on_) capture(range);
  if (range.communicates && agree(range.graph ? Decision::kLaunch : Decision::kNever) == Decision::kNever) {
    if (on_) give_up("another rank could not record its part");
    range.graph.reset();
  }
}

void Recordings::capture(Range& range) {
  DeviceRuntime& devices = runtime();
  const DeviceGraph* with = nullptr;
  for (Range& r : ranges_)
    if (r.graph) with = r.graph.get();
  range.calls = {};
  auto recorded = [&] {
    program_.draws.by = Draws::By::kArguments;
    for (UpdateGroup* group : range.updates) group->recording = false;
  };
  try {
    if (range.communicates) comm::join_device_communication();
    comm::RecordedCalls::Scope calls(range.calls);
    devices.begin_capture(device_.index, with);
    program_.draws.by = Draws::By::kRecording;
    for (UpdateGroup* group : range.updates) group->recording = true;
    for (size_t i = range.first; i < range.end; ++i) program_.instructions[i]->run();
    if (range.communicates) comm::join_device_communication();
    range.graph = devices.end_capture(device_.index);
    HOLON_CHECK(range.communicates || !range.calls.any(),
                "a collective between devices that its instruction does not declare");
  } catch (const Error& e) {
    devices.abandon_capture(device_.index);
    range.graph.reset();
    recorded();
    // What earlier work has found wrong is not a fault of the recording.
    const bool own = e.kind() == ErrorKind::kRuntime || e.kind() == ErrorKind::kInternal;
    if (!own && range.communicates) agree(Decision::kNever);
    if (!own) throw;
    give_up(e.what());
  }
  recorded();
}

void Recordings::launch(Range& range) {
  if (range.communicates)
    range.calls.launch(*range.graph);
  else
    range.graph->launch();
  for (UpdateGroup* group : range.updates) optim::count_update(group->rule, group->slots);
  runtime().check(device_.index);
}

// Partners hear of it before the next step; what they launch with this one until then stays.
void Recordings::give_up(const char* why) {
  log::warn(
      fmt::format("nn.Graph: the step is not recorded as a CUDA graph; its kernels are launched one by one: {}", why));
  on_ = false;
  for (Range& r : ranges_)
    if (!r.communicates || partners_.empty()) r.graph.reset();
}

}  // namespace holon::graph
