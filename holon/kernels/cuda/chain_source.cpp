#include "holon/kernels/cuda/chain_source.h"

#include <algorithm>
#include <iterator>

#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/kernels/elementwise.h"

namespace holon::kernels::cuda {

namespace {

using Kind = ChainStep::Kind;
using Stride = ChainVariant::Stride;

const char* type_of(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "bool";
    case DType::kUInt8: return "uint8_t";
    case DType::kInt8: return "int8_t";
    case DType::kInt32: return "int32_t";
    case DType::kInt64: return "int64_t";
    case DType::kFloat16: return "Float16";
    case DType::kBFloat16: return "BFloat16";
    case DType::kFloat32: return "float";
    default: return "double";
  }
}

const char* op_of(const ChainStep& s) {
  switch (s.kind) {
    case Kind::kUnary: return name(static_cast<UnaryOp>(s.op));
    case Kind::kBinary: return name(static_cast<BinaryOp>(s.op));
    default: return name(static_cast<TernaryOp>(s.op));
  }
}

bool divides_integers(const ChainStep& s) {
  return s.kind == Kind::kBinary && divides(static_cast<BinaryOp>(s.op)) && !is_floating(s.dtype);
}

size_t n_arrays(const Chain& c) { return c.inputs.size() + c.results.size(); }
DType dtype_of(const Chain& c, size_t array) {
  return array < c.inputs.size() ? c.inputs[array] : c.dtype_of(c.results[array - c.inputs.size()]);
}

// The most elements that packs of 16 bytes of the narrowest array have; bools and bytes next to others do not count.
int widest_pack(const Chain& c, const ChainAxis& inner) {
  size_t narrow = 8, narrowest = 8;
  bool wider = false;
  for (size_t k = 0; k < n_arrays(c); ++k) {
    if (inner.strides[k] != 1) continue;
    const size_t size = size_bytes(dtype_of(c, k));
    narrowest = std::min(narrowest, size);
    if (size == 1) continue;
    wider = true;
    narrow = std::min(narrow, size);
  }
  return static_cast<int>(16 / (wider ? narrow : narrowest));
}

bool packs_fit(const Chain& c, std::span<const ChainAxis> axes, int width) {
  if (axes.size() > 1 && axes.back().size % width != 0) return false;
  for (size_t k = 0; k < n_arrays(c); ++k) {
    if (axes.back().strides[k] != 1) continue;
    const auto step = static_cast<int64_t>(pack_bytes(width, size_bytes(dtype_of(c, k))) / size_bytes(dtype_of(c, k)));
    for (auto& axis : axes.first(axes.size() - 1))
      if (axis.strides[k] % step != 0) return false;
  }
  return true;
}

class Writer {
 public:
  Writer(const Chain& chain, const ChainVariant& variant) : c_(chain), f_(variant) {}

  std::string text() {
    line("#include \"holon/kernels/cuda/chain_device.h\"");
    line("namespace holon::kernels::cuda {{");
    line("using Number = {};", f_.small ? "uint32_t" : "int64_t");
    line("using Place = {};", f_.small ? "int32_t" : "int64_t");
    arguments();
    element();
    places();
    kernel();
    line("}}");
    return std::move(text_);
  }

