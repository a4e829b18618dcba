#include <algorithm>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/base/trace.h"
#include "holon/boxing/device_exchange.h"
#include "holon/boxing/prepared.h"
#include "holon/boxing/rank_step.h"
#include "holon/boxing/step_chain.h"
#include "holon/comm/device_communicator.h"
#include "holon/comm/hosts/hosts_communicator.h"
#include "holon/kernels/copy.h"

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
  std::vector<comm::Pull> pulls;
  std::vector<Dims> dst_strides;  // of each pull
  std::string label;
  uint64_t fingerprint = 0;

  const Context* bound = nullptr;
  comm::Communicator* group = nullptr;
  std::unique_ptr<DeviceExchange> exchange;   // on devices, made by the first run
  std::vector<comm::HostSchedule> schedules;  // of each tensor, where the group spans hosts

  size_t item() const { return size_bytes(dtype); }

  Layout layout_of(const GlobalSpec& spec, int of_rank) const {
    Layout l;
    const int index = spec.placement.index_of(of_rank);
    if (index < 0) return l;
    const auto line = static_cast<int64_t>(64 / item());
    for (const Dims& shape : shapes) {
      l.at.push_back(l.elements);
      l.shapes.push_back(slice_of(shape, spec.placement, spec.nd_sbp, index).shape);
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
  std::vector<PlacedPull> pulls_of(int of_rank, const HostMap& hosts, std::vector<int>* of_members, int* me) const {
    std::vector<Layout> layouts;  // of the members' parts before
    const Layout result = of_rank == rank ? out : layout_of(*to, of_rank);
    std::vector<PlacedPull> all;
    for (size_t i = 0; i < shapes.size(); ++i) {
      const Transfer t = transfer_of(*from, *to, shapes[i], of_rank, hosts);
      if (layouts.empty())
        for (int m : t.members) layouts.push_back(layout_of(*from, m));
      *of_members = t.members;
      *me = t.me;
      for (const comm::Pull& p : t.pulls) {
        all.push_back({p, contiguous_strides(t.shape)});
        comm::Pull& placed = all.back().pull;
        placed.src_start += at_index(layouts, p.owners[0]).at[i];
        placed.dst_start += result.at[i];
      }
    }
    return all;
  }

  void make_pulls(const HostMap& hosts) {
    int me = -1;
    for (PlacedPull& p : pulls_of(rank, hosts, &members, &me)) {
      const auto& owners = p.pull.owners;
      const auto peers = static_cast<int64_t>(owners.size()) - std::count(owners.begin(), owners.end(), me);
      read_bytes += peers * p.pull.shape.numel() * static_cast<int64_t>(item());
      pulls.push_back(std::move(p.pull));
      dst_strides.push_back(p.dst_strides);
    }
  }

  void run_on_device(const Array& src, const Array& dst) {
    comm::DeviceCommunicator* devices = nullptr;
    if (on_alike_devices(*from, *to)) devices = comm::device_communicator(members, to->placement.device());
    if (!devices) return run_through_host(src, dst);
    if (in_place) return devices->all_reduce(info(), memory_of(src), memory_of(dst), in.elements, dtype);
    comm::note_bytes(static_cast<uint64_t>(read_bytes));
    if (!exchange) {
      int me = group_place();
      exchange = std::make_unique<DeviceExchange>(
          static_cast<int>(members.size()), me,
          [&](int member) {
            std::vector<int> theirs;
            int place;
            return pulls_of(at_index(members, member), machine()->hosts, &theirs, &place);
          },
          StepKind::kExchange);
    }
    exchange->run(*devices, info(), has_in ? src : Array{}, has_out ? dst : Array{});
  }
  int group_place() const {
    return static_cast<int>(std::find(members.begin(), members.end(), rank) - members.begin());
  }

  void run_through_host(const Array& src, const Array& dst) {
    Array shown, arrived;
    if (has_in) {
      shown = Array::empty({in.elements}, dtype);
      if (src.defined()) kernels::copy(src.view({in.elements}, {1}), shown);
    }
    if (has_out) arrived = in_place ? shown : Array::empty({out.elements}, dtype);
    run_on_host(shown, arrived);
    if (!has_out || !dst.defined()) return;
    Array to = dst.view({out.elements}, {1});
    kernels::copy(arrived, to);
  }

  void bind() {
    const Context* here = &Context::current();
    if (bound == here) return;
    if (!members.empty()) group = &comm::communicator(members);
    if (auto* across = members.empty() || in_place ? nullptr : group->across_hosts()) {
      schedules.clear();
      for (const Dims& shape : shapes)
        schedules.push_back(comm::make_schedule(
            across->host_of(), group->index(),
            [&](int member) {
              const Transfer t = transfer_of(*from, *to, shape, at_index(members, member), machine()->hosts);
              return comm::MemberPulls{t.pulls, contiguous_strides(t.shape)};
            },
            static_cast<int64_t>(item())));
    }
    bound = here;
  }

  // One message for each tensor and pair of ranks.
  void run_across_hosts(comm::HostsCommunicator& across, const std::byte* src, std::byte* dst) const {
    for (size_t i = 0; i < shapes.size(); ++i) {
      comm::CallInfo call = info();
      call.fingerprint += i;
      const std::byte* part = src ? src + in.at[i] * static_cast<int64_t>(item()) : nullptr;
      const size_t bytes = src ? to_size(in.shapes[i].numel()) * item() : 0;
      std::byte* result = dst ? dst + out.at[i] * static_cast<int64_t>(item()) : nullptr;
      across.pull(call, schedules[i], part, bytes, result, has_out ? contiguous_strides(out.shapes[i]) : Dims{});
    }
    comm::stats().calls -= shapes.size() - 1;
  }

  void run(const Array& from_array, const Array& to_array) {
    if (boxing::on_device(*from) || boxing::on_device(*to)) return run_on_device(from_array, to_array);
    run_on_host(from_array, to_array);
  }

  void run_on_host(const Array& from_array, const Array& to_array) {
    const std::byte* src = has_in ? memory_of(from_array) : nullptr;
    std::byte* dst = has_out ? memory_of(to_array) : nullptr;
    const auto in_bytes = to_size(in.elements) * item();
    if (in_place) return group->all_reduce(src, dst, in.elements, dtype);
    comm::note_bytes(static_cast<uint64_t>(read_bytes));
    if (auto* across = group->across_hosts()) return run_across_hosts(*across, src, dst);
    auto peers = group->open(info(), src, src ? in_bytes : 0);
    for (size_t i = 0; i < pulls.size(); ++i)
      comm::pull_all({&pulls[i], 1}, dtype, peers, dst, dst_strides[i], to_size(out.elements) * item());
    group->close();
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
  if (d.in_place) {
    d.members = addend_ranks(*from, fixed_axes(*from, *to), d.rank);
    const auto n = static_cast<int64_t>(d.members.size());
    // What all_reduce reads depends on where it cuts; small ones are summed whole.
    const int64_t bytes = d.in.elements * static_cast<int64_t>(d.item());
    const int64_t place = std::find(d.members.begin(), d.members.end(), d.rank) - d.members.begin();
    d.read_bytes = bytes * (n - 1);
    if (bytes > static_cast<int64_t>(comm::Communicator::kInlineBytes)) {
      const int64_t lines = bytes / 64, mine = (lines * (place + 1) / n - lines * place / n) * 64;
      d.read_bytes = mine * (n - 1) + bytes - mine;
    }
  } else {
    d.make_pulls(machine()->hosts);
  }
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
