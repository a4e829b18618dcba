#include "holon/tensor/print.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ostream>
#include <vector>

#include "holon/base/context.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/kernels/copy.h"
#include "holon/kernels/on_device.h"
#include "holon/tensor/node.h"

namespace holon {

PrintOptions& print_options() {
  static auto* o = new PrintOptions;
  return *o;
}

std::string to_string(DType dtype) { return print_options().prefix + "." + name(dtype); }
std::string to_string(const Placement& p) { return print_options().prefix + "." + p.str(); }
std::string to_string(Sbp s) { return print_options().prefix + ".sbp." + s.long_str(); }

std::string to_string(const NdSbp& s) {
  std::string text = "(";
  for (int i = 0; i < s.size(); ++i) text += (i ? ", " : "") + to_string(s[i]);
  return text + (s.size() == 1 ? ",)" : ")");
}

namespace {

// One number format for a whole tensor: whole numbers as "1.", else fixed digits, or exponents where sizes differ much.
struct NumberFormat {
  bool floating = false, whole = true, exponent = false;
  int width = 0;

  std::string text(double v, int64_t i, bool is_bool) const {
    char buffer[64];
    if (is_bool) return i ? "True" : "False";
    if (!floating) return std::to_string(i);
    if (std::isnan(v)) return "nan";
    if (std::isinf(v)) return v < 0 ? "-inf" : "inf";
    int precision = print_options().precision;
    if (exponent)
      std::snprintf(buffer, sizeof buffer, "%.*e", precision, v);
    else if (whole)
      std::snprintf(buffer, sizeof buffer, "%.0f.", v);
    else
      std::snprintf(buffer, sizeof buffer, "%.*f", precision, v);
    return buffer;
  }
};

class Printer {
 public:
  Printer(const Array& a, int indent) : a_(a), indent_(indent) {
    summarize_ = a.numel() > print_options().threshold;
    if (!a.device.is_host() || is_float8(a.dtype)) a_ = kernels::on_device(summarize_ ? edges(a) : a, {});
    if (is_float8(a.dtype)) a_ = kernels::converted(a_, float32);
    format_.floating = is_floating(a.dtype);
    double largest = 0, smallest = INFINITY;
    each(0, a_.offset, [&](int64_t at) {
      double v = std::fabs(number(at));
      if (!std::isfinite(v)) return;
      if (v != std::floor(v)) format_.whole = false;
      if (v > largest) largest = v;
      if (v > 0 && v < smallest) smallest = v;
    });
    if (format_.floating && largest > 0)
      format_.exponent = largest / smallest > 1000 || largest > 1e8 || smallest < 1e-4;
    if (format_.whole && largest < 1e8) format_.exponent = false;
    each(0, a_.offset, [&](int64_t at) { format_.width = std::max(format_.width, static_cast<int>(text(at).size())); });
  }

  std::string run() {
    if (a_.ndim() == 0) return text(a_.offset);
    if (a_.numel() == 0) return "[]";
    return level(0, a_.offset, indent_);
  }

 private:
  // What is shown of an array, and one element between along each axis that is cut, so that no more than that leaves
  // the device.
  static Array edges(Array a) {
    const int64_t edge = print_options().edge_items;
    for (int axis = 0; axis < a.ndim(); ++axis) {
      const int64_t n = a.shape[axis];
      if (n <= 2 * edge + 1) continue;
      Dims shape = a.shape;
      shape[axis] = 2 * edge + 1;
      Array less = Array::empty(shape, a.dtype, a.device);
      auto part = [&](const Array& of, int64_t at, int64_t size) {
        Dims cut = shape;
        cut[axis] = size;
        return of.view(cut, of.strides, at * of.strides[axis]);
      };
      Array first = part(less, 0, edge + 1), last = part(less, edge + 1, edge);
      kernels::copy(part(a, 0, edge + 1), first);
      kernels::copy(part(a, n - edge, edge), last);
      a = less;
    }
    return a;
  }

  int64_t shown(int axis, int64_t i) const {  // the next index to show after i
    int64_t n = a_.shape[axis], edge = print_options().edge_items;
    return summarize_ && n > 2 * edge && i + 1 == edge ? n - edge : i + 1;
  }

  template <class F>
  void each(int axis, int64_t at, F&& f) {
    if (axis == a_.ndim()) return f(at);
    for (int64_t i = 0; i < a_.shape[axis]; i = shown(axis, i)) each(axis + 1, at + i * a_.strides[axis], f);
  }