 private:
  template <class... A>
  void line(fmt::format_string<A...> format, A&&... a) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<A>(a)...);
    text_ += '\n';
  }
  std::string array(size_t k) const {
    return k < c_.inputs.size() ? fmt::format("x{}", k) : fmt::format("y{}", k - c_.inputs.size());
  }
  const char* array_type(size_t k) const { return type_of(dtype_of(c_, k)); }
  std::string value(int16_t v) const {
    const auto i = to_size(v);
    return i < c_.inputs.size() ? fmt::format("x{}", i) : fmt::format("v{}", i - c_.inputs.size());
  }
  bool is_input(size_t k) const { return k < c_.inputs.size(); }
  // An array's element is the same for all of a pack.
  bool one_for_pack(size_t k) const { return f_.width == 1 || f_.strides.back()[k] == Stride::kZero; }
  std::vector<size_t> moving() const {
    std::vector<size_t> arrays;
    for (size_t k = 0; k < n_arrays(c_); ++k)
      if (!f_.repeated(k)) arrays.push_back(k);
    return arrays;
  }

  void arguments() {
    line("struct Arguments {{");
    for (auto& arg : chain_arguments(c_, f_)) {
      const auto a = to_size(arg.a);
      switch (arg.kind) {
        case ChainArgument::Kind::kData:
          line("  {}{}* {};", is_input(a) ? "const " : "", array_type(a), array(a));
          break;
        case ChainArgument::Kind::kFaults: line("  FaultReport* faults;"); break;
        case ChainArgument::Kind::kName: line("  const char* op{};", a); break;
        case ChainArgument::Kind::kNumber: line("  uint64_t n{}_{};", a, arg.b); break;
        case ChainArgument::Kind::kCount: line("  int64_t count;"); break;
        case ChainArgument::Kind::kPacks: line("  int64_t packs;"); break;
        case ChainArgument::Kind::kDivider: line("  {} d{};", f_.small ? "alignas(8) Divider" : "int64_t", a); break;
        case ChainArgument::Kind::kStride: line("  int64_t s{}_{};", a, array(to_size(arg.b))); break;
      }
    }
    line("}};");
  }

  // All steps on one element.
  void element() {
    text_ += "__device__ __forceinline__ void element(const Arguments& a";
    for (size_t k = 0; k < n_arrays(c_); ++k)
      text_ += fmt::format(", {}{}{} {}", is_input(k) ? "const " : "", array_type(k), is_input(k) ? "" : "&", array(k));
    line(") {{");
    for (size_t s = 0; s < c_.steps.size(); ++s) line("  const auto v{} = {};", s, step(s));
    for (size_t r = 0; r < c_.results.size(); ++r) line("  y{} = {};", r, value(c_.results[r]));
    line("}}");
  }

  std::string step(size_t at) const {
    const ChainStep& s = c_.steps[at];
    const char* type = type_of(s.dtype);
    if (s.kind == Kind::kConvert) return fmt::format("convert<{}>({})", type_of(s.out), value(s.in[0]));
    if (s.kind == Kind::kWhere || s.kind == Kind::kMaskedFill) {
      const std::string taken = s.kind == Kind::kWhere ? value(s.in[1]) : fmt::format("number<{}>(a.n{}_0)", type, at);
      return fmt::format("select({}, {}, {})", value(s.in[0]), taken, value(s.in[2]));
    }
    std::string operands;
    size_t n = 0;
    const auto number = [&] { return fmt::format("number<Compute<{}>>(a.n{}_{})", type, at, n++); };
    for (int16_t v : s.in) {
      if (!operands.empty()) operands += ", ";
      operands += v == kNumber ? number() : fmt::format("widen({})", value(v));
    }
    while (n < s.numbers.size()) operands += ", " + number();
    if (divides_integers(s)) operands += fmt::format(", a.faults, a.op{}", at);
    const char* variant = s.kind == Kind::kUnary ? "unary"
        : s.kind == Kind::kTernary               ? "ternary"
        : divides_integers(s)                    ? "quotient"
                                                 : "binary";
    return fmt::format("Step<ops::{}, {}>::{}({})", op_of(s), type, variant, operands);
  }

  // Where a pack is in each array; of one axis, where an element does.
  void places() {
    line("struct Places {{");
    for (size_t k : moving()) line("  Place {};", array(k));
    line("}};");
    line("__device__ __forceinline__ Places places(const Arguments& a, Number n) {{");
    const size_t axes = f_.strides.size();
    for (size_t axis = axes; axis-- > 1;) {
      if (f_.small)
        line("  const Number q{0} = a.d{0}.quotient(n), r{0} = n - q{0} * a.d{0}.d;", axis);
      else
        line("  const Number q{0} = n / a.d{0}, r{0} = n - q{0} * a.d{0};", axis);
      line("  const auto i{0} = static_cast<Place>(r{0}){1};", axis,
           axis + 1 == axes && f_.width > 1 ? fmt::format(" * {}", f_.width) : "");
      line("  n = q{};", axis);
    }
    line("  const auto i0 = static_cast<Place>(n);");
    line("  Places p;");
    for (size_t k : moving()) {
      std::string sum;
      for (size_t axis = 0; axis < axes; ++axis) {
        const Stride stride = f_.strides[axis][k];
        if (stride == Stride::kZero) continue;
        if (!sum.empty()) sum += " + ";
        sum += stride == Stride::kOne ? fmt::format("i{}", axis)
                                      : fmt::format("i{0} * static_cast<Place>(a.s{0}_{1})", axis, array(k));
      }
      line("  p.{} = {};", array(k), sum);
    }
    line("  return p;");
    line("}}");
  }

  std::string load_of(size_t k, const std::string& place) const {
    const std::string from = fmt::format("a.{} + {}.{}", array(k), place, array(k));
    if (one_for_pack(k)) return fmt::format("load<1>({})", from);
    if (f_.strides.back()[k] == Stride::kOne) return fmt::format("load<{}>({})", f_.width, from);
    return fmt::format("load_strided<{}>({}, static_cast<Place>(a.s{}_{}))", f_.width, from, f_.strides.size() - 1,
                       array(k));
  }

  // The call of element() with the inputs at(k) and the outputs to(r).
  template <class At, class To>
  std::string call(At at, To to) const {
    std::string s = "element(a";
    for (size_t k = 0; k < c_.inputs.size(); ++k) s += f_.repeated(k) ? fmt::format(", x{}", k) : ", " + at(k);
    for (size_t r = 0; r < c_.results.size(); ++r) s += ", " + to(r);
    return s + ");";
  }

  void kernel() {
    // Registers: those of more arrays, or of wider elements, leave room for fewer blocks.
    bool wide = n_arrays(c_) > 6;
    for (auto& s : c_.steps) wide |= size_bytes(s.dtype) == 8;
    line("extern \"C\" __global__ void __launch_bounds__({}, {}) {}(const Arguments a) {{", kChainThreads, wide ? 2 : 4,
         kChainKernelName);
    for (size_t k = 0; k < c_.inputs.size(); ++k)
      if (f_.repeated(k)) line("  const {} x{} = *a.x{};", array_type(k), k, k);
    line("  const auto packs = static_cast<Number>(a.packs);");
    line("  const Number step = {} * static_cast<Number>(gridDim.x);", kChainThreads * f_.at_once);
    line("#pragma unroll 1");
    line("  for (Number first = blockIdx.x * static_cast<Number>({}) + threadIdx.x; first < packs; first += step) {{",
         kChainThreads * f_.at_once);
    line("    Places at[{}];", f_.at_once);
    line("    bool is[{}];", f_.at_once);
    for (size_t k : moving())
      if (is_input(k)) line("    Row<{}, {}> x{}[{}];", array_type(k), one_for_pack(k) ? 1 : f_.width, k, f_.at_once);
    line("#pragma unroll");
    line("    for (int j = 0; j < {}; ++j) {{", f_.at_once);
    line("      const Number n = first + j * {};", kChainThreads);
    line("      is[j] = n < packs;");
    line("      at[j] = places(a, (is[j] ? n : first){});",
         f_.flat() && f_.width > 1 ? fmt::format(" * {}", f_.width) : "");
    for (size_t k : moving())
      if (is_input(k)) line("      x{}[j] = {};", k, load_of(k, "at[j]"));
    line("    }}");
    line("#pragma unroll");
    line("    for (int j = 0; j < {}; ++j) {{", f_.at_once);
    line("      if (!is[j]) continue;");
    for (size_t r = 0; r < c_.results.size(); ++r)
      line("      Row<{}, {}> y{};", array_type(c_.inputs.size() + r), f_.width, r);
    line("#pragma unroll");
    line("      for (int w = 0; w < {}; ++w)", f_.width);
    line("        {}",
         call([&](size_t k) { return fmt::format("x{}[j].v[{}]", k, one_for_pack(k) ? "0" : "w"); },
              [](size_t r) { return fmt::format("y{}.v[w]", r); }));
    for (size_t r = 0; r < c_.results.size(); ++r) line("      store({}, y{});", output(r, "at[j]"), r);
    line("    }}");
    line("  }}");
    if (f_.flat() && f_.width > 1) rest();
    line("}}");
  }

  std::string output(size_t r, const char* place) const {
    const bool moves = !f_.repeated(c_.inputs.size() + r);
    return moves ? fmt::format("a.y{0} + {1}.y{0}", r, place) : fmt::format("a.y{}", r);
  }

  // What one axis has in addition to whole packs: fewer elements than a block has threads.
  void rest() {
    line("  const Number e = packs * {} + threadIdx.x;", f_.width);
    line("  if (blockIdx.x != 0 || e >= static_cast<Number>(a.count)) return;");
    line("  const Places at = places(a, e);");
    line("  {}",
         call([&](size_t k) { return fmt::format("a.x{0}[at.x{0}]", k); },
              [&](size_t r) { return fmt::format("*({})", output(r, "at")); }));
  }

  const Chain& c_;
  const ChainVariant& f_;
  std::string text_;
};

}  // namespace

