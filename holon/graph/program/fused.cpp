#include "holon/graph/program/fused.h"

#include <algorithm>
#include <atomic>
#include <string_view>

#include "holon/base/error.h"
#include "holon/base/parallel.h"

namespace holon::graph {
namespace {

// What a block's operands take of the caches, by benchmarks/micro/fused_bench.cpp: shorter runs of memory are read more
// slowly.
constexpr int64_t kBlockBytes = 64 << 10;
constexpr int64_t kLeastBlock = 256, kMostBlock = 16384;  // elements
// Rows of this length are cut into pieces with one axis, for which kernels are fastest; shorter ones stay together.
constexpr int64_t kLongRow = 1024;
constexpr int64_t kGrain = 32768;  // elements times ops that are worth a thread

struct Axis {
  int64_t size;
  SmallVec<int64_t, 8> strides;  // of the inputs, then of the outputs
};

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

}  // namespace

bool fusible(const OpDef& op) {
  using namespace std::string_view_literals;
  if (!op.kernel || op.random || op.schema.n_outputs != 1 || op.schema.input_list) return false;
  // They put a number into one addend of a partial sum and 0 into the others, which a window does not know.
  if (op.schema.name == "fill"sv || op.schema.name == "zero"sv) return false;
  return op.elementwise || op.schema.name == "cast"sv || op.schema.name == "where"sv ||
      op.schema.name == "masked_fill"sv;
}

// Slots: inputs, outputs, then scratch.
struct FusedChain::Plan {
  struct Part {
    const OpDef* op;
    Attrs attrs;
    SmallVec<int16_t, 3> in;  // slots
    int16_t out;
    DType dtype;
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
  size_t n_in = 0, n_out = 0, n_scratch = 0;
  std::vector<Axis> axes;
  std::vector<DType> dtypes;      // of inputs and outputs
  size_t block_axis = 0;          // cut into pieces; the axes after it are whole in a window
  int64_t piece = 1, pieces = 1;  // of the block axis
  int64_t inner = 1;              // elements of the axes after it
  int64_t blocks = 1, block_elements = 1;
  int64_t numel = 0;
  std::vector<std::unique_ptr<Worker>> workers;

  void choose_blocks(int64_t bytes_per_element) {
    const int64_t most = std::clamp(kBlockBytes / bytes_per_element, kLeastBlock, kMostBlock) / 64 * 64;
    block_axis = axes.size() - 1;
    if (axes.back().size < kLongRow)
      while (block_axis > 0 && inner * axes[block_axis].size <= most / 2) inner *= axes[block_axis--].size;
    const int64_t size = axes[block_axis].size;
    piece = std::clamp<int64_t>(most / inner, 1, size);
    pieces = (size + piece - 1) / piece;
    blocks = pieces;
    for (size_t a = 0; a < block_axis; ++a) blocks *= axes[a].size;
    block_elements = piece * inner;
  }

