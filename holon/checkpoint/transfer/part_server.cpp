#include "holon/checkpoint/transfer/part_server.h"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <exception>
#include <iterator>
#include <list>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "holon/base/blocking.h"
#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/checkpoint/core/pieces.h"
#include "holon/checkpoint/core/printable.h"
#include "holon/checkpoint/transfer/wire.h"
#include "holon/comm/bootstrap/authenticated_listener.h"
#include "holon/kernels/copy.h"

namespace holon::checkpoint {

namespace {

constexpr size_t kTurn = size_t{8} << 20;  // bytes that one connection sends before the next one's turn
constexpr int kLookMs = 1000;

using Parts = std::unordered_map<std::string, ServedPart>;

bool inside(const Region& part, const Region& held) {
  if (part.shape.size() != held.shape.size()) return false;
  for (int a = 0; a < part.shape.size(); ++a)
    if (part.shape[a] < 1 || part.shape[a] > held.shape[a] || part.offset[a] < held.offset[a] ||
        part.offset[a] - held.offset[a] > held.shape[a] - part.shape[a])
      return false;
  return true;
}

// A rank of the other job. It sends a request when it has the answer to the last one.
class Connection {
 public:
  Connection(comm::Fd fd, const Parts& parts) : fd_(std::move(fd)), parts_(parts) {}

  int fd() const { return fd_.get(); }
  short events() const { return answering_ ? POLLOUT : POLLIN; }

  // Goes on as far as it can without waiting. False: the connection has ended.
  bool advance() {
    for (size_t sent = 0; sent < kTurn;) {
      if (!answering_) {
        if (!read(kRequestHead)) return open_;
        const size_t rest = request_rest(in_.data());
        if (rest == 0) return false;
        if (!read(kRequestHead + rest)) return open_;
        begin(parse_request(in_.data(), in_.data() + kRequestHead));
        in_.clear();
      }
      if (sent_ == left_.size() && !next_piece()) {
        answering_ = false;
        continue;
      }
      const ssize_t n = ::send(fd_.get(), left_.data() + sent_, left_.size() - sent_, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n < 0) return errno == EAGAIN || errno == EINTR;
      sent_ += to_size(n), sent += to_size(n);
    }
    return true;
  }

 private:
  // Whether so many bytes of the request are there.
  bool read(size_t size) {
    while (in_.size() < size) {
      char buffer[512];
      const ssize_t n = ::recv(fd_.get(), buffer, std::min(sizeof buffer, size - in_.size()), MSG_DONTWAIT);
      if (n <= 0) {
        open_ = n < 0 && (errno == EAGAIN || errno == EINTR);
        return false;
      }
      in_.append(buffer, to_size(n));
    }
    return true;
  }

  void begin(const Request& request) {
    answering_ = true;
    pieces_.clear();
    at_ = 0;
    auto it = parts_.find(request.tensor);
    if (it == parts_.end() || !inside(request.region, it->second.region)) {
      const std::string why = fmt::format("this rank does not have the region {} from {} of '{}'", request.region.shape,
                                          request.region.offset, printable(request.tensor));
      head_ = answer_head(true, why.size()) + why;
    } else {
      part_ = &it->second;
      const Array array = region_in(part_->array, part_->region, request.region);
      head_ = answer_head(false, array.nbytes());
      if (array.is_contiguous())
        pieces_ = {request.region};
      else
        for_each_piece(request.region, size_bytes(array.dtype), kPieceBytes,
                       [&](const Region& piece) { pieces_.push_back(piece); });
    }
    send_next({reinterpret_cast<const std::byte*>(head_.data()), head_.size()});
  }

  // False: all has been sent.
  bool next_piece() {
    if (at_ == pieces_.size()) return false;
    piece_ = region_in(part_->array, part_->region, pieces_[at_++]);
    if (!piece_.is_contiguous()) piece_ = kernels::contiguous(piece_);
    send_next({piece_.bytes(), piece_.nbytes()});
    return true;
  }

  void send_next(std::span<const std::byte> bytes) { left_ = bytes, sent_ = 0; }

  comm::Fd fd_;
  const Parts& parts_;
  bool open_ = true, answering_ = false;
  std::string in_, head_;
  const ServedPart* part_ = nullptr;
  std::vector<Region> pieces_;  // of the answer
  size_t at_ = 0;               // the next of them
  Array piece_;                 // that is being sent
  std::span<const std::byte> left_;
  size_t sent_ = 0;  // of these
};

std::vector<comm::Fd> only(comm::Fd fd) {
  std::vector<comm::Fd> all;
  all.push_back(std::move(fd));
  return all;
}

}  // namespace

class PartServer::Loop {
 public:
  Loop(comm::Fd listener, const std::string& token, const std::string& session, Parts parts)
      : parts_(std::move(parts)),
        listener_(only(std::move(listener)), token, kPartsPurpose + session),
        wake_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
        context_(Context::current().sibling()) {
    if (!wake_)
      fail_runtime("export: no descriptor is left for the connections to the other job: {}.", strerror(errno));
    thread_ = std::thread([this, threads = num_threads()] {
      leave_host_language();
      ContextGuard guard(*context_);
      set_num_threads(threads);
      try {
        run();
      } catch (const std::exception&) {
      }
      connections_.clear();  // nobody waits for what does not come
    });
  }

  ~Loop() {
    const uint64_t one = 1;
    if (::write(wake_.get(), &one, sizeof one) < 0) {  // it is signalled already
    }
    thread_.join();
  }

 private:
  void run() {
    std::vector<pollfd> fds;
    for (;;) {
      fds.assign(1, {wake_.get(), POLLIN, 0});
      for (auto& c : connections_) fds.push_back({c.fd(), c.events(), 0});
      const size_t known = fds.size();
      listener_.add_to(fds);
      const int ready = ::poll(fds.data(), fds.size(), kLookMs);
      if (ready < 0 && errno != EINTR) return;
      if (fds[0].revents) return;
      size_t i = 1;
      for (auto it = connections_.begin(); it != connections_.end(); ++i)
        it = ready > 0 && fds[i].revents && !advance(*it) ? connections_.erase(it) : std::next(it);
      if (ready <= 0 || std::any_of(fds.begin() + static_cast<std::ptrdiff_t>(known), fds.end(), [](auto& p) {
            return p.revents != 0;
          }))
        for (auto& c : listener_.take()) connections_.emplace_back(std::move(c.fd), parts_);
    }
  }

  // What fails for one rank (no memory for a piece) ends its connection, of which that rank hears.
  static bool advance(Connection& c) {
    try {
      return c.advance();
    } catch (const std::exception&) {
      return false;
    }
  }

  const Parts parts_;
  comm::AuthenticatedListener listener_;
  comm::Fd wake_;
  std::unique_ptr<Context> context_;
  std::list<Connection> connections_;
  std::thread thread_;
};

PartServer::PartServer(comm::Fd listener, const std::string& token, const std::string& session, Parts parts)
    : loop_(std::make_unique<Loop>(std::move(listener), token, session, std::move(parts))) {}

PartServer::~PartServer() = default;

}  // namespace holon::checkpoint
