#include "holon/checkpoint/transfer.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/base/settings.h"
#include "holon/checkpoint/core/pieces.h"
#include "holon/checkpoint/core/printable.h"
#include "holon/checkpoint/core/tree.h"
#include "holon/checkpoint/core/world.h"
#include "holon/checkpoint/loading.h"
#include "holon/checkpoint/parts.h"
#include "holon/checkpoint/transfer/address.h"
#include "holon/checkpoint/transfer/manifest.h"
#include "holon/checkpoint/transfer/part_server.h"
#include "holon/checkpoint/transfer/transfer_source.h"
#include "holon/checkpoint/transfer/wire.h"
#include "holon/comm/bootstrap/address.h"
#include "holon/comm/bootstrap/authenticated_listener.h"
#include "holon/comm/bootstrap/inherited.h"
#include "holon/comm/bootstrap/liveness.h"
#include "holon/kernels/on_device.h"

namespace holon {

using namespace checkpoint;

namespace {

using comm::Address;
using comm::Fd;
using comm::Io;
using Clock = std::chrono::steady_clock;

constexpr double kAttemptSeconds = 5, kAnswerSeconds = 10, kLeastSeconds = 0.5;
// The system gives connections a port for a moment, perhaps this one.
constexpr double kInUseSeconds = 3;
constexpr double kLastWords = 2;  // seconds for telling the other job of an error

// One end of a transfer, the same on all ranks of a job.
struct End {
  const char* op;
  std::string address;
  HostPort place;
  std::string token;
  double timeout_s, limit_s;  // until the other job comes; for each wait after that

  End(const char* op, const std::string& address, const TransferOptions& options)
      : op(op),
        address(address),
        place(parse_address(op, address)),
        token(options.token ? *options.token : settings::text("HOLON_TRANSFER_TOKEN")),
        timeout_s(options.timeout_s),
        limit_s(settings::number("HOLON_COMM_TIMEOUT_S")) {
    if (!(timeout_s >= 0)) fail_value("{}: timeout is {}. Give a number of seconds.", op, timeout_s);
  }

