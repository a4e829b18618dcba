#include "holon/graph/program/fused.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string_view>

#include "holon/array/device_runtime.h"
#include "holon/base/error.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/dispatch/on_device.h"
#include "holon/kernels/chain.h"

namespace holon::graph {
namespace {

// What a block's operands take of the caches, by benchmarks/micro/fused_bench.cpp: shorter runs of memory are read more
// slowly.
constexpr int64_t kBlockBytes = 64 << 10;
constexpr int64_t kLeastBlock = 256, kMostBlock = 16384;  // elements
// Rows of this length are cut into pieces with one axis, for which kernels are fastest; shorter ones stay together.
constexpr int64_t kLongRow = 1024;
constexpr int64_t kGrain = 32768;  // elements times ops that are worth a thread

using Axis = kernels::ChainAxis;

int64_t stride_of(const FusedChain::Operand& o, int axis, int ndim) {
  int own = axis - (ndim - o.shape.size());
  return own < 0 || o.shape[own] == 1 ? 0 : o.strides[own];
}

// The axes of all operands together: ordered by the first output's strides, those of size 1 left out, neighbours merged
// where they are one in every operand.
std::vector<Axis> merged_axes(std::span<const FusedChain::Operand> in, std::span<const FusedChain::Operand> out) {
  const Dims& shape = out[0].shape;
  std::vector<Axis> axes;
  for (int a = 0; a < shape.size(); ++a) {
    if (shape[a] == 1) continue;
    Axis axis{shape[a], {}};
    for (auto& o : in) axis.strides.push_back(stride_of(o, a, shape.size()));
    for (auto& o : out) axis.strides.push_back(stride_of(o, a, shape.size()));
    axes.push_back(std::move(axis));
  }
  std::stable_sort(axes.begin(), axes.end(),
                   [&](const Axis& a, const Axis& b) { return a.strides[in.size()] > b.strides[in.size()]; });
  std::vector<Axis> merged;
  for (auto& axis : axes) {
    bool joins = !merged.empty();
    for (size_t k = 0; joins && k < axis.strides.size(); ++k)
      joins = merged.back().strides[k] == axis.strides[k] * axis.size;
    if (joins) {
      merged.back().size *= axis.size;
      merged.back().strides = axis.strides;
    } else {
      merged.push_back(axis);
    }
  }
  if (merged.empty()) {
    merged.push_back({1, {}});
    merged[0].strides.resize(in.size() + out.size());
  }
  return merged;
}

// Whether the axes before the last two are the same.
bool same_leading(const Dims& a, const Dims& b) {
  return a.size() == b.size() && a.size() >= 2 && std::equal(a.begin(), a.end() - 2, b.begin());
}

}  // namespace

bool fusible(const OpDef& op) {
  return op.fuses == Fuses::kElements && op.kernel && !op.random && op.schema.n_outputs == 1 && !op.schema.input_list;
}

bool fusible_by_matrix(const OpDef& op, const Attrs& attrs) {
  if (op.fuses == Fuses::kMatrices) return true;
  if (op.fuses != Fuses::kLastAxes) return fusible(op);
  // In a window the axes are counted from the end.
  const int64_t axis = attrs.as_int(op.fuses_along_attr);
  return axis == -1 || axis == -2;
}

// Slots: inputs, outputs, then scratch.
struct FusedChain::Plan {
  struct Part {
    const OpDef* op;
    Attrs attrs;
    SmallVec<int16_t, 3> in;  // slots
    int16_t out;
    DType dtype;
    SmallVec<int16_t, 3> operands;  // as the body names them
    Dims shape;                     // of the whole result
    size_t last_use;
  };
  // What one thread works with: windows whose offsets move from block to block.
  struct Worker {
    std::vector<Array> windows;    // of inputs and outputs
    std::vector<Array> results;    // of each part: a scratch window, or unused
    std::vector<const Array*> in;  // of all parts
    std::vector<Array*> out;
    std::vector<KernelCall> calls;
  };