bool ChainVariant::repeated(size_t array) const {
  return std::all_of(strides.begin(), strides.end(), [&](auto& axis) { return axis[array] == Stride::kZero; });
}

ChainVariant::ChainVariant(const Chain& chain, std::span<const ChainAxis> axes, bool aligned) {
  const ChainAxis& inner = axes.back();
  int64_t count = 1;
  std::vector<int64_t> reach(n_arrays(chain), 0);
  for (auto& axis : axes) {
    count *= axis.size;
    SmallVec<Stride, 8>& row = strides.emplace_back();
    for (size_t k = 0; k < n_arrays(chain); ++k) {
      const int64_t stride = axis.strides[k];
      row.push_back(stride == 0 ? Stride::kZero : stride == 1 && &axis == &inner ? Stride::kOne : Stride::kAny);
      reach[k] += (axis.size - 1) * std::abs(stride);
    }
  }
  constexpr int64_t most = (int64_t{1} << 31) - 1;
  small = count <= most && std::all_of(reach.begin(), reach.end(), [](int64_t r) { return r <= most; });

  bool rows = aligned;  // outputs are written in packs
  for (size_t k = chain.inputs.size(); k < n_arrays(chain); ++k) rows &= inner.strides[k] == 1;
  if (rows)
    for (width = widest_pack(chain, inner); width > 1 && !packs_fit(chain, axes, width);) width /= 2;
  // About 64 bytes under way in each thread.
  size_t bytes = 0;
  for (size_t k = 0; k < chain.inputs.size(); ++k)
    if (!repeated(k)) bytes += (inner.strides[k] == 0 ? 1 : to_size(width)) * size_bytes(chain.inputs[k]);
  at_once = bytes <= 16 ? 4 : bytes <= 32 ? 2 : 1;
}

