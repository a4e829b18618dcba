#include "holon/checkpoint/transfer/transfer_source.h"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/checkpoint/core/pieces.h"
#include "holon/checkpoint/core/printable.h"
#include "holon/checkpoint/core/world.h"
#include "holon/checkpoint/transfer/address.h"
#include "holon/checkpoint/transfer/wire.h"
#include "holon/comm/bootstrap/inherited.h"
#include "holon/comm/bootstrap/liveness.h"
#include "holon/kernels/copy.h"

namespace holon::checkpoint {

namespace {

constexpr int64_t kAtOnce = int64_t{4} << 20;  // bytes that come within the time-out

// A rank of the job that exports.
struct Peer {
  comm::Fd fd;
  uint64_t bytes = 0;  // that this rank has requested of it
};

class TransferSource final : public Source {
 public:
  TransferSource(Manifest manifest, const std::string& name, const std::string& token, double limit_s)
      : manifest_(std::move(manifest)),
        name_(name),
        token_(token),
        limit_s_(limit_s),
        peers_(manifest_.addresses.size()) {
    for (auto& t : manifest_.tensors) tensors_.emplace(t.info.name, &t);
  }

  std::string name() const override { return name_; }
  std::string tree() const override { return manifest_.tree; }
  std::vector<TensorInfo> tensors() const override {
    std::vector<TensorInfo> out;
    for (auto& t : manifest_.tensors) out.push_back(t.info);
    return out;
  }
  const SavedLayout* layout(const std::string& tensor) const override {
    auto& layout = tensors_.at(tensor)->layout;
    return layout ? &*layout : nullptr;
  }
  StoredParts stored(const TensorInfo& info) const override {
    StoredParts out = Source::stored(info);
    out.regions.clear();
    for (auto& held : held_regions(*tensors_.at(info.name))) out.regions.push_back(held.region);
    out.block_bytes = 0;
    return out;
  }

  // All requests are sent before an answer is awaited. The regions of a tensor are held by different ranks: of each
  // there is one request at most.
  Array read(const std::string& tensor, const Dims& offset, const Dims& shape) override {
    const ManifestTensor& t = *tensors_.at(tensor);
    const Region wanted{offset, shape};
    Array out = Array::empty(shape, t.info.dtype);
    std::vector<std::pair<int, Region>> requests;
    if (shape.numel() > 0)
      for (auto& held : held_regions(t)) {
        const auto part = overlap_of(held.region, wanted);
        if (!part) continue;
        const int rank = least_used(held.ranks);
        at_index(peers_, rank).bytes += to_size(part->shape.numel()) * size_bytes(t.info.dtype);
        send(rank, {tensor, *part});
        requests.emplace_back(rank, *part);
      }
    for (auto& [rank, part] : requests) receive(rank, tensor, part, wanted, out);
    return out;
  }

 private:
  // Of ranks that hold the same; those of this job begin with different ones.
  int least_used(const std::vector<int>& ranks) const {
    const size_t n = ranks.size(), first = to_size(Context::current().rank()) % n;
    int best = ranks[first];
    for (size_t i = 1; i < n; ++i)
      if (int rank = ranks[(first + i) % n]; at_index(peers_, rank).bytes < at_index(peers_, best).bytes) best = rank;
    return best;
  }

  std::string peer_text(int rank) const {
    return fmt::format("rank {} of {} (at {})", rank, name_, printable(at_index(manifest_.addresses, rank)));
  }

  [[noreturn]] void fail_io(comm::Io io, int rank, const std::string& tensor) const {
    if (io == comm::Io::kLate)
      fail_runtime("{} has sent nothing of '{}' for {:.3g} s. Is it stopped, or the network slow? HOLON_COMM_TIMEOUT_S "
                   "raises the limit.",
                   peer_text(rank), printable(tensor), limit_s_);
    fail_runtime("{} closed the connection before it had sent all of '{}'. What happened is in that job's own error.",
                 peer_text(rank), printable(tensor));
  }