  void check_token(const Address& at) const {
    if (token.empty() && !at.loopback())
      fail_value("{} is reached from other hosts, and jobs on several hosts need a token, so that no other program "
                 "takes part. Set HOLON_TRANSFER_TOKEN to the same secret on all ranks of both jobs, e.g. what "
                 "`openssl rand -hex 16` prints, or pass it as token; without one use \"localhost:{}\".",
                 address, place.port);
  }
};

// The connection of rank 0 to the other one's.
Fd connect_to_receiver(const End& end) {
  using State = comm::Handshake::State;
  const auto until = comm::after(end.timeout_s);
  auto pause = std::chrono::milliseconds(1);
  for (std::string why;;) {
    const auto addresses = comm::resolve(end.place.host, end.place.port, &why);
    if (addresses.empty()) why = "the name has no network address: " + why;
    for (const Address& address : addresses) {
      end.check_token(address);
      const double left_s = std::max(std::chrono::duration<double>(until - Clock::now()).count(), kLeastSeconds);
      const double answer_s = std::min(left_s, kAnswerSeconds);
      Fd fd = comm::connect_once(address, comm::after(std::min(left_s, kAttemptSeconds)), heartbeat);
      if (!fd) {
        why = strerror(errno);
        continue;
      }
      comm::close_in_children(fd.get());
      comm::keep_alive(fd.get(), comm::heartbeat_limit_s());
      switch (comm::greet(fd.get(), end.token, kControlPurpose, 0, comm::after(answer_s), heartbeat)) {
        case State::kDone: {
          // Of several jobs that come at once, one is taken.
          Message taken;
          if (read_message(fd.get(), &taken, kMostText, answer_s, heartbeat) == Io::kDone) return fd;
          why = "it has taken another job, or ended";
          break;
        }
        case State::kRefused:
          fail_runtime(
              "what listens at {} refused this job: its token is different, or it is another program of Holon. "
              "Pass the same token to both jobs (HOLON_TRANSFER_TOKEN), and the address that the other one "
              "passes to receive().",
              end.address);
        case State::kStranger:
          fail_runtime("what listens at {} is not a job that receives. Choose another port.", end.address);
        case State::kGoesOn: why = "it closed the connection without an answer";
      }
    }
    if (Clock::now() + pause > until)
      fail_runtime("no job receives at {} ({}) within {:.3g} s. Call receive() in the other job with this address; "
                   "timeout raises the limit.",
                   end.address, why, end.timeout_s);
    heartbeat();
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::milliseconds(50));
  }
}

// Where this rank listens for the other job: at the address by which this host reaches it.
Fd listen_for(const std::string& receiver_ip) {
  std::string why;
  auto found = comm::resolve(receiver_ip, 9, &why);  // no packet is sent to this port
  if (found.empty()) fail_runtime("{} is not an address: {}.", receiver_ip, why);
  Address here = found[0];
  if (!here.loopback()) {
    Fd probe(::socket(here.storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (!probe || ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&here.storage), here.size) != 0)
      fail_runtime("this host has no way to {}: {}.", receiver_ip, strerror(errno));
    const std::string ip = comm::network_address(comm::local_address(probe.get()), false).ip;
    found = comm::resolve(ip, 0, &why);
    if (found.empty()) fail_runtime("{} is not an address: {}.", ip, why);
    here = found[0];
  }
  here.set_port(0);
  Fd listener = comm::listen_tcp(here);
  if (!listener) fail_runtime("cannot listen at {} for the other job: {}.", here.ip(), strerror(errno));
  return listener;
}

// This rank's parts, in the host's memory. In a step of together().
std::unordered_map<std::string, ServedPart> own_parts(const Flat& flat) {
  const int rank = Context::current().rank();
  std::unordered_map<std::string, ServedPart> out;
  for (auto& [name, t] : flat.tensors) {
    if (t.is_local() && rank != 0) continue;
    Region region = whole(t.shape());
    if (t.is_global()) {
      const int index = t.placement().index_of(rank);
      if (index < 0) continue;
      region = region_of(t.shape(), t.placement(), t.nd_sbp(), index);
    }
    if (region.shape.numel() == 0) continue;
    if (name.size() > kMostName)
      fail_value("the name of a tensor has {} bytes. Give it one of at most {}.", name.size(), kMostName);
    out.emplace(name, ServedPart{region, kernels::on_device(t.array(), {})});
    heartbeat();
  }
  return out;
}

Manifest manifest_of(const Flat& flat, const std::string& session, std::vector<std::string> addresses) {
  Manifest out{flat.tree, std::move(addresses), session, {}};
  for (auto& [name, t] : flat.tensors) {
    ManifestTensor tensor{{name, t.dtype(), t.shape(), 0, 0}, {}};
    if (t.is_global()) tensor.layout = layout_of(*t.spec());
    out.tensors.push_back(std::move(tensor));
  }
  return out;
}

// Returns when the other job has everything.
void wait_until_done(int fd, const End& end) {
  for (;;) {
    Message message;
    switch (read_message(fd, &message, kMostText, end.limit_s, heartbeat)) {
      case Io::kDone: break;
      case Io::kClosed:
        fail_runtime("the job that receives at {} ended before it had everything. Read its output first.", end.address);
      case Io::kLate:
        fail_runtime("the job that receives at {} has been silent for {:.3g} s. Is it stopped? HOLON_COMM_TIMEOUT_S "
                     "raises the limit.",
                     end.address, end.limit_s);
    }
    if (message.kind == MessageKind::kDone) return;
    if (message.kind == MessageKind::kFailed)
      fail_runtime("the job that receives at {} failed: {}", end.address, message.text);
  }
}

// Tells the other job why there is no more; it may be gone.
void tell_failure(int fd, std::string why) {
  why.resize(std::min<size_t>(why.size(), kMostText));
  try {
    write_message(fd, {MessageKind::kFailed, why}, kLastWords, [] {});
  } catch (const std::exception&) {
  }
}

// Runs f. Errors begin with the name of the call, whatever the number of ranks.
template <class F>
auto named(const End& end, F&& f) {
  try {
    return f();
  } catch (const Error& e) {
    const std::string start = std::string(end.op) + ": ";
    if (std::string_view(e.what()).starts_with(start)) throw;
    throw Error(e.kind(), start + e.what());
  }
}

// Runs f; the other job hears of what it throws.
template <class F>
auto telling(const Fd& control, F&& f) {
  try {
    return f();
  } catch (const std::exception& e) {
    if (control) tell_failure(control.get(), e.what());
    throw;
  }
}

void export_flat(const Flat& flat, const End& end) {
  BlockingScope unlocked;
  const bool first = Context::current().rank() == 0;
  Fd control;
  std::unordered_map<std::string, ServedPart> parts;
  std::string session, receiver_ip;
  together(end.op, [&] {
    parts = own_parts(flat);
    if (!first) return;
    session = comm::random_token();
    control = connect_to_receiver(end);
    receiver_ip = comm::peer_address(control.get()).ip();
  });
  telling(control, [&] {
    session = share_from(end.op, 0, session);
    receiver_ip = share_from(end.op, 0, receiver_ip);
    std::unique_ptr<PartServer> server;
    auto addresses = results_together(end.op, [&] {
      Fd listener = listen_for(receiver_ip);
      const std::string at = comm::local_address(listener.get()).str();
      server = std::make_unique<PartServer>(std::move(listener), end.token, session, std::move(parts));
      return at;
    });
    // The others are in the next exchange until rank 0 is done; their servers answer meanwhile.
    together(end.op, [&] {
      if (!first) return;
      const Message manifest{MessageKind::kManifest, manifest_text(manifest_of(flat, session, std::move(addresses)))};
      if (manifest.text.size() > kMostManifest)
        fail_value("the names and layouts of the tensors have {} bytes. Export at most {} at once.",
                   manifest.text.size(), kMostManifest);
      if (write_message(control.get(), manifest, end.limit_s, heartbeat) == Io::kLate)
        fail_runtime("the job that receives at {} has taken nothing for {:.3g} s. Is it stopped? HOLON_COMM_TIMEOUT_S "
                     "raises the limit.",
                     end.address, end.limit_s);
      wait_until_done(control.get(), end);
    });
  });
}

}  // namespace

