#include <algorithm>
#include <memory>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/base/trace.h"
#include "holon/boxing/exchange.h"
#include "holon/boxing/prepared.h"
#include "holon/boxing/rank_step.h"
#include "holon/boxing/step_chain.h"
#include "holon/comm/core/row_pulls.h"

namespace holon::boxing {

namespace {

// Every axis goes from P to B or stays.
bool is_sum(const GlobalSpec& from, const GlobalSpec& to) {
  if (from.placement != to.placement) return false;
  for (int a = 0; a < from.nd_sbp.size(); ++a) {
    const Sbp before = from.nd_sbp[a], after = to.nd_sbp[a];
    if (!(before == after || (before.is_partial() && after.is_broadcast()))) return false;
  }
  return true;
}

// The ranks of a sum, in the order of summation.
std::vector<int> addend_ranks(const GlobalSpec& from, unsigned fixed, int rank) {
  std::vector<int> ranks;
  const Dims here = from.placement.coordinate(from.placement.index_of(rank));
  for (int i = 0; i < from.placement.size(); ++i) {
    const Dims there = from.placement.coordinate(i);
    bool takes_part = true;
    for (int a = 0; a < here.size(); ++a) takes_part &= !(fixed >> a & 1) || here[a] == there[a];
    if (takes_part) ranks.push_back(at_index(from.placement.ranks(), i));
  }
  return ranks;
}

}  // namespace

struct PreparedBatch::Data {
  // A rank's parts of all tensors, one after the other.
  struct Layout {
    std::vector<int64_t> at;
    std::vector<Dims> shapes;
    int64_t elements = 0;
  };

  const GlobalSpec *from, *to;
  std::vector<Dims> shapes;
  DType dtype;
  int rank;
  bool has_in = false, has_out = false, communicates = false, in_place = false;
  Layout in, out;
  int64_t read_bytes = 0;
  std::vector<int> members;  // in_place: in the order of summation
  std::unique_ptr<const comm::GroupPulls> pulls;
  std::string label;
  uint64_t fingerprint = 0;

  const Context* bound = nullptr;
  comm::Communicator* group = nullptr;

  size_t item() const { return size_bytes(dtype); }

  Layout layout_of(const GlobalSpec& spec, int of_rank) const {
    Layout l;
    const int index = spec.placement.index_of(of_rank);
    if (index < 0) return l;
    const auto line = static_cast<int64_t>(64 / item());
    for (const Dims& shape : shapes) {
      l.at.push_back(l.elements);
      l.shapes.push_back(region_of(shape, spec.placement, spec.nd_sbp, index).shape);
      l.elements += (l.shapes.back().numel() + line - 1) / line * line;
    }
    return l;
  }

  void describe() {
    std::string all = fmt::format("{} {} {}", *from, *to, static_cast<int>(dtype));
    for (const Dims& s : shapes) all += fmt::format(" {}", s);
    fingerprint = hash_text(all);
    label = fmt::format("{} -> {} of {} tensors", from->nd_sbp, to->nd_sbp, shapes.size());
  }

  comm::CallInfo info() const { return {label.c_str(), dtype, Dims{in.elements}, fingerprint}; }

  // What a rank pulls, its members and its place among them.
  std::vector<comm::Pull> pulls_of(int of_rank, const HostMap& hosts, std::vector<int>* of_members, int* me) const {
    std::vector<Layout> layouts;  // of the members' parts before
    const Layout result = of_rank == rank ? out : layout_of(*to, of_rank);
    std::vector<comm::Pull> all;
    for (size_t i = 0; i < shapes.size(); ++i) {
      Transfer t = transfer_of(*from, *to, shapes[i], of_rank, hosts);
      if (layouts.empty())
        for (int m : t.members) layouts.push_back(layout_of(*from, m));
      *of_members = t.members;
      *me = t.me;
      for (comm::Pull& p : t.pulls) {
        p.src_start += at_index(layouts, p.owners[0]).at[i];
        p.dst_start += result.at[i];
        all.push_back(std::move(p));
      }
    }
    return all;
  }

  void make_pulls(const HostMap& hosts) {
    int me = -1;
    if (in_place) {
      members = addend_ranks(*from, fixed_axes(*from, *to), rank);
      me = static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
      pulls = std::make_unique<comm::RowPulls>(comm::RowPulls::Kind::kAllReduce, static_cast<int>(members.size()), me,
                                               std::span(&in.elements, 1), dtype);
    } else {
      pulls_of(rank, hosts, &members, &me);
      auto of_member = [this, hosts](int member) {
        std::vector<int> theirs;
        int place;
        return pulls_of(at_index(members, member), hosts, &theirs, &place);
      };
      pulls = std::make_unique<comm::PullsByMember>(me, of_member, fingerprint | 1);
    }
    read_bytes = pulls->elements_read(me) * static_cast<int64_t>(item());
  }

