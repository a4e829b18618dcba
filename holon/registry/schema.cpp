#include "holon/registry/schema.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <set>
#include <variant>

#include "holon/base/error.h"
#include "holon/base/fork.h"

namespace holon {

const char* intern_text(std::string_view text) {
  static auto* mutex = new ProcessMutex;
  static auto* texts = new std::set<std::string, std::less<>>;
  std::lock_guard lock(*mutex);
  auto it = texts->find(text);
  if (it == texts->end()) it = texts->emplace(text).first;
  return it->c_str();
}

const ArgDef* Schema::find(std::string_view wanted) const {
  for (auto& a : args)
    if (a.name == wanted) return &a;
  return nullptr;
}

int Schema::attr(std::string_view wanted) const {
  for (auto& a : args)
    if (a.attr >= 0 && a.name == wanted) return a.attr;
  internal_error(__FILE__, __LINE__, "attr", "op {} has no attribute {}", name, wanted);
}

namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Schema run() {
    Schema s;
    s.text = text_;
    s.name = word();
    expect('(');
    bool keyword_only = false;
    while (!accept(')')) {
      if (accept('*')) {
        keyword_only = true;
      } else {
        s.args.push_back(arg());
        s.args.back().keyword_only = keyword_only;
      }
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    expect('-');
    expect('>');
    outputs(s);
    for (auto& a : s.args) {
      if (a.type == ArgType::kTensor || a.type == ArgType::kTensorList) {
        a.input = s.n_inputs++;
        s.input_list |= a.type == ArgType::kTensorList;
      } else {
        a.attr = s.n_attrs++;
        push_default(s.defaults, a);
      }
    }
    check(!s.input_list || s.n_inputs == 1, "a list of tensors is the only tensor argument");
    return s;
  }

 private:
  ArgDef arg() {
    ArgDef a;
    std::string type = word();
    if (type == "Tensor")
      a.type = ArgType::kTensor;
    else if (type == "int")
      a.type = ArgType::kInt;
    else if (type == "float")
      a.type = ArgType::kFloat;
    else if (type == "bool")
      a.type = ArgType::kBool;
    else if (type == "Scalar")
      a.type = ArgType::kScalar;
    else if (type == "str")
      a.type = ArgType::kText;
    else if (type == "dtype")
      a.type = ArgType::kDType;
    else if (type == "device")
      a.type = ArgType::kDevice;
    else if (type == "placement")
      a.type = ArgType::kPlacement;
    else if (type == "sbp")
      a.type = ArgType::kSbp;
    else
      check(false, "unknown type " + type);
    if (accept('[')) {
      check(type == "Tensor" || type == "int", "only lists of Tensor and int exist");
      a.type = type == "int" ? ArgType::kInts : ArgType::kTensorList;
      if (std::isdigit(peek())) a.repeat = std::atoi(word().c_str());
      expect(']');
    } else if (accept('.')) {
      expect('.');
      expect('.');
      check(type == "Tensor" || type == "int", "only lists of Tensor and int exist");
      a.type = type == "int" ? ArgType::kInts : ArgType::kTensorList;
      a.variadic = true;
    }
    a.optional = accept('?');
    a.name = word();
    if (accept('=')) {
      a.has_default = true;
      a.default_text = value();
    }
    return a;
  }

  void outputs(Schema& s) {
    if (accept('(')) {
      s.n_outputs = 0;
      do {
        check(word() == "Tensor", "outputs are tensors");
        ++s.n_outputs;
        if (peek() != ',' && peek() != ')') s.output_names.push_back(word());
      } while (accept(','));
      expect(')');
      check(s.output_names.empty() || static_cast<int>(s.output_names.size()) == s.n_outputs,
            "name all outputs or none");
    } else {
      check(word() == "Tensor", "outputs are tensors");
      if (accept('[')) {
        expect(']');
        s.n_outputs = -1;
      }
    }
    check(peek() == 0, "text after the outputs");
  }

  void push_default(Attrs& d, const ArgDef& a) {
    const std::string& v = a.default_text;
    if (!a.has_default || v == "None") return d.push_none();
    switch (a.type) {
      case ArgType::kInt: return d.push_int(std::atoll(v.c_str()));
      case ArgType::kFloat: return d.push_float(std::atof(v.c_str()));
      case ArgType::kBool: return d.push_bool(v == "True");
      case ArgType::kScalar:
        return d.push_scalar(v.find_first_of(".e") != std::string::npos ? Scalar(std::atof(v.c_str()))
                                                                        : Scalar(int64_t{std::atoll(v.c_str())}));
      case ArgType::kText: return d.push_text(v);
      case ArgType::kInts: {
        Dims list;
        if (v[0] != '[') {
          for (int i = 0; i < a.repeat; ++i) list.push_back(std::atoll(v.c_str()));
        } else {
          for (const char* p = v.c_str() + 1; *p && *p != ']';) {
            char* end;
            list.push_back(std::strtoll(p, &end, 10));
            p = *end == ',' ? end + 1 : end;
          }
        }
        return d.push_ints(list);
      }
      default: check(false, "a default of this type is not supported: " + v);
    }
  }

  std::string value() {
    skip();
    std::string v;
    int depth = 0;
    while (at_ < text_.size() && (depth > 0 || (text_[at_] != ',' && text_[at_] != ')'))) {
      depth += (text_[at_] == '[') - (text_[at_] == ']');
      if (text_[at_] != '\'' && text_[at_] != ' ') v += text_[at_];
      ++at_;
    }
    return v;
  }
  std::string word() {
    skip();
    std::string w;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '_'))
      w += text_[at_++];
    check(!w.empty(), "a name is missing");
    return w;
  }
  void skip() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  char peek() {
    skip();
    return at_ < text_.size() ? text_[at_] : 0;
  }
  bool accept(char c) {
    if (peek() != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) { check(accept(c), std::string("expected '") + c + "'"); }
  void check(bool ok, const std::string& what) {
    if (!ok)
      fail_value("schema \"{}\": {} (at column {}). holon/registry/schema.h lists the types and the syntax.", text_,
                 what, at_);
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

Schema parse_schema(std::string_view text) { return Parser(text).run(); }

namespace {

std::string_view kind_of(const AttrValue& v) {
  static constexpr const char* kNames[] = {"bool",  "int",    "float",     "str", "dtype",
                                           "int[]", "device", "placement", "sbp"};
  return kNames[v.index()];
}

// Whether v was of a type that fits.
bool push_value(Attrs& to, const ArgDef& a, const AttrValue& v) {
  auto* i = std::get_if<int64_t>(&v);
  auto* b = std::get_if<bool>(&v);
  auto* f = std::get_if<double>(&v);
  switch (a.type) {
    case ArgType::kInt: return i && (to.push_int(*i), true);
    case ArgType::kBool: return b && (to.push_bool(*b), true);
    case ArgType::kFloat: return (f || i) && (to.push_float(f ? *f : static_cast<double>(*i)), true);
    case ArgType::kScalar: return (f || i || b) && (to.push_scalar(f ? Scalar(*f) : i ? Scalar(*i) : Scalar(*b)), true);
    case ArgType::kText: {
      auto* s = std::get_if<std::string>(&v);
      return s && (to.push_text(*s), true);
    }
    case ArgType::kDType: {
      auto* d = std::get_if<DType>(&v);
      return d && (to.push_dtype(*d), true);
    }
    case ArgType::kInts: {
      auto* list = std::get_if<Dims>(&v);
      if (list)
        to.push_ints(*list);
      else if (i)
        to.push_ints(Dims::filled(std::max(a.repeat, 1), *i));
      return list || i;
    }
    case ArgType::kDevice: {
      auto* d = std::get_if<Device>(&v);
      return d && (to.push_device(*d), true);
    }
    case ArgType::kPlacement: {
      auto* p = std::get_if<Placement>(&v);
      return p && (to.push_placement(*p), true);
    }
    case ArgType::kSbp: {
      auto* s = std::get_if<NdSbp>(&v);
      return s && (to.push_nd_sbp(*s), true);
    }
    default: return false;
  }
}

}  // namespace

Attrs make_attrs(const Schema& schema, std::span<const NamedAttr> given) {
  for (auto& [key, value] : given) {
    auto* a = schema.find(key);
    if (!a || a->attr < 0) fail_type("{}: there is no attribute {}. Signature: {}", schema.name, key, schema.text);
  }
  Attrs attrs;
  for (auto& a : schema.args) {
    if (a.attr < 0) continue;
    auto it = std::find_if(given.begin(), given.end(), [&](auto& p) { return p.first == a.name; });
    if (it != given.end()) {
      if (!push_value(attrs, a, it->second))
        fail_type("{}: attribute {} cannot hold a value of type {}. Signature: {}", schema.name, a.name,
                  kind_of(it->second), schema.text);
      continue;
    }
    if (!a.optional && !a.has_default)
      fail_type("{}: attribute {} is missing. Signature: {}", schema.name, a.name, schema.text);
    attrs.push_from(schema.defaults, a.attr);
  }
  return attrs;
}

}  // namespace holon