  double number(int64_t at) const {
    return visit_dtype(a_.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      return static_cast<double>(reinterpret_cast<const T*>(a_.storage->data())[at]);
    });
  }
  std::string text(int64_t at) const {
    int64_t whole = visit_dtype(a_.dtype, [&](auto tag) {
      using T = typename decltype(tag)::type;
      if constexpr (std::is_integral_v<T>)
        return static_cast<int64_t>(reinterpret_cast<const T*>(a_.storage->data())[at]);
      else
        return int64_t{0};
    });
    return format_.text(format_.floating ? number(at) : 0, whole, a_.dtype == boolean);
  }

  std::string level(int axis, int64_t at, int indent) {
    std::string s = "[";
    bool last = axis == a_.ndim() - 1;
    int column = indent + 1;
    for (int64_t i = 0, next; i < a_.shape[axis]; i = next) {
      next = shown(axis, i);
      std::string item;
      if (last) {
        item = text(at + i * a_.strides[axis]);
        item.insert(0, to_size(format_.width) - item.size(), ' ');
      } else {
        item = level(axis + 1, at + i * a_.strides[axis], indent + 1);
      }
      if (i > 0) {
        s += ",";
        if (!last) {
          s.append(to_size(a_.ndim() - axis - 1), '\n').append(to_size(indent + 1), ' ');
        } else if (column + static_cast<int>(item.size()) + 2 > print_options().line_width) {
          s.append("\n").append(to_size(indent + 1), ' ');
          column = indent + 1;
        } else {
          s += " ";
        }
      }
      s += item;
      column += static_cast<int>(item.size()) + 2;
      if (next > i + 1 && next < a_.shape[axis]) {
        s += last ? ",  ..." : ",\n" + std::string(to_size(indent + 1), ' ') + "...";
        column += 6;
      }
    }
    return s + "]";
  }

  Array a_;
  int indent_;
  bool summarize_ = false;
  NumberFormat format_;
};

}  // namespace

std::string array_to_string(const Array& array, int indent) { return Printer(array, indent).run(); }

namespace {

std::string text_of(const Tensor& t, const Array& a, bool whole) {
  if (!t.defined()) return "tensor(undefined)";
  std::vector<std::string> tail;
  auto add = [&](std::string s) { tail.push_back(std::move(s)); };
  if (t.is_global()) {
    add("placement=" + to_string(t.placement()));
    add("sbp=" + to_string(t.nd_sbp()));
  } else if (t.device().type != DeviceType::kCpu) {
    add("device='" + t.device().str() + "'");
  }
  add("dtype=" + to_string(t.dtype()));
  if (const auto& node = t.impl()->grad_fn())
    add(std::string("grad_fn=<") + node->name() + "_backward>");
  else if (t.requires_grad())
    add("requires_grad=True");

  std::string values, mark;
  if (t.is_symbolic()) {
    values = "...";
    mark = fmt::format(", shape={}, of a captured graph", t.shape());
  } else if (a.is_placeholder()) {
    values = "...";
    mark = fmt::format(", shape={}, without values", t.shape());
  } else if (!a.defined()) {
    values = "...";
    mark = fmt::format(", shape={}, part=none on {}", t.shape(), rank_text());
  } else {
    values = array_to_string(a, 7);
    if (!whole) mark = fmt::format(", shape={}, part=rank {}", t.shape(), Context::current().rank());
    if (a.numel() == 0)
      values +=
          fmt::format(", size=({}{})", t.shape().str().substr(1, t.shape().str().size() - 2), t.ndim() == 1 ? "," : "");
  }
  constexpr size_t kIndent = 7;  // of "tensor("
  std::string text = "tensor(" + values + mark;
  size_t last_line = text.size() - (text.rfind('\n') + 1) + 2;
  for (auto& s : tail) {
    const bool breaks = print_options().gather && last_line + s.size() + 2 > to_size(print_options().line_width);
    text += (breaks ? ",\n" + std::string(kIndent, ' ') : ", ") + s;
    last_line = s.size() + (breaks ? kIndent : last_line + 2);
  }
  return text + ")";
}

}  // namespace

std::string to_string(const Tensor& t) {
  if (!t.defined()) return text_of(t, {}, true);
  return text_of(t, t.array(), t.is_local() || t.nd_sbp().is_broadcast() || t.placement().size() == 1);
}

std::string to_string(const Tensor& t, const Array& whole) { return text_of(t, whole, true); }

std::ostream& operator<<(std::ostream& to, const Tensor& t) { return to << to_string(t); }

void print(const Tensor& t) {
  std::string s = to_string(t) + "\n";
  std::fwrite(s.data(), 1, s.size(), stdout);
  std::fflush(stdout);
}

}  // namespace holon
