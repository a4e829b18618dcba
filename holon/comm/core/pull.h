// What the members of a group take from each other, element by element: the one operation that every transport carries
// out (Communicator::pull, DeviceCommunicator::pull, PointToPoint).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "holon/array/dims.h"
#include "holon/array/dtype.h"
#include "holon/base/small_vec.h"

namespace holon::comm {

// Positions among the members; most pulls have one.
using Owners = SmallVec<int, 4>;

// A region that a member copies from one peer, or sums over several, which then are laid out alike. Starts and strides
// are in elements, src's in the owner's part and dst's in the result.
struct Pull {
  Owners owners;  // in the order of summation
  int64_t src_start = 0;
  Dims src_strides;
  int64_t dst_start = 0;
  Dims dst_strides;
  Dims shape;
};

// `count` elements side by side, from one place to another.
inline Pull row_pull(Owners owners, int64_t src, int64_t dst, int64_t count) {
  return {std::move(owners), src, {1}, dst, {1}, {count}};
}

// The collective that pulls amount to, for transports that have a call for it.
enum class Collective : uint8_t { kNone, kAllReduce, kAllGather, kReduceScatter };

// What all members of a group pull in one call. Pure: every member finds the same for every member.
//
// Pulls may come in phases: those of the first read the members' parts, those of later ones what the members have of
// their results by then.
class GroupPulls {
 public:
  virtual ~GroupPulls() = default;
  virtual int phases() const { return 1; }
  virtual std::span<const Pull> mine(int phase) const = 0;  // of the member that calls
  virtual std::vector<Pull> of(int member, int phase) const = 0;
  // Tells these pulls from all others in the group, so that a transport may keep what it has derived from them; 0: it
  // keeps nothing.
  virtual uint64_t key() const { return 0; }
  virtual Collective collective() const { return Collective::kNone; }

  // What the calling member, `me`, reads from others.
  virtual int64_t elements_read(int me) const;

  // Does those of the calling member, as pull_all() does.
  virtual void run(int phase, DType dtype, std::span<const std::byte* const> parts, std::byte* dst,
                   size_t dst_bytes) const;
};

using PullsOf = std::function<std::vector<Pull>(int member)>;

// Those that a function returns, in one phase.
class PullsByMember final : public GroupPulls {
 public:
  PullsByMember(int me, PullsOf pulls_of, uint64_t key = 0)
      : pulls_of_(std::move(pulls_of)), mine_(pulls_of_(me)), key_(key) {}
  std::span<const Pull> mine(int) const override { return mine_; }
  std::vector<Pull> of(int member, int) const override { return pulls_of_(member); }
  uint64_t key() const override { return key_; }

 private:
  const PullsOf pulls_of_;
  const std::vector<Pull> mine_;
  const uint64_t key_;
};

// Does the pulls: member i's part begins at parts[i]. dst_bytes: of the whole result.
void pull_all(std::span<const Pull> pulls, DType dtype, std::span<const std::byte* const> parts, std::byte* dst,
              size_t dst_bytes);

}  // namespace holon::comm