  std::vector<Part> parts;
  size_t n_in = 0, n_out = 0;
  bool by_matrix = false;             // blocks are matrices of the last two axes, not runs of elements
  std::vector<Axis> axes;             // that blocks are counted along
  std::vector<DType> dtypes;          // of inputs and outputs
  std::vector<Dims> shapes, strides;  // of their windows
  std::vector<Dims> result_shapes;    // of the parts' windows
  std::vector<size_t> scratch_bytes;  // of each scratch slot
  size_t block_axis = 0;              // cut into pieces
  int64_t piece = 1, pieces = 1;      // of the block axis
  int64_t blocks = 1, block_elements = 1;
  int64_t numel = 0;
  std::vector<std::unique_ptr<Worker>> workers;
  std::vector<Operand> operands;  // inputs and outputs
  // On a device: all parts in one, for the device of that number. Null: they run one after the other.
  std::unique_ptr<kernels::ChainKernel> kernel;
  Device kernel_device;  // of `kernel`; the CPU: not yet known

  // Runs of elements: the axes from the block axis on are in a window.
  void choose_runs(int64_t bytes_per_element) {
    const int64_t most = std::clamp(kBlockBytes / bytes_per_element, kLeastBlock, kMostBlock) / 64 * 64;
    int64_t inner = 1;  // elements of the axes behind the block axis
    block_axis = axes.size() - 1;
    if (axes.back().size < kLongRow)
      while (block_axis > 0 && inner * axes[block_axis].size <= most / 2) inner *= axes[block_axis--].size;
    piece = std::clamp<int64_t>(most / inner, 1, axes[block_axis].size);
    Dims shape;
    for (size_t a = block_axis; a < axes.size(); ++a) shape.push_back(a == block_axis ? piece : axes[a].size);
    shapes.assign(n_in + n_out, shape);
    strides.resize(n_in + n_out);
    for (size_t k = 0; k < n_in + n_out; ++k)
      for (size_t a = block_axis; a < axes.size(); ++a) strides[k].push_back(axes[a].strides[k]);
    result_shapes.assign(parts.size(), shape);
    block_elements = piece * inner;
    count_blocks();
  }

  void count_blocks() {
    pieces = (axes[block_axis].size + piece - 1) / piece;
    blocks = pieces;
    for (size_t a = 0; a < block_axis; ++a) blocks *= axes[a].size;
  }

  // Matrices: one for each index of the axes before the last two.
  void choose_matrices(std::span<const Operand> in, std::span<const Operand> out) {
    const int ndim = out[0].shape.size(), leading = std::max(ndim - 2, 0);
    for (int a = 0; a < leading; ++a) axes.push_back({out[0].shape[a], {}});
    if (leading == 0) axes.push_back({1, {}});
    auto add = [&](const Operand& o) {
      for (int a = 0; a < std::max(leading, 1); ++a)
        at_index(axes, a).strides.push_back(a < leading ? stride_of(o, a, ndim) : 0);
      const int first = std::max(o.shape.size() - 2, 0);
      shapes.emplace_back(std::span<const int64_t>(o.shape).subspan(to_size(first)));
      strides.emplace_back(std::span<const int64_t>(o.strides).subspan(to_size(first)));
    };
    for (auto& o : in) add(o);
    for (auto& o : out) add(o);
    block_axis = axes.size() - 1;
    for (auto& shape : result_shapes) {
      shape = Dims(std::span<const int64_t>(shape).subspan(to_size(std::max(shape.size() - 2, 0))));
      block_elements += 64 * shape.numel();  // a product's element takes longer than a sum's
    }
    count_blocks();
  }

  std::unique_ptr<Worker> make_worker() const {
    auto w = std::make_unique<Worker>();
    w->windows.resize(n_in + n_out);
    for (size_t k = 0; k < w->windows.size(); ++k) {
      w->windows[k].shape = shapes[k];
      w->windows[k].strides = strides[k];
      w->windows[k].dtype = dtypes[k];
    }
    std::vector<Ref<Storage>> scratch;
    for (size_t bytes : scratch_bytes) scratch.push_back(allocate_storage(bytes));
    w->results.resize(parts.size());
    for (size_t p = 0; p < parts.size(); ++p) {
      if (to_size(parts[p].out) < n_in + n_out) continue;
      Array& x = w->results[p];
      x.storage = scratch[to_size(parts[p].out) - n_in - n_out];
      x.shape = result_shapes[p];
      x.strides = contiguous_strides(x.shape);
      x.dtype = parts[p].dtype;
    }
    // Scratch slots are named by the part that has written them last.
    std::vector<Array*> slot(n_in + n_out + scratch_bytes.size());
    for (size_t k = 0; k < n_in + n_out; ++k) slot[k] = &w->windows[k];
    for (size_t p = 0; p < parts.size(); ++p) {
      for (int16_t k : parts[p].in) w->in.push_back(at_index(slot, k));
      const size_t to = to_size(parts[p].out);
      if (to >= n_in + n_out) slot[to] = &w->results[p];
      w->out.push_back(slot[to]);
    }
    size_t at = 0;
    for (size_t p = 0; p < parts.size(); ++p) {
      const size_t n = parts[p].in.size();
      w->calls.emplace_back(*parts[p].op, parts[p].attrs, std::span<const Array* const>(w->in.data() + at, n),
                            std::span<Array* const>(w->out.data() + p, 1));
      at += n;
    }
    return w;
  }