void export_to(const Value& value, const std::string& address, const TransferOptions& options) {
  NoGradGuard no_grad;
  const End end("export", address, options);
  Flat flat = flatten(value, end.op);
  if (Context::current().world_size() > 1) check_alike(flat.tensors, "to " + address, end.op);
  sum_partials(flat.tensors);
  named(end, [&] { export_flat(flat, end); });
}

namespace {

std::vector<Fd> listen_at(const End& end) {
  const auto until = comm::after(std::min(end.timeout_s, kInUseSeconds));
  for (std::string why;;) {
    const auto addresses = comm::resolve(end.place.host, end.place.port, &why);
    if (addresses.empty())
      fail_runtime("{} has no network address: {}. Pass a name or an address of this host.", end.address, why);
    std::vector<Fd> sockets;
    int error = 0;
    for (const Address& address : addresses) {
      end.check_token(address);
      if (Fd socket = comm::listen_tcp(address))
        sockets.push_back(std::move(socket));
      else if (error != EADDRINUSE)
        error = errno;
    }
    // A name may have addresses that this host has not.
    if (!sockets.empty() && error != EADDRINUSE) return sockets;
    if (error != EADDRINUSE)
      fail_runtime("cannot listen at {}: {}. Pass an address of this host (it has {}).", end.address, strerror(error),
                   comm::list_interfaces());
    if (Clock::now() >= until)
      fail_runtime("cannot listen at {}: {}. Another program uses the port, or another receive(): choose another.",
                   end.address, strerror(error));
    heartbeat();
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// The connection of the other job's rank 0.
Fd accept_exporter(const End& end) {
  comm::AuthenticatedListener listener(listen_at(end), end.token, kControlPurpose);
  const auto until = comm::after(end.timeout_s);
  std::vector<pollfd> fds;
  for (;;) {
    auto known = listener.take();
    for (auto& c : known)
      if (write_message(c.fd.get(), {MessageKind::kBusy, ""}, kLastWords, heartbeat) == Io::kDone)
        return std::move(c.fd);  // the others see a closed connection, and try again
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - Clock::now()).count();
    if (left <= 0)
      fail_runtime("no job has exported to {} within {:.3g} s{}. Call export in the other job with this address; "
                   "timeout raises the limit.",
                   end.address, end.timeout_s,
                   listener.refused() == 0
                       ? ""
                       : fmt::format(" ({} connections had another token: pass the same to both jobs)",
                                     listener.refused()));
    fds.clear();
    listener.add_to(fds);
    ::poll(fds.data(), fds.size(), static_cast<int>(std::min<int64_t>(left, 100)));
    heartbeat();
  }
}

std::string read_manifest(int fd, const End& end) {
  Message message;
  switch (read_message(fd, &message, kMostManifest, end.limit_s, heartbeat)) {
    case Io::kDone: break;
    case Io::kClosed:
      fail_runtime("the job that exports to {} ended before it had said what. Read its output first.", end.address);
    case Io::kLate:
      fail_runtime(
          "the job that exports to {} has been silent for {:.3g} s. Is it stopped? HOLON_COMM_TIMEOUT_S raises "
          "the limit.",
          end.address, end.limit_s);
  }
  if (message.kind == MessageKind::kFailed)
    fail_runtime("the job that exports to {} failed: {}", end.address, message.text);
  if (message.kind != MessageKind::kManifest)
    fail_runtime("the job that exports to {} does not say what. It is not of this version of Holon.", end.address);
  return std::move(message.text);
}

// Tells the other job every second that this one is at it, as long as it lives.
class Busy {
 public:
  Busy(int fd, double limit_s) {
    const auto every = std::chrono::milliseconds(static_cast<int>(std::min(limit_s / 4, 1.0) * 1000));
    thread_ = std::thread([this, fd, every, limit_s] {
      leave_host_language();
      std::unique_lock lock(mutex_);
      while (!changed_.wait_for(lock, every, [&] { return over_; }))
        if (write_message(fd, {MessageKind::kBusy, ""}, limit_s, [] {}) != Io::kDone) return;
    });
  }
  ~Busy() {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

// then: what is to be done with the value before the other job hears that all is well.
template <class Then>
auto receive_then(const std::string& address, const LoadOptions& options, const TransferOptions& transfer, Then then) {
  NoGradGuard no_grad;
  const End end("receive", address, transfer);
  check_options(end.op, options);
  if (options.global_src_rank) fail_value("receive: every rank receives its part. Leave global_src_rank out.");
  return named(end, [&] {
    const std::string name = "the job that exports to " + address;
    const bool first = Context::current().rank() == 0;
    Fd control;
    std::string text;
    together(end.op, [&] {
      if (first) control = accept_exporter(end);
    });
    return telling(control, [&] {
      together(end.op, [&] {
        if (first) text = read_manifest(control.get(), end);
      });
      std::unique_ptr<Busy> busy;
      if (first) busy = std::make_unique<Busy>(control.get(), end.limit_s);
      text = share_from(end.op, 0, text);
      Loaded loaded = load_together(
          end.op,
          [&] {
            Manifest manifest = parse_manifest(text, name);
            text.clear();
            return as_requested(transfer_source(std::move(manifest), name, end.token, end.limit_s), options);
          },
          options);
      auto result = then(std::move(loaded.value));
      busy.reset();
      if (first) write_message(control.get(), {MessageKind::kDone, ""}, end.limit_s, heartbeat);
      return result;
    });
  });
}

}  // namespace

Value receive(const std::string& address, const LoadOptions& options, const TransferOptions& transfer) {
  return receive_then(address, options, transfer, [](Value value) { return value; });
}

nn::LoadResult receive_into(nn::Module& module, const std::string& address, const LoadOptions& options,
                            const TransferOptions& transfer) {
  LoadOptions into = options;
  into.like = module.state_dict();
  if (into.like.empty()) fail_value("receive: the module has no parameters and no buffers to receive into.");
  return receive_then(address, into, transfer,
                      [&](const Value& value) { return module.load_state_dict(value.state_dict(), options.strict); });
}

HostPort checkpoint::parse_address(const char* op, std::string_view address) {
  const size_t colon = address.rfind(':');
  HostPort out;
  if (colon != std::string_view::npos) {
    out.host = address.substr(0, colon);
    const std::string_view port = address.substr(colon + 1);
    const auto [stop, error] = std::from_chars(port.data(), port.data() + port.size(), out.port);
    const bool bracketed = out.host.starts_with('[') && out.host.ends_with(']');
    if (error == std::errc() && stop == port.data() + port.size() && out.port >= 1 && out.port <= 65535 &&
        !out.host.empty() && (bracketed || out.host.find(':') == std::string::npos))
      return out;
  }
  fail_value("{}: the address is \"{}\". Give host and port, such as \"node1:29600\" or \"[fd00::1]:29600\".", op,
             printable(address));
}

}  // namespace holon