  std::unique_ptr<Worker> make_worker() const {
    auto w = std::make_unique<Worker>();
    Dims shape;
    for (size_t a = block_axis; a < axes.size(); ++a) shape.push_back(a == block_axis ? piece : axes[a].size);
    w->windows.resize(n_in + n_out);
    for (size_t k = 0; k < w->windows.size(); ++k) {
      Array& x = w->windows[k];
      x.shape = shape;
      for (size_t a = block_axis; a < axes.size(); ++a) x.strides.push_back(axes[a].strides[k]);
      x.dtype = dtypes[k];
    }
    const size_t scratch_bytes = static_cast<size_t>(block_elements) * 8;
    Ref<Storage> scratch = n_scratch ? allocate_storage(scratch_bytes * n_scratch) : Ref<Storage>();
    w->results.resize(parts.size());
    for (size_t p = 0; p < parts.size(); ++p) {
      if (static_cast<size_t>(parts[p].out) < n_in + n_out) continue;
      Array& x = w->results[p];
      x.storage = scratch;
      x.shape = shape;
      x.strides = contiguous_strides(shape);
      x.dtype = parts[p].dtype;
      x.offset = static_cast<int64_t>((static_cast<size_t>(parts[p].out) - n_in - n_out) * scratch_bytes /
                                      size_bytes(x.dtype));
    }
    // Scratch slots are named by the part that has written them last.
    std::vector<Array*> slot(n_in + n_out + n_scratch);
    for (size_t k = 0; k < n_in + n_out; ++k) slot[k] = &w->windows[k];
    for (size_t p = 0; p < parts.size(); ++p) {
      for (int16_t k : parts[p].in) w->in.push_back(slot[static_cast<size_t>(k)]);
      const size_t to = static_cast<size_t>(parts[p].out);
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
      if (now != length) set_length(w, length = now);
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
  plan.numel = out[0].shape.numel();
  const size_t n = body.parts.size();
  for (auto& o : in) plan.dtypes.push_back(o.dtype);
  for (auto& o : out) {
    HOLON_CHECK(o.shape == out[0].shape, "outputs of a fused chain have shapes {} and {}", out[0].shape, o.shape);
    plan.dtypes.push_back(o.dtype);
  }

  // Dtypes of the parts, and the last part that reads each.
  std::vector<DType> dtype(n);
  std::vector<size_t> last_use(n);
  for (size_t p = 0; p < n; ++p) {
    const FusedPart& part = body.parts[p];
    HOLON_CHECK(fusible(*part.op), "{} cannot be a part of a fused chain", part.op->name());
    SmallVec<Meta, 4> metas;
    for (int16_t k : part.in) {
      const size_t i = static_cast<size_t>(k);
      HOLON_CHECK(k >= 0 && i < in.size() + p, "part {} of a fused chain, {}, reads operand {}", p, part.op->name(), k);
      if (i >= in.size()) last_use[i - in.size()] = p;
      // An operand with one element is like any other in a window.
      metas.push_back(i < in.size() ? Meta{in[i].shape, in[i].dtype} : Meta{out[0].shape, dtype[i - in.size()]});
    }
    Infer infer(*part.op, part.attrs, metas, (1u << part.in.size()) - 1);
    part.op->infer(infer);
    HOLON_CHECK(infer.out_[0].shape == out[0].shape,
                "part {} of a fused chain, {}, gives {} where the chain's shape is {}", p, part.op->name(),
                infer.out_[0].shape, out[0].shape);
    dtype[p] = infer.out_[0].dtype;
  }

  // Slots: of an output where the part is one, else of scratch that nobody needs any more.
  std::vector<int16_t> slot(n, -1);
  for (size_t r = 0; r < body.results.size(); ++r) {
    const size_t p = static_cast<size_t>(body.results[r]);
    HOLON_CHECK(p < n && slot[p] < 0 && dtype[p] == out[r].dtype, "result {} of a fused chain is part {} {}", r, p,
                name(out[r].dtype));
    slot[p] = static_cast<int16_t>(plan.n_in + r);
  }
  std::vector<int16_t> free;
  const size_t fixed = plan.n_in + plan.n_out;
  for (size_t p = 0; p < n; ++p) {
    if (slot[p] < 0) {
      if (free.empty()) free.push_back(static_cast<int16_t>(fixed + plan.n_scratch++));
      slot[p] = free.back();
      free.pop_back();
    }
    Plan::Part part{body.parts[p].op, body.parts[p].attrs, {}, slot[p], dtype[p]};
    for (int16_t k : body.parts[p].in) {
      const size_t i = static_cast<size_t>(k);
      part.in.push_back(i < plan.n_in ? k : slot[i - plan.n_in]);
    }
    for (size_t q = 0; q <= p; ++q)
      if (std::max(last_use[q], q) == p && static_cast<size_t>(slot[q]) >= fixed) free.push_back(slot[q]);
    plan.parts.push_back(std::move(part));
  }

  plan.axes = merged_axes(in, out);
  int64_t bytes = 0;
  for (size_t k = 0; k < fixed; ++k)
    if (plan.axes.back().strides[k] != 0 || k >= plan.n_in) bytes += static_cast<int64_t>(size_bytes(plan.dtypes[k]));
  for (size_t s = 0; s < plan.n_scratch; ++s) {
    size_t most = 1;
    for (auto& part : plan.parts)
      if (static_cast<size_t>(part.out) == fixed + s) most = std::max(most, size_bytes(part.dtype));
    bytes += static_cast<int64_t>(most);
  }
  if (plan.numel == 0) return;
  plan.choose_blocks(bytes);
  for (int t = 0; t < std::min<int64_t>(num_threads(), plan.blocks); ++t) plan.workers.push_back(plan.make_worker());
}

FusedChain::~FusedChain() = default;
FusedChain::FusedChain(FusedChain&&) noexcept = default;
FusedChain& FusedChain::operator=(FusedChain&&) noexcept = default;

void FusedChain::run(std::span<const Array* const> in, std::span<Array* const> out) {
  Plan& plan = *plan_;
  HOLON_CHECK(in.size() == plan.n_in && out.size() == plan.n_out,
              "a fused chain of {} inputs and {} outputs was given {} and {}", plan.n_in, plan.n_out, in.size(),
              out.size());
  if (plan.numel == 0) return;
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
  if (plan.dtypes[in] != plan.dtypes[plan.n_in + out]) return false;
  for (auto& axis : plan.axes)
    if (axis.strides[in] != axis.strides[plan.n_in + out]) return false;
  // The part that writes may read it as its first operand, as kernels allow; later ones may not.
  for (size_t p = plan.parts.size(); p-- > 0;) {
    const bool writes = static_cast<size_t>(plan.parts[p].out) == plan.n_in + out;
    if (writes && !plan.parts[p].op->elementwise)
      return std::none_of(plan.parts[p].in.begin(), plan.parts[p].in.end(),
                          [&](int16_t k) { return static_cast<size_t>(k) == in; });
    for (size_t i = writes ? 1 : 0; i < plan.parts[p].in.size(); ++i)
      if (static_cast<size_t>(plan.parts[p].in[i]) == in) return false;
    if (writes) return true;
  }
  return false;
}

}  // namespace holon::graph