  // What the parts' kernels do, recorded on arrays without memory. nullopt: one of them is more than element-wise.
  std::optional<kernels::Chain> record(Device device) const {
    std::vector<Array> arrays;
    for (auto& o : operands) arrays.push_back(Array::placeholder(o.shape, o.strides, o.dtype, device));
    std::vector<const Array*> in;
    std::vector<Array*> out;
    for (size_t k = 0; k < arrays.size(); ++k) k < n_in ? in.push_back(&arrays[k]) : out.push_back(&arrays[k]);
    try {
      kernels::ChainRecorder recorder;
      for (const Array* a : in) recorder.add_input(*a);
      each_part(
          in, out,
          [&](const Part& part) {
            return Array::placeholder(part.shape, contiguous_strides(part.shape), part.dtype, device);
          },
          [&](const Part& part, KernelCall& call) {
            recorder.set_name(part.op->public_name());
            part.op->on_host ? recorder.give_up() : part.op->kernel(call);
          });
      return recorder.take(std::span<const Array>(arrays).subspan(n_in));
    } catch (const Error&) {  // raised again where the part runs
      return std::nullopt;
    }
  }

  void run_on_device(std::span<const Array* const> in, std::span<Array* const> out) {
    const Device device = out[0]->device;
    if (!by_matrix && !(kernel_device == device)) {
      kernel_device = device;
      auto chain = kernels::compiles_chains(device) ? record(device) : std::nullopt;
      kernel = chain ? kernels::make_chain_kernel(*chain, axes, device) : nullptr;
    }
    const bool there = std::all_of(in.begin(), in.end(), [&](const Array* a) { return a->device == device; });
    if (kernel && there) {
      DeviceRuntime& devices = *device_runtime(device);
      devices.set_op("a fused chain");
      if (kernel->run(in, out)) return devices.check(device.index);
    }
    run_parts_on_device(in, out);
  }

  // Whole arrays, one part after the other.
  void run_parts_on_device(std::span<const Array* const> in, std::span<Array* const> out) const {
    const Device device = out[0]->device;
    each_part(
        in, out, [&](const Part& part) { return Array::empty(part.shape, part.dtype, device); },
        [](const Part& part, KernelCall& call) { holon::run_on_device(*part.op, call); });
  }

  // Calls of all parts on whole arrays: make(array, part) for what is not an output, then run(part, call).
  template <class Make, class Run>
  void each_part(std::span<const Array* const> in, std::span<Array* const> out, Make make, Run run) const {
    std::vector<Array> made(parts.size());
    std::vector<Array*> result(parts.size());
    for (size_t p = 0; p < parts.size(); ++p) {
      const Part& part = parts[p];
      const auto to = to_size(part.out);
      result[p] = to < n_in + n_out ? out[to - n_in] : &made[p];
      if (result[p] == &made[p]) made[p] = make(part);
      SmallVec<const Array*, 3> from;
      for (int16_t k : part.operands) {
        const auto i = to_size(k);
        from.push_back(i < n_in ? in[i] : result[i - n_in]);
      }
      KernelCall call(*part.op, part.attrs, std::span<const Array* const>(from),
                      std::span<Array* const>(&result[p], 1));
      run(part, call);
      for (size_t q = 0; q <= p; ++q)
        if (parts[q].last_use == p) made[q] = {};
    }
  }

  void set_length(Worker& w, int64_t length) const {
    for (auto& x : w.windows) x.shape[0] = length;
    for (auto& x : w.results)
      if (x.defined()) x.shape[0] = length;
  }

