#include "holon/comm/device/device_link.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <tuple>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/fork.h"
#include "holon/base/log.h"
#include "holon/base/settings.h"
#include "holon/comm/core/waiting.h"
#include "holon/comm/device/device_communicator.h"
#include "holon/comm/device/link_mail.h"

namespace holon::comm {

namespace {

// What each side says first, and what the sender says then.
struct Card {
  char missing[120] = "";
  char identity[64] = "";
};
struct Ticket {
  std::byte id[DeviceCommunicatorFactory::kIdBytes] = {};
};
static_assert(sizeof(Card) <= LinkMail::kCardBytes && sizeof(Ticket) <= LinkMail::kCardBytes);

void put(char* to, size_t size, const std::string& text) { to[text.copy(to, size - 1)] = 0; }

struct DeviceLinks {
  std::map<std::tuple<int, int, DeviceType, int>, std::unique_ptr<DeviceLink>> known;
  bool told = false;  // the user, that there is none
};

}  // namespace

struct DeviceLink::Making {
  enum State : int { kBegun, kInLibrary, kReady, kNone };
  std::shared_ptr<World> world;
  int from, to, key;
  Device device;
  std::unique_ptr<Context> context;  // of the thread that makes it
  std::atomic<int> state{kBegun};
  std::atomic<bool> dropped{false};  // nobody wants it any more
  std::unique_ptr<LinkMail> mail;
  std::unique_ptr<DeviceWire> wire;
  std::string why;  // kNone
  const ForkMark mark = {};

  std::string give_up(int64_t since_ns) const {
    const int peer = world->rank() == from ? to : from;
    if (dropped.load()) return "the rank has ended";
    if (auto& aborted = world->block().aborted(); aborted.is_set()) return aborted.text;
    if (world->host_of(peer) == world->host_of(world->rank()))
      if (const std::string how = world->ended(peer); !how.empty()) return fmt::format("rank {} {}", peer, how);
    if (static_cast<double>(now_ns() - since_ns) > world->timeout_s() * 1e9)
      return fmt::format("rank {} did not arrive within {:g} s", peer, world->timeout_s());
    return {};
  }

  void make() {
    const int64_t begun = now_ns();
    auto timed_out = [&] { return give_up(begun); };
    const bool gives = world->rank() == from;
    std::array<std::byte, LinkMail::kCardBytes> mine{}, theirs{};
    DeviceCommunicatorFactory& factory = *device_communicator_factory(device.type);
    Card card, peer;
    put(card.missing, sizeof card.missing, factory.missing());
    if (!*card.missing)
      if (const std::string identity = factory.identity(device.index); !identity.empty())
        put(card.identity, sizeof card.identity, fmt::format("{} {}", world->host_of(world->rank()), identity));
    mail = make_link_mail(*world, from, to, key);
    std::memcpy(mine.data(), &card, sizeof card);
    mail->exchange(0, mine.data(), theirs.data(), timed_out);
    std::memcpy(&peer, theirs.data(), sizeof peer);
    for (auto [who, text] : {std::pair{gives ? from : to, card.missing}, {gives ? to : from, peer.missing}})
      if (*text) fail_runtime("rank {} has no library for it: {}", who, text);
    if (*card.identity && std::strcmp(card.identity, peer.identity) == 0)
      fail_runtime("ranks {} and {} share a device", from, to);
    Ticket ticket;
    if (gives) factory.make_id(ticket.id);
    std::memcpy(mine.data(), &ticket, sizeof ticket);
    mail->exchange(1, mine.data(), theirs.data(), timed_out);
    if (!gives) std::memcpy(&ticket, theirs.data(), sizeof ticket);
    state.store(kInLibrary);
    wire = factory.make_wire(from, to, ticket.id, device.index);
    state.store(kReady);
  }