std::vector<ChainArgument> chain_arguments(const Chain& chain, const ChainVariant& variant) {
  using K = ChainArgument::Kind;
  std::vector<ChainArgument> list;
  for (size_t k = 0; k < n_arrays(chain); ++k) list.push_back({K::kData, static_cast<int>(k)});
  bool divide = false;
  for (size_t s = 0; s < chain.steps.size(); ++s) {
    const ChainStep& step = chain.steps[s];
    if (divides_integers(step)) list.push_back({K::kName, static_cast<int>(s)}), divide = true;
    for (size_t n = 0; n < step.numbers.size(); ++n)
      list.push_back({K::kNumber, static_cast<int>(s), static_cast<int>(n)});
  }
  if (divide) list.push_back({K::kFaults});
  list.push_back({K::kCount});
  list.push_back({K::kPacks});
  for (size_t axis = 0; axis < variant.strides.size(); ++axis) {
    if (axis > 0) list.push_back({K::kDivider, static_cast<int>(axis)});
    for (size_t k = 0; k < n_arrays(chain); ++k)
      if (variant.strides[axis][k] == Stride::kAny)
        list.push_back({K::kStride, static_cast<int>(axis), static_cast<int>(k)});
  }
  return list;
}

std::string chain_source(const Chain& chain, const ChainVariant& variant) { return Writer(chain, variant).text(); }

}  // namespace holon::kernels::cuda