  void run_blocks(Worker& w, std::span<const Array* const> in, std::span<Array* const> out, int64_t begin,
                  int64_t end) const {
    auto whole = [&](size_t k) -> const Array& { return k < n_in ? *in[k] : *out[k - n_in]; };
    for (size_t k = 0; k < n_in + n_out; ++k) w.windows[k].storage = whole(k).storage;
    int64_t length = -1;
    for (int64_t block = begin; block < end; ++block) {
      int64_t index[kMaxAxes], rest = block / pieces;
      index[block_axis] = block % pieces * piece;
      for (size_t a = block_axis; a-- > 0;) {
        index[a] = rest % axes[a].size;
        rest /= axes[a].size;
      }
      for (size_t k = 0; k < n_in + n_out; ++k) {
        int64_t offset = whole(k).offset;
        for (size_t a = 0; a <= block_axis; ++a) offset += index[a] * axes[a].strides[k];
        w.windows[k].offset = offset;
      }
      const int64_t now = std::min(piece, axes[block_axis].size - index[block_axis]);
      if (now != length && !by_matrix) set_length(w, length = now);
      for (size_t p = 0; p < parts.size(); ++p) parts[p].op->kernel(w.calls[p]);
    }
    for (auto& x : w.windows) x.storage = nullptr;
  }
};

FusedChain::FusedChain(const FusedBody& body, std::span<const Operand> in, std::span<const Operand> out)
    : plan_(std::make_unique<Plan>()) {
  Plan& plan = *plan_;
  HOLON_CHECK(!body.parts.empty() && !out.empty() && out.size() == body.results.size(),
              "a fused chain of {} ops with {} outputs for {} results", body.parts.size(), out.size(),
              body.results.size());
  plan.n_in = in.size(), plan.n_out = out.size();
  const size_t n = body.parts.size();
  for (auto& o : in) plan.dtypes.push_back(o.dtype);
  plan.operands.assign(in.begin(), in.end());
  plan.operands.insert(plan.operands.end(), out.begin(), out.end());
  for (auto& part : body.parts) plan.by_matrix |= !fusible(*part.op);
  plan.numel = out[0].shape.numel();
  if (plan.by_matrix) {  // matrices without elements have products, too
    HOLON_CHECK(out[0].shape.size() >= 2, "a chain of matrices returns {}", out[0].shape);
    plan.numel = Dims(std::span<const int64_t>(out[0].shape).first(to_size(out[0].shape.size() - 2))).numel();
  }
  for (auto& o : out) {
    HOLON_CHECK(plan.by_matrix || o.shape == out[0].shape, "outputs of a fused chain have shapes {} and {}",
                out[0].shape, o.shape);
    plan.dtypes.push_back(o.dtype);
  }

  // Dtypes of the parts, and the last part that reads each.
  std::vector<DType> dtype(n);
  std::vector<size_t> last_use(n);
  for (size_t p = 0; p < n; ++p) {
    const FusedPart& part = body.parts[p];
    HOLON_CHECK(fusible(*part.op) || fusible_by_matrix(*part.op, part.attrs), "{} cannot be a part of a fused chain",
                part.op->name());
    SmallVec<Meta, 4> metas;
    for (int16_t k : part.in) {
      const size_t i = to_size(k);
      HOLON_CHECK(k >= 0 && i < in.size() + p, "part {} of a fused chain, {}, reads operand {}", p, part.op->name(), k);
      if (i >= in.size()) last_use[i - in.size()] = p;
      // An operand with one element is like any other in a window.
      metas.push_back(i < in.size() ? Meta{in[i].shape, in[i].dtype}
                                    : Meta{plan.result_shapes[i - in.size()], dtype[i - in.size()]});
    }
    Infer infer(*part.op, part.attrs, metas, (1u << part.in.size()) - 1);
    part.op->infer(infer);
    const Dims& made = infer.out_[0].shape;
    HOLON_CHECK(plan.by_matrix ? same_leading(made, out[0].shape) : made == out[0].shape,
                "part {} of a fused chain, {}, returns {} where the chain returns {}", p, part.op->name(), made,
                out[0].shape);
    plan.result_shapes.push_back(made);
    dtype[p] = infer.out_[0].dtype;
  }

  // Slots: of an output where the part is one, else of scratch that nobody needs any more.
  std::vector<int16_t> slot(n, -1);
  for (size_t r = 0; r < body.results.size(); ++r) {
    const size_t p = to_size(body.results[r]);
    HOLON_CHECK(p < n && slot[p] < 0 && dtype[p] == out[r].dtype && plan.result_shapes[p] == out[r].shape,
                "result {} of a fused chain is part {} {}", r, p, name(out[r].dtype));
    slot[p] = static_cast<int16_t>(plan.n_in + r);
  }
  std::vector<int16_t> free;
  size_t n_scratch = 0;
  const size_t fixed = plan.n_in + plan.n_out;
  for (size_t p = 0; p < n; ++p) {
    if (slot[p] < 0) {
      if (free.empty()) free.push_back(static_cast<int16_t>(fixed + n_scratch++));
      slot[p] = free.back();
      free.pop_back();
    }
    Plan::Part part{body.parts[p].op,      body.parts[p].attrs,     {}, slot[p], dtype[p], body.parts[p].in,
                    plan.result_shapes[p], std::max(last_use[p], p)};
    for (int16_t k : body.parts[p].in) {
      const size_t i = to_size(k);
      part.in.push_back(i < plan.n_in ? k : slot[i - plan.n_in]);
    }
    for (size_t q = 0; q <= p; ++q)
      if (std::max(last_use[q], q) == p && to_size(slot[q]) >= fixed) free.push_back(slot[q]);
    plan.parts.push_back(std::move(part));
  }

  if (plan.numel == 0) return;
  std::vector<size_t> widest(n_scratch, 1);
  if (plan.by_matrix) {
    plan.choose_matrices(in, out);
  } else {
    for (auto& part : plan.parts)
      if (to_size(part.out) >= fixed) {
        size_t& most = widest[to_size(part.out) - fixed];
        most = std::max(most, size_bytes(part.dtype));
      }
    plan.axes = merged_axes(in, out);
    int64_t bytes = 0;
    for (size_t k = 0; k < fixed; ++k)
      if (plan.axes.back().strides[k] != 0 || k >= plan.n_in) bytes += static_cast<int64_t>(size_bytes(plan.dtypes[k]));
    for (size_t most : widest) bytes += static_cast<int64_t>(most);
    plan.choose_runs(bytes);
  }
  plan.scratch_bytes.assign(n_scratch, 1);
  for (size_t p = 0; p < n; ++p)
    if (to_size(slot[p]) >= fixed) {
      size_t& most = plan.scratch_bytes[to_size(slot[p]) - fixed];
      most = std::max(most, to_size(plan.result_shapes[p].numel()) * size_bytes(dtype[p]));
    }
  for (int t = 0; t < std::min<int64_t>(num_threads(), plan.blocks); ++t) plan.workers.push_back(plan.make_worker());
}

FusedChain::~FusedChain() = default;
FusedChain::FusedChain(FusedChain&&) noexcept = default;
FusedChain& FusedChain::operator=(FusedChain&&) noexcept = default;

void FusedChain::run(std::span<const Array* const> in, std::span<Array* const> out) {
  Plan& plan = *plan_;
  HOLON_CHECK(in.size() == plan.n_in && out.size() == plan.n_out,
              "a fused chain of {} inputs and {} outputs was passed {} and {}", plan.n_in, plan.n_out, in.size(),
              out.size());
  if (plan.numel == 0) return;
  if (!out[0]->device.is_host()) return plan.run_on_device(in, out);
  while (static_cast<int64_t>(plan.workers.size()) < std::min<int64_t>(num_threads(), plan.blocks))
    plan.workers.push_back(plan.make_worker());
  const int64_t work = plan.block_elements * static_cast<int64_t>(plan.parts.size());
  std::atomic<size_t> next{0};
  parallel_for(plan.blocks, std::max<int64_t>(1, kGrain / work), [&](int64_t begin, int64_t end) {
    plan.run_blocks(*plan.workers[next.fetch_add(1)], in, out, begin, end);
  });
}

bool FusedChain::may_overwrite(size_t in, size_t out) const {
  const Plan& plan = *plan_;
  if (plan.by_matrix) return false;
  if (plan.dtypes[in] != plan.dtypes[plan.n_in + out]) return false;
  for (auto& axis : plan.axes)
    if (axis.strides[in] != axis.strides[plan.n_in + out]) return false;
  // The part that writes may read it as its first operand, as kernels allow; later ones may not.
  for (size_t p = plan.parts.size(); p-- > 0;) {
    const bool writes = to_size(plan.parts[p].out) == plan.n_in + out;
    if (writes && !plan.parts[p].op->elementwise)
      return std::none_of(plan.parts[p].in.begin(), plan.parts[p].in.end(),
                          [&](int16_t k) { return to_size(k) == in; });
    for (size_t i = writes ? 1 : 0; i < plan.parts[p].in.size(); ++i)
      if (to_size(plan.parts[p].in[i]) == in) return false;
    if (writes) return true;
  }
  return false;
}

}  // namespace holon::graph
