#include "holon/comm/device/device_communicator.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <map>

#include "holon/array/device_runtime.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/base/log.h"
#include "holon/base/settings.h"
#include "holon/comm/core/world.h"
#include "holon/comm/device/device_exchange.h"
#include "holon/comm/device/recorded_calls.h"

namespace holon::comm {

namespace {

std::array<DeviceCommunicatorFactory*, kMaxDeviceTypes> factories{};
std::atomic<bool> any_failed{false};

struct DevicePart {
  int overlapping = 0;                      // scopes
  DeviceCommunicator* last_call = nullptr;  // of the outermost scope
  RecordedCalls* recording = nullptr;
  using Group = std::pair<DeviceType, std::vector<int>>;
  std::map<Group, std::unique_ptr<DeviceCommunicator>> known;  // nullptr: there is no way
};

// What a member says about its device.
struct Card {
  char missing[120] = "";
  char identity[64] = "";
  std::byte id[DeviceCommunicatorFactory::kIdBytes] = {};  // the first member's
};

void put(char* to, size_t size, const std::string& text) { to[text.copy(to, size - 1)] = 0; }

std::unique_ptr<DeviceCommunicator> connect(std::span<const int> ranks, Device device) {
  Communicator& group = communicator(ranks);
  DeviceCommunicatorFactory* const factory = device_communicator_factory(device.type);
  Card mine;
  put(mine.missing, sizeof mine.missing, factory ? factory->missing() : "the backend has none");
  if (factory && !*mine.missing) {
    const std::string identity = factory->identity(device.index);
    if (!identity.empty())
      put(mine.identity, sizeof mine.identity,
          fmt::format("{} {}", world().host_of(Context::current().rank()), identity));
    if (group.index() == 0) factory->make_id(mine.id);
  }
  std::vector<Card> cards(ranks.size());
  group.all_gather_bytes({"device communicator"}, &mine, sizeof mine, cards.data());
  std::string why;
  for (size_t i = 0; i < cards.size() && why.empty(); ++i) {
    if (*cards[i].missing) why = fmt::format("rank {} has no library for it: {}", ranks[i], cards[i].missing);
    for (size_t k = 0; k < i && why.empty(); ++k)
      if (*cards[i].identity && std::strcmp(cards[i].identity, cards[k].identity) == 0)
        why = fmt::format("ranks {} and {} share a device", ranks[k], ranks[i]);
  }
  if (factory && why.empty()) return factory->make(ranks, group.index(), cards[0].id, device.index);
  if (group.index() == 0)
    std::fprintf(stderr, "holon: data of the %s devices of ranks %s goes through host memory: %s.\n", name(device.type),
                 ranks_text(ranks).c_str(), why.c_str());
  return nullptr;
}

}  // namespace

void set_device_communicator_factory(DeviceType type, DeviceCommunicatorFactory* factory) {
  at_index(factories, type) = factory;
  set_device_check(&check_device_communication);
}
DeviceCommunicatorFactory* device_communicator_factory(DeviceType type) { return at_index(factories, type); }

DeviceCommunicator* device_communicator(std::span<const int> ranks, Device device) {
  auto& known = Context::current().part<DevicePart>().known;
  DevicePart::Group key{device.type, {ranks.begin(), ranks.end()}};
  if (auto found = known.find(key); found != known.end()) return found->second.get();
  auto made = connect(ranks, device);
  return known.emplace(std::move(key), std::move(made)).first->second.get();
}

void note_device_failure() { any_failed.store(true); }

void check_device_communication() {
  if (!any_failed.load(std::memory_order_relaxed)) [[likely]]
    return;
  for (auto& [key, group] : Context::current().part<DevicePart>().known)
    if (group) group->check();
  check_device_links();
}

DeviceOverlapScope::DeviceOverlapScope() {
  auto& part = Context::current().part<DevicePart>();
  if (part.overlapping++ == 0) part.last_call = nullptr;
}
DeviceOverlapScope::~DeviceOverlapScope() { --Context::current().part<DevicePart>().overlapping; }
bool DeviceCommunicator::overlaps() { return Context::current().part<DevicePart>().overlapping > 0; }
DeviceCommunicator* DeviceCommunicator::follows_in_overlap() {
  return std::exchange(Context::current().part<DevicePart>().last_call, this);
}
bool device_overlap_wanted() { return settings::text("HOLON_OVERLAP") != "0"; }

void join_device_communication() {
  for (auto& [key, group] : Context::current().part<DevicePart>().known)
    if (group) group->join();
}

bool calls_need_the_host() { return settings::flag("HOLON_CHECK") || log::enabled(log::Channel::kComm); }

RecordedCalls::Scope::Scope(RecordedCalls& calls) : calls_(calls), before_(stats()) {
  Context::current().part<DevicePart>().recording = &calls;
}
RecordedCalls::Scope::~Scope() {
  Context::current().part<DevicePart>().recording = nullptr;
  calls_.made_ = {stats().calls - before_.calls, stats().bytes_read - before_.bytes_read,
                  stats().bytes_received - before_.bytes_received};
  stats() = before_;
}

void RecordedCalls::note(DeviceCommunicator& group, const CallInfo& info) {
  auto of = std::find_if(groups_.begin(), groups_.end(), [&](const Of& o) { return o.group == &group; });
  if (of == groups_.end()) of = groups_.insert(of, {&group, info.op, info.dtype, info.shape});
  ++of->calls;
}

void RecordedCalls::launch(DeviceGraph& graph) {
  check_device_communication();
  join_device_communication();
  stats().calls += made_.calls;
  stats().bytes_read += made_.bytes_read;
  stats().bytes_received += made_.bytes_received;
  for (Of& o : groups_) o.group->before_launch();
  graph.launch();
  for (Of& o : groups_) {
    std::string what = o.op;
    if (o.calls > 1) what += fmt::format(" and {} more calls recorded with it", o.calls - 1);
    o.group->after_launch({what.c_str(), o.dtype, o.shape});
  }
}

void DeviceCommunicator::begin(const CallInfo& info, uint64_t count) {
  check();
  ++stats().calls;
  if (log::enabled(log::Channel::kComm))
    log::line(log::Channel::kComm, fmt::format("{} on devices of ranks {}", info.op, ranks_text(ranks_)));
  if (RecordedCalls* recording = Context::current().part<DevicePart>().recording) return recording->note(*this, info);
  static const bool compares = settings::flag("HOLON_CHECK");
  if (!compares) return;
  CallInfo all = info;
  all.fingerprint = hash_combine(info.fingerprint, count);
  all.continues = true;
  Communicator& group = communicator(ranks_);
  group.open(all, nullptr, 0);
  group.close();
}

void DeviceCommunicator::pull(const CallInfo& info, const GroupPulls& pulls, const Array& in, const Array& out) {
  constexpr size_t kMost = 4096;
  if (exchanges_.size() > kMost) exchanges_.clear();
  std::shared_ptr<const DeviceExchange> made;
  auto& exchange = pulls.key() ? exchanges_[pulls.key()] : made;
  if (!exchange) exchange = std::make_shared<const DeviceExchange>(size(), index_, pulls);
  note_bytes(to_size(pulls.elements_read(index_)) * size_bytes(info.dtype));
  exchange->run(*this, info, in, out);
}

void DeviceCommunicator::all_reduce(const CallInfo& info, const void* in, void* out, int64_t count, DType dtype) {
  begin(info, static_cast<uint64_t>(count));
  if (count) do_all_reduce(info, in, out, count, dtype);
}
void DeviceCommunicator::reduce_scatter(const CallInfo& info, const void* in, void* out, int64_t count, DType dtype) {
  begin(info, static_cast<uint64_t>(count));
  if (count) do_reduce_scatter(info, in, out, count, dtype);
}
void DeviceCommunicator::all_gather(const CallInfo& info, const void* in, void* out, int64_t count, DType dtype) {
  begin(info, static_cast<uint64_t>(count));
  if (count) do_all_gather(info, in, out, count, dtype);
}
void DeviceCommunicator::broadcast(const CallInfo& info, void* data, size_t bytes, int root_index) {
  begin(info, bytes);
  if (bytes) do_broadcast(info, data, bytes, root_index);
}
void DeviceCommunicator::exchange(const CallInfo& info, std::span<const DeviceMessage> sends,
                                  std::span<const DeviceMessage> receives) {
  begin(info, 0);
  do_exchange(info, sends, receives);
}

}  // namespace holon::comm
