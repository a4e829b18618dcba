#include "holon/ops/expert_exchange.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <optional>
#include <utility>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/boxing/exchange.h"
#include "holon/comm/core/communicator.h"
#include "holon/comm/core/world.h"
#include "holon/global/slice.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/expert_rows.h"
#include "holon/kernels/index.h"
#include "holon/kernels/on_device.h"

namespace holon::ops {

namespace {

Array index_array(const std::vector<int64_t>& values, Device device) {
  Array a = Array::empty({static_cast<int64_t>(values.size())}, int64);
  std::copy(values.begin(), values.end(), a.data<int64_t>());
  return kernels::on_device(a, device);
}

// The number of rows of a shape [..., width].
int64_t rows_of(const Dims& shape) {
  int64_t rows = 1;
  for (int a = 0; a + 1 < shape.size(); ++a) rows *= shape[a];
  return rows;
}

// x [..., width] as [rows, width], contiguous.
Array flat(const Array& x) {
  const Array a = kernels::contiguous(x);
  const int64_t width = a.shape.back();
  return a.view({rows_of(a.shape), width}, {width, 1});
}

bool exchanges(Sbp x, Sbp gate) { return x.is_split() && gate.is_split() && gate.axis == 0; }

}  // namespace

bool rows_are_exchanged(const KernelCall& c, size_t x, size_t gate) {
  const GlobalSpec *of_x = c.spec_in(x), *of_gate = c.spec_in(gate);
  for (int a = 0; of_x && of_gate && a < of_x->nd_sbp.size(); ++a)
    if (exchanges(of_x->nd_sbp[a], of_gate->nd_sbp[a]) && of_x->placement.hierarchy()[a] > 1) return true;
  return false;
}

ExpertExchange::ExpertExchange(const KernelCall& c, const Inputs& in)
    : op_(c.op().name()),
      device_(c.in(in.x).device),
      choices_(c.in(in.experts).shape.back()),
      weight_dtype_(c.in(in.weights).dtype) {
  find_group(c, in);
  gather_choices(c.in(in.experts), c.in(in.weights));
  check_choices();
  sort_terms();
}

void ExpertExchange::find_group(const KernelCall& c, const Inputs& in) {
  const Dims &x = c.logical_in(in.x), &gate = c.logical_in(in.gate);
  first_expert_ = c.offset_in(in.gate)[0];
  experts_here_ = c.in(in.gate).shape[0];
  owner_.assign(to_size(gate[0]), -1);
  auto own = [&](int member, int64_t first, int64_t n) { std::fill_n(owner_.begin() + first, n, member); };
  if (!rows_are_exchanged(c, in.x, in.gate)) {
    ranks_ = {Context::current().rank()};
    members_rows_ = {rows_of(c.in(in.x).shape)};
    own(0, first_expert_, experts_here_);
    return;
  }
  const GlobalSpec *of_x = c.spec_in(in.x), *of_gate = c.spec_in(in.gate);
  const Placement& placement = of_x->placement;
  const int here = placement.index_of(Context::current().rank());
  const Dims mine = placement.coordinate(here);
  for (int i = 0; i < placement.size(); ++i) {
    const Dims other = placement.coordinate(i);
    bool member = true;
    for (int a = 0; a < other.size(); ++a)
      member &= other[a] == mine[a] || exchanges(of_x->nd_sbp[a], of_gate->nd_sbp[a]);
    if (!member) continue;
    if (i == here) me_ = size();
    const Region experts = region_of(gate, placement, of_gate->nd_sbp, i);
    own(size(), experts.offset[0], experts.shape[0]);
    members_rows_.push_back(rows_of(region_of(x, placement, of_x->nd_sbp, i).shape));
    ranks_.push_back(at_index(placement.ranks(), i));
  }
  // Ranks of one host read rows from where they are; between hosts and devices each message has its price.
  const comm::World& world = comm::world();
  packs_ = !device_.is_host() ||
      std::any_of(ranks_.begin(), ranks_.end(), [&](int r) { return world.host_of(r) != world.host_of(ranks_[0]); });
}

void ExpertExchange::gather_choices(const Array& experts, const Array& weights) {
  const Array ids = flat(kernels::on_device(experts, Device())), factors = flat(kernels::on_device(weights, Device()));
  const auto n = to_size(ids.numel());
  const size_t item = size_bytes(weight_dtype_), each = sizeof(int32_t) + item;
  // Those of a member: its experts, then their weights.
  std::vector<std::byte> mine(n * each);
  for (size_t i = 0; i < n; ++i) {
    const int64_t wide = ids.data<int64_t>()[i];
    const auto id = static_cast<int32_t>(std::clamp<int64_t>(wide, -2, std::numeric_limits<int32_t>::max()));
    std::memcpy(&mine[i * sizeof id], &id, sizeof id);
  }
  if (n) std::memcpy(&mine[n * sizeof(int32_t)], factors.bytes(), n * item);
  std::vector<std::byte> gathered;
  std::vector<int64_t> bytes;
  for (int64_t rows : members_rows_) bytes.push_back(rows * choices_ * static_cast<int64_t>(each));
  if (size() > 1) {
    gathered.resize(to_size(std::accumulate(bytes.begin(), bytes.end(), int64_t{0})));
    comm::communicator(ranks_).all_gather(mine.data(), gathered.data(), bytes, DType::kUInt8);
  } else {
    gathered = std::move(mine);
  }
  const size_t all = gathered.size() / each;
  chosen_.resize(all);
  weights_.resize(all * item);
  size_t at = 0;
  for (int m = 0; m < size(); ++m) {
    const auto some = to_size(at_index(members_rows_, m) * choices_);
    if (some == 0) continue;
    std::memcpy(&chosen_[at], &gathered[at * each], some * sizeof(int32_t));
    std::memcpy(&weights_[at * item], &gathered[at * each + some * sizeof(int32_t)], some * item);
    at += some;
  }
}

void ExpertExchange::check_choices() const {
  const auto end = static_cast<int64_t>(owner_.size());
  for (size_t i = 0; i < chosen_.size(); ++i) {
    if (chosen_[i] >= -1 && chosen_[i] < end) continue;
    auto row = static_cast<int64_t>(i) / choices_;
    int member = 0;
    while (row >= at_index(members_rows_, member)) row -= at_index(members_rows_, member++);
    fail_value("{}: row {} of rank {} chooses expert {}{}; experts are numbered from 0 to {}, and -1 is none.", op_,
               row, at_index(ranks_, member), chosen_[i], chosen_[i] < -1 ? " or less" : "", end - 1);
  }
}

void ExpertExchange::sort_terms() {
  const int n = size();
  const size_t item = size_bytes(weight_dtype_);
  counts_.assign(to_size(n * n), 0);
  struct Term {
    int64_t expert, row, place;
    size_t choice;
  };
  std::vector<Term> found;
  std::vector<std::vector<int64_t>> to(to_size(n));
  std::vector<int64_t> last(to_size(n), -1), first_terms{0}, of_expert(to_size(experts_here_) + 1, 0);
  size_t at = 0;
  int64_t stamp = 0;
  for (int from = 0; from < n; ++from)
    for (int64_t row = 0; row < at_index(members_rows_, from); ++row, ++stamp) {
      // Without an exchange all rows are there, with experts here or not.
      bool here = n == 1;
      if (here) ++rows_;
      for (int64_t k = 0; k < choices_; ++k, ++at) {
        const int32_t e = chosen_[at];
        const int member = e < 0 ? -1 : at_index(owner_, e);
        if (member < 0) continue;
        if (at_index(last, member) != stamp) {
          at_index(last, member) = stamp;
          ++count(from, member);
          if (from == me_) at_index(to, member).push_back(row);
          if (member == me_ && !here) {
            here = true;
            ++rows_;
            received_.push_back(row);
          }
        }
        if (member != me_) continue;
        found.push_back({e - first_expert_, rows_ - 1, (rows_ - 1) * choices_ + k, at});
        ++at_index(of_expert, e - first_expert_ + 1);
      }
      if (here) first_terms.push_back(static_cast<int64_t>(found.size()));
    }
  std::partial_sum(of_expert.begin(), of_expert.end(), of_expert.begin());
  for (int64_t e = 0; e < experts_here_; ++e)
    if (at_index(of_expert, e + 1) > at_index(of_expert, e))
      spans_.push_back({e, at_index(of_expert, e), at_index(of_expert, e + 1)});
  row_.resize(found.size());
  place_.resize(found.size());
  std::vector<int64_t> terms_of_rows;
  Array weights = Array::empty({terms()}, weight_dtype_);
  for (const Term& t : found) {
    const int64_t sorted = at_index(of_expert, t.expert)++;
    at_index(row_, sorted) = t.row;
    at_index(place_, sorted) = t.place;
    terms_of_rows.push_back(sorted);
    std::memcpy(weights.bytes() + to_size(sorted) * item, &weights_[t.choice * item], item);
  }
  term_rows_ = index_array(row_, device_);
  term_weights_ = kernels::on_device(weights, device_);
  first_terms_ = index_array(first_terms, device_);
  terms_of_rows_ = index_array(terms_of_rows, device_);
  if (n == 1) return;

  first_parts_.assign(to_size(at_index(members_rows_, me_) + 1), 0);
  for (auto& rows : to) {
    sent_.insert(sent_.end(), rows.begin(), rows.end());
    for (int64_t row : rows) ++at_index(first_parts_, row + 1);
  }
  std::partial_sum(first_parts_.begin(), first_parts_.end(), first_parts_.begin());
  parts_.resize(sent_.size());
  std::vector<int64_t> next(first_parts_);
  for (size_t i = 0; i < sent_.size(); ++i) at_index(parts_, at_index(next, sent_[i])++) = static_cast<int64_t>(i);
}

void ExpertExchange::read_rows(const Array& x, Array& out) const {
  const int64_t bytes = x.shape[1] * static_cast<int64_t>(size_bytes(x.dtype));
  comm::Communicator& group = comm::communicator(ranks_);
  auto members = group.open({"expert_dispatch", x.dtype, x.shape, static_cast<uint64_t>(bytes)}, x.bytes(), x.nbytes());
  std::vector<const std::byte*> rows(received_.size());
  size_t at = 0;
  for (int from = 0; from < size(); ++from)
    for (int64_t n = count(from, me_); n > 0; --n, ++at)
      rows[at] = at_index(members, from) + at_index(received_, at) * bytes;
  kernels::copy_rows_from(rows, out);
  group.close();
  comm::note_bytes(to_size((rows_ - count(me_, me_)) * bytes));
}

void ExpertExchange::sum_from_members(const Array& y, Array& out) const {
  const int64_t bytes = y.shape[1] * static_cast<int64_t>(size_bytes(y.dtype));
  comm::Communicator& group = comm::communicator(ranks_);
  auto members = group.open({"expert_combine", y.dtype, y.shape, static_cast<uint64_t>(bytes)}, y.bytes(), y.nbytes());
  // Where each of the rows that were sent is now: a member has them behind those of the members before this one.
  std::vector<const std::byte*> place(sent_.size()), rows(sent_.size());
  size_t at = 0;
  for (int to = 0; to < size(); ++to) {
    int64_t row = 0;
    for (int from = 0; from < me_; ++from) row += count(from, to);
    for (int64_t n = count(me_, to); n > 0; --n) place[at++] = at_index(members, to) + row++ * bytes;
  }
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = at_index(place, parts_[i]);
  kernels::sum_rows_from(first_parts_, rows, out);
  group.close();
  comm::note_bytes(to_size((static_cast<int64_t>(sent_.size()) - count(me_, me_)) * bytes));
}

std::vector<comm::Pull> ExpertExchange::dispatch_pulls(int member, int64_t width) const {
  std::vector<comm::Pull> pulls;
  std::vector<int64_t> begin(to_size(size()) + 1, 0);
  for (int from = 0; from < size(); ++from) at_index(begin, from + 1) = at_index(begin, from) + count(from, member);
  for (int i = 0; i < size(); ++i) {
    // Starting with itself, the members read from different places at a time.
    const int from = (member + i) % size();
    int64_t src = 0;
    for (int to = 0; to < member; ++to) src += count(from, to);
    if (const int64_t n = count(from, member))
      pulls.push_back(comm::row_pull({from}, src * width, at_index(begin, from) * width, n * width));
  }
  return pulls;
}

std::vector<comm::Pull> ExpertExchange::combine_pulls(int member, int64_t width) const {
  std::vector<comm::Pull> pulls;
  std::vector<int64_t> begin(to_size(size()) + 1, 0);
  for (int to = 0; to < size(); ++to) at_index(begin, to + 1) = at_index(begin, to) + count(member, to);
  for (int i = 0; i < size(); ++i) {
    const int to = (member + i) % size();
    int64_t src = 0;
    for (int from = 0; from < member; ++from) src += count(from, to);
    if (const int64_t n = count(member, to))
      pulls.push_back(comm::row_pull({to}, src * width, at_index(begin, to) * width, n * width));
  }
  return pulls;
}

void ExpertExchange::exchange(const char* name, const Array& in, const Array& out,
                              std::vector<comm::Pull> (ExpertExchange::*pulls)(int, int64_t) const) const {
  const int64_t width = in.shape.back();
  const comm::PullsByMember of_members(me_, [&](int member) { return (this->*pulls)(member, width); });
  boxing::exchange_inside(ranks_, {name, in.dtype, in.shape, static_cast<uint64_t>(width)}, of_members,
                          in.device.is_host() ? std::nullopt : std::optional(in.device), in, out);
}

Array ExpertExchange::dispatch(const Array& given) const {
  const Array x = flat(given);
  if (size() == 1) return x;
  Array out = Array::empty({rows_, x.shape[1]}, x.dtype, x.device);
  if (!packs_) {
    read_rows(x, out);
    return out;
  }
  Array packed = Array::empty({static_cast<int64_t>(sent_.size()), x.shape[1]}, x.dtype, x.device);
  kernels::embedding(x, index_array(sent_, x.device), 0, x.shape[0], packed);
  exchange("expert_dispatch", packed, out, &ExpertExchange::dispatch_pulls);
  return out;
}

Array ExpertExchange::before_combine(const Array& out) const {
  if (size() == 1 && out.is_contiguous()) return flat(out);
  return Array::empty({rows_, out.shape.back()}, out.dtype, out.device);
}

void ExpertExchange::combine(const Array& y, Array& out) const {
  Array to = flat(out);
  HOLON_CHECK(to.bytes() == out.bytes(), "{}: its output is not contiguous", op_);
  if (size() == 1) {
    if (y.bytes() != to.bytes()) kernels::copy(y, to);
    return;
  }
  if (!packs_) return sum_from_members(y, to);
  const Array back = Array::empty({static_cast<int64_t>(sent_.size()), y.shape[1]}, y.dtype, y.device);
  exchange("expert_combine", y, back, &ExpertExchange::combine_pulls);
  kernels::sum_rows(back, index_array(first_parts_, back.device), index_array(parts_, back.device), {}, to);
}

void ExpertExchange::combine_terms(const Array& of_terms, Array& out) const {
  // A few numbers of each row: the host does it.
  const Array host = kernels::contiguous(kernels::on_device(of_terms, Device()));
  const size_t item = size_bytes(host.dtype);
  const Array placed = Array::empty({rows_, choices_}, host.dtype);
  if (placed.nbytes()) std::memset(placed.bytes(), 0, placed.nbytes());
  for (size_t i = 0; i < place_.size(); ++i)
    std::memcpy(placed.bytes() + to_size(place_[i]) * item, host.bytes() + i * item, item);
  Array sum = out.device.is_host() ? out : Array::empty(out.shape, out.dtype);
  combine(placed, sum);
  if (!out.device.is_host()) kernels::copy(sum, out);
}

}  // namespace holon::ops