  int64_t read_bytes_of(int of_rank, const HostMap& hosts) const {
    int64_t elements = 0;
    if (in_place) {
      const std::vector<int> group = addend_ranks(*from, fixed_axes(*from, *to), of_rank);
      const auto place = static_cast<int>(std::find(group.begin(), group.end(), of_rank) - group.begin());
      const int64_t all = layout_of(*from, of_rank).elements;
      elements = comm::RowPulls(comm::RowPulls::Kind::kAllReduce, static_cast<int>(group.size()), place,
                                std::span(&all, 1), dtype)
                     .elements_read(place);
    } else {
      std::vector<int> theirs;
      int place = -1;
      for (const comm::Pull& p : pulls_of(of_rank, hosts, &theirs, &place))
        for (int owner : p.owners) elements += owner == place ? 0 : p.shape.numel();
    }
    return elements * static_cast<int64_t>(item());
  }

  void bind() {
    const Context* here = &Context::current();
    if (bound == here) return;
    if (!members.empty()) group = &comm::communicator(members);
    bound = here;
  }

  void run(const Array& from_array, const Array& to_array) const {
    if (boxing::on_device(*from) || boxing::on_device(*to))
      return exchange(members, info(), *pulls,
                      on_alike_devices(*from, *to) ? std::optional(to->placement.device()) : std::nullopt,
                      has_in ? from_array : Array{}, has_out ? to_array : Array{});
    const std::byte* src = has_in ? memory_of(from_array) : nullptr;
    std::byte* dst = has_out ? memory_of(to_array) : nullptr;
    group->pull(info(), *pulls, src, src ? to_size(in.elements) * item() : 0, dst,
                dst ? to_size(out.elements) * item() : 0);
  }
};

PreparedBatch PreparedBatch::prepare(const GlobalSpec* from, const GlobalSpec* to, std::span<const Dims> shapes,
                                     DType dtype) {
  if (shapes.empty()) fail_value("a batch of no tensors was to be redistributed; name the shape of at least one.");
  for (const Dims& shape : shapes) {
    check_nd_sbp(shape, from->placement, from->nd_sbp, "boxing");
    check_nd_sbp(shape, to->placement, to->nd_sbp, "boxing");
  }
  if (!one_move(*from, *to))
    fail_value("a batch of tensors cannot be redistributed from {} to {} in one step. Prepare each one alone.", *from,
               *to);
  auto data = std::make_shared<Data>();
  Data& d = *data;
  d.from = from;
  d.to = to;
  d.shapes.assign(shapes.begin(), shapes.end());
  d.dtype = dtype;
  d.rank = Context::current().rank();
  d.has_in = from->placement.contains(d.rank);
  d.has_out = to->placement.contains(d.rank);
  d.in = d.layout_of(*from, d.rank);
  d.out = d.layout_of(*to, d.rank);
  d.in_place = is_sum(*from, *to);
  d.communicates = members(*from, *to, fixed_axes(*from, *to), from->placement.ranks()[0]).size() > 1;
  d.describe();
  if (!d.has_in && !d.has_out) return PreparedBatch(data);
  d.make_pulls(machine()->hosts);
  return PreparedBatch(data);
}

size_t PreparedBatch::size() const { return data_->shapes.size(); }
bool PreparedBatch::has_in() const { return data_->has_in; }
bool PreparedBatch::has_out() const { return data_->has_out; }
bool PreparedBatch::communicates() const { return data_->communicates; }
std::vector<std::span<const int>> PreparedBatch::collectives() const {
  if (!data_->communicates || data_->members.empty()) return {};
  return {data_->members};
}
bool PreparedBatch::communicates_on_devices() const { return on_alike_devices(*data_->from, *data_->to); }
bool PreparedBatch::in_place() const { return data_->in_place; }
const Dims& PreparedBatch::in_shape(size_t i) const { return data_->in.shapes[i]; }
const Dims& PreparedBatch::out_shape(size_t i) const { return data_->out.shapes[i]; }
std::span<const int64_t> PreparedBatch::in_at() const { return data_->in.at; }
std::span<const int64_t> PreparedBatch::out_at() const { return data_->out.at; }
int64_t PreparedBatch::in_elements() const { return data_->in.elements; }
int64_t PreparedBatch::out_elements() const { return data_->out.elements; }
int64_t PreparedBatch::read_bytes() const { return data_->read_bytes; }
void PreparedBatch::bind() const { data_->bind(); }

std::vector<int64_t> PreparedBatch::all_read_bytes() const {
  std::vector<int64_t> bytes;
  for (int r : data_->to->placement.ranks()) bytes.push_back(data_->read_bytes_of(r, machine()->hosts));
  return bytes;
}

void PreparedBatch::run(const Array& in, const Array& out) const {
  Data& d = *data_;
  if (!d.has_in && !d.has_out) return;
  auto check = [&](const Array& a, const char* which, int64_t elements) {
    HOLON_CHECK(elements == 0 || (a.defined() && a.dtype == d.dtype && a.numel() == elements && a.is_contiguous()),
                "prepared batch: {} of {} should be {} {}, contiguous, but is {}", which, rank_text(), elements,
                name(d.dtype), a.defined() ? fmt::format("{} {}", name(a.dtype), a.shape) : "undefined");
  };
  if (d.has_in) check(in, "the buffer", d.in.elements);
  if (d.has_out) check(out, "the result", d.out.elements);
  d.bind();
  tracing::Span span(d.label, "boxing");
  d.run(in, out);
}

}  // namespace holon::boxing