  static void run(std::shared_ptr<Making> self) {
    leave_host_language();
    ContextGuard guard(*self->context);
    adopt_world(self->world);
    try {
      self->make();
    } catch (const std::exception& e) {
      self->why = e.what();
      self->state.store(kNone);
    }
    self->context.reset();
  }
};

DeviceLink::DeviceLink(int from, int to, Device device)
    : from_(from), to_(to), device_(device), making_(std::make_shared<Making>()) {
  making_->world = shared_world();
  making_->from = from;
  making_->to = to;
  making_->key = channel();
  making_->device = device;
  const Context& c = Context::current();
  making_->context = std::make_unique<Context>(c.rank(), c.world_size(), c.local_rank(), c.local_world_size());
  if (c.ranks_are_threads()) making_->context->set_ranks_are_threads();
  std::thread(&Making::run, making_).detach();
}

// A thread inside the library cannot be called back: it is left to itself, and so is what it makes.
DeviceLink::~DeviceLink() {
  making_->dropped.store(true);
  BlockingScope unlocked;
  while (making_->state.load() == Making::kBegun && !making_->mark.inherited())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

DeviceWire& DeviceLink::wire() {
  HOLON_CHECK(making_->state.load() == Making::kReady, "the link {} -> {} is not connected", from_, to_);
  return *making_->wire;
}

bool DeviceLink::open() {
  const int state = making_->state.load();
  if (state != Making::kReady) {
    if (bool& told = Context::current().part<DeviceLinks>().told; state == Making::kNone && !told) {
      told = true;
      std::fprintf(stderr, "holon: what rank %d sends to rank %d goes through host memory: %s.\n", from_, to_,
                   making_->why.c_str());
    }
    return false;
  }
  making_->wire->check();
  while (done_ < count_ && making_->wire->done(done_ + 1)) ++done_;
  making_->mail->note_done(done_);
  return making_->mail->has_room(count_ + 1);
}

uint64_t DeviceLink::send(const CallInfo& info, const Array& message) {
  const uint64_t number = wire().send(info, message.bytes(), message.nbytes());
  making_->mail->tell_size(number, message.nbytes());
  ++stats().device_messages;
  if (log::enabled(log::Channel::kComm))
    log::line(log::Channel::kComm,
              fmt::format("{} from the device of rank {} to that of rank {}, message {}, {} bytes", info.op, from_, to_,
                          number, message.nbytes()));
  return count_ = number;
}

void DeviceLink::await(const CallInfo& info) {
  if (making_->state.load() == Making::kReady) [[likely]]
    return;
  BlockingScope unlocked;
  for (const int64_t begun = now_ns(); making_->state.load() != Making::kReady;) {
    std::string why = making_->state.load() == Making::kNone ? making_->why : making_->give_up(begun);
    if (!why.empty()) {
      why = fmt::format("{}: rank {} has sent to the device of rank {}, which cannot receive: {}.", info.op, from_, to_,
                        why);
      making_->world->abort(why);
      fail_runtime("{}", why);
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

Array DeviceLink::receive(const CallInfo& info, uint64_t number, const Array& into) {
  await(info);
  auto fits = [&](uint64_t bytes) {
    if (bytes != into.nbytes())
      fail_runtime("{}: rank {} has sent {} bytes, and rank {} expects {}.", info.op, from_, bytes, to_, into.nbytes());
  };
  if (number <= count_) {
    const auto found = early_.find(number);
    HOLON_CHECK(found != early_.end(), "message {} of the link {} -> {} has been received", number, from_, to_);
    const Array a = found->second;
    early_.erase(found);
    fits(a.nbytes());
    Array as = a.view(into.shape, contiguous_strides(into.shape));
    as.dtype = into.dtype;
    return as;
  }
  const int64_t begun = now_ns();
  auto next_size = [&] { return making_->mail->size_of(count_ + 1, [&] { return making_->give_up(begun); }); };
  while (count_ + 1 < number) {
    const Array a = Array::empty({static_cast<int64_t>(next_size())}, uint8, device_);
    count_ = wire().receive(info, a.bytes(), a.nbytes());
    wire().uses(a);
    early_[count_] = a;
  }
  fits(next_size());
  count_ = wire().receive(info, into.bytes(), into.nbytes());
  return into;
}

void DeviceLink::check() {
  if (making_->state.load() == Making::kReady) making_->wire->check();
}

double DeviceLink::timeout_s() const { return making_->world->timeout_s(); }

bool DeviceLink::idle() {
  const Making& m = *making_;
  if (m.mark.inherited()) return true;
  if (m.state.load() != Making::kReady || m.world->rank() != from_ || count_ == 0) return true;
  if (m.world->block().aborted().is_set()) return true;
  const bool seen = m.world->host_of(to_) == m.world->host_of(from_);
  return wire().done(count_) || (seen && !m.world->ended(to_).empty());
}

DeviceLink* device_link(int from, int to, Device device) {
  static const bool wanted = settings::flag("HOLON_CUDA_LINKS");
  if (!wanted || !device_communicator_factory(device.type)) return nullptr;
  auto& link = Context::current().part<DeviceLinks>().known[{from, to, device.type, device.index}];
  if (!link) link = std::make_unique<DeviceLink>(from, to, device);
  return link.get();
}

void check_device_links() {
  for (auto& [key, link] : Context::current().part<DeviceLinks>().known) link->check();
}

// The host language may be gone by now.
void finish_device_links(Context& context) {
  const int64_t begun = now_ns();
  for (auto& [key, link] : context.part<DeviceLinks>().known)
    while (!link->idle() && static_cast<double>(now_ns() - begun) < link->timeout_s() * 1e9)
      std::this_thread::sleep_for(std::chrono::microseconds(200));
}

}  // namespace holon::comm