  int connected(int rank) {
    Peer& peer = at_index(peers_, rank);
    if (peer.fd) return peer.fd.get();
    using State = comm::Handshake::State;
    const HostPort place = parse_address("receive", at_index(manifest_.addresses, rank));
    std::string why;
    const auto addresses = comm::resolve(place.host, place.port, &why);
    if (addresses.empty()) fail_runtime("{} has no address: {}.", peer_text(rank), why);
    comm::Fd fd = comm::connect_once(addresses[0], comm::after(limit_s_), heartbeat);
    if (!fd)
      fail_runtime("{} cannot be reached: {}. Has it ended? Hosts of both jobs must reach each other, at any port.",
                   peer_text(rank), strerror(errno));
    comm::close_in_children(fd.get());
    comm::keep_alive(fd.get(), comm::heartbeat_limit_s());
    const auto state = comm::greet(fd.get(), token_, kPartsPurpose + manifest_.session,
                                   static_cast<uint32_t>(Context::current().rank()), comm::after(limit_s_), heartbeat);
    if (state != State::kDone)
      fail_runtime("{} {}.", peer_text(rank),
                   state == State::kRefused ? "has another token; set the same for all ranks of both jobs"
                       : state == State::kStranger
                       ? "is not Holon; something else is at this address"
                       : "does not answer, or has ended; what happened is in that job's own error");
    peer.fd = std::move(fd);
    return peer.fd.get();
  }

  void send(int rank, const Request& request) {
    const int fd = connected(rank);
    const std::string text = request_text(request);
    if (auto io = comm::write_all(fd, text.data(), text.size(), comm::after(limit_s_), heartbeat);
        io != comm::Io::kDone)
      fail_io(io, rank, request.tensor);
  }

  void receive(int rank, const std::string& tensor, const Region& part, const Region& wanted, Array& out) {
    const int fd = at_index(peers_, rank).fd.get();
    char head[kAnswerHead];
    if (auto io = comm::read_all(fd, head, sizeof head, comm::after(limit_s_), heartbeat); io != comm::Io::kDone)
      fail_io(io, rank, tensor);
    const uint64_t size = get_u64(head + 1), right = to_size(part.shape.numel()) * size_bytes(out.dtype);
    if (head[0] == 1 && size <= kMostText) {
      std::string why(size, '\0');
      if (auto io = comm::read_all(fd, why.data(), why.size(), comm::after(limit_s_), heartbeat); io != comm::Io::kDone)
        fail_io(io, rank, tensor);
      fail_runtime("{}: {}.", peer_text(rank), printable(why));
    }
    if (head[0] != 0 || size != right)
      fail_runtime("{} answers with {} bytes of '{}', and {} were requested. It is not of this version of Holon.",
                   peer_text(rank), size, printable(tensor), right);
    auto fill = [&](const Region& piece) {
      Array to = region_in(out, wanted, piece);
      if (to.is_contiguous()) return read_bytes(fd, rank, tensor, to);
      Array staged = Array::empty(piece.shape, out.dtype);
      read_bytes(fd, rank, tensor, staged);
      kernels::copy(staged, to);
    };
    if (region_in(out, wanted, part).is_contiguous())
      fill(part);
    else
      for_each_piece(part, size_bytes(out.dtype), kPieceBytes, fill);
  }

  void read_bytes(int fd, int rank, const std::string& tensor, const Array& to) {
    const auto n = static_cast<int64_t>(to.nbytes());
    for (int64_t at = 0; at < n; at += kAtOnce) {
      const int64_t size = std::min(kAtOnce, n - at);
      if (auto io = comm::read_all(fd, to.bytes() + at, to_size(size), comm::after(limit_s_), heartbeat);
          io != comm::Io::kDone)
        fail_io(io, rank, tensor);
      bytes_read_by_rank() += to_size(size);
      // The other ranks hear of it even where no byte is waited for.
      if (const auto now = std::chrono::steady_clock::now(); now >= look_) {
        heartbeat();
        look_ = now + std::chrono::milliseconds(100);
      }
    }
    if (to.dtype == DType::kBool &&
        std::any_of(to.bytes(), to.bytes() + n, [](std::byte b) { return std::to_integer<int>(b) > 1; }))
      fail_runtime("{}: '{}' contains an element that is not a bool.", peer_text(rank), printable(tensor));
  }

  const Manifest manifest_;
  const std::string name_, token_;
  const double limit_s_;
  std::vector<Peer> peers_;
  comm::Deadline look_{};
  std::unordered_map<std::string, const ManifestTensor*> tensors_;
};

}  // namespace

std::unique_ptr<Source> transfer_source(Manifest manifest, const std::string& name, const std::string& token,
                                        double limit_s) {
  return std::make_unique<TransferSource>(std::move(manifest), name, token, limit_s);
}

}  // namespace holon::checkpoint
