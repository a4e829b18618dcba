// After the comments of Python's Lib/pickletools.py (the opcodes) and what torch/_utils.py says of its arguments.
#include "holon/checkpoint/formats/pickle.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/checkpoint/core/printable.h"
#include "holon/checkpoint/core/tree.h"
#include "holon/checkpoint/formats/pickle_names.h"
#include "holon/checkpoint/formats/safetensors.h"

namespace holon::checkpoint {

using nlohmann::json;

namespace {

constexpr size_t kMostObjects = size_t{1} << 22;
// Text that is repeated by reference: keys in the names of tensors, too.
constexpr uint64_t kMostText = 256'000'000;

// The opcodes of protocols 2 to 5 that are read.
enum Op : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kEmptyList = ']',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kDict = 'd',
  kAppends = 'e',
  kBinGet = 'h',
  kInst = 'i',
  kLongBinGet = 'j',
  kList = 'l',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyTuple = ')',
  kEmptyDict = '}',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
};

enum class Kind : uint8_t { kNone, kBool, kInt, kFloat, kText, kBytes, kTuple, kList, kDict, kName, kStorage, kTensor };
constexpr const char* kKinds[] = {"None",  "bool", "int",  "float", "text",    "bytes object",
                                  "tuple", "list", "dict", "class", "storage", "Tensor"};

using Ref = uint32_t;  // of a node

struct Node {
  Kind kind = Kind::kNone;
  uint32_t at = 0;        // in items, names, storages or tensors
  int64_t integer = 0;    // of a float, its bits
  std::string_view text;  // of the pickle
  double number() const { return std::bit_cast<double>(integer); }
};

struct Storage {
  std::string_view key;
  const PickleName* type = nullptr;  // of a storage or of bytes
  uint64_t items = 0;
};

struct Rebuilt {
  uint32_t storage = 0;
  const PickleName* dtype = nullptr;
  int64_t offset = 0;
  Dims shape, strides;
};

class Machine {
 public:
  Machine(std::string_view pickle, std::string_view file) : rest_(pickle), file_(file) {}

  Unpickled run() {
    while (step()) {
    }
    if (stack_.size() != 1) damaged("it ends with more than one object");
    json tree = convert(stack_[0], "", "", 0);
    try {
      out_.tree = tree.dump();
    } catch (const json::exception&) {
      fail_runtime("{}: text in it is not UTF-8. Convert it with PyTorch.", file_);
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void damaged(std::string_view what) const {
    fail_runtime("{}: its pickle cannot be read: {}. The file is damaged, or PyTorch did not write it.", file_, what);
  }
  [[noreturn]] void refuse(std::string_view what) const {
    fail_runtime("{}: this file would call {}; it is not read. Only tensors, numbers, text, lists, tuples and dicts "
                 "are: save a state_dict() with PyTorch, or its tensors as safetensors.",
                 file_, printable(what));
  }

  // Bytes of the program.
  std::string_view take(uint64_t n) {
    if (n > rest_.size()) damaged("it is truncated");
    std::string_view out = rest_.substr(0, to_size(n));
    rest_.remove_prefix(to_size(n));
    return out;
  }
  template <class T>
  T number() {
    T value;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::string_view line() {
    const size_t end = rest_.find('\n');
    if (end == rest_.npos) damaged("it is truncated");
    std::string_view out = take(end);
    take(1);
    return out;
  }

  // Objects.
  Ref add(Node node) {
    if (nodes_.size() >= kMostObjects) damaged(fmt::format("it has more than {} objects", kMostObjects));
    nodes_.push_back(node);
    return static_cast<Ref>(nodes_.size() - 1);
  }
  void push(Node node) { stack_.push_back(add(node)); }
  void push_integer(int64_t n) { push({Kind::kInt, 0, n, {}}); }
  void push_text(Kind kind, std::string_view text) { push({kind, 0, 0, text}); }
  Ref add_items(Kind kind, std::vector<Ref> items) {
    items_.push_back(std::move(items));
    return add({kind, static_cast<uint32_t>(items_.size() - 1), 0, {}});
  }
  Ref pop() {
    if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) damaged("an opcode has too few arguments");
    const Ref top = stack_.back();
    stack_.pop_back();
    return top;
  }
  Ref top() {
    const Ref r = pop();
    stack_.push_back(r);
    return r;
  }
  std::vector<Ref> pop_n(size_t n) {
    std::vector<Ref> out(n);
    for (size_t i = n; i-- > 0;) out[i] = pop();
    return out;
  }
  std::vector<Ref> pop_to_mark() {
    if (marks_.empty()) damaged("an opcode has no mark");
    std::vector<Ref> out(stack_.begin() + static_cast<ptrdiff_t>(marks_.back()), stack_.end());
    stack_.resize(marks_.back());
    marks_.pop_back();
    return out;
  }
  std::vector<Ref>& items(Ref r, Kind kind) {
    if (nodes_[r].kind != kind)
      damaged(fmt::format("a {} is where a {} should be", at_index(kKinds, nodes_[r].kind), at_index(kKinds, kind)));
    return items_[nodes_[r].at];
  }
  int64_t integer(Ref r) {
    if (nodes_[r].kind != Kind::kInt)
      damaged(fmt::format("a {} is where an int should be", at_index(kKinds, nodes_[r].kind)));
    return nodes_[r].integer;
  }
  std::string_view text(Ref r) {
    if (nodes_[r].kind != Kind::kText)
      damaged(fmt::format("a {} is where text should be", at_index(kKinds, nodes_[r].kind)));
    return nodes_[r].text;
  }
  const PickleName& named(Ref r) {
    if (nodes_[r].kind != Kind::kName)
      damaged(fmt::format("a {} is where a class should be", at_index(kKinds, nodes_[r].kind)));
    return *names_[nodes_[r].at];
  }
  void memoize(uint64_t place) {
    if (memo_.size() >= kMostObjects) damaged(fmt::format("it has more than {} objects", kMostObjects));
    memo_[place] = top();
  }
  void get(uint64_t place) {
    auto it = memo_.find(place);
    if (it == memo_.end()) damaged("it refers to an object that is not there");
    stack_.push_back(it->second);
  }

  void push_long(uint64_t bytes) {
    std::string_view digits = take(bytes);
    if (bytes > sizeof(int64_t)) damaged(fmt::format("an integer of {} bytes; Holon's have at most 8", bytes));
    uint64_t n = !digits.empty() && digits.back() & 0x80 ? UINT64_MAX : 0;  // two's complement
    std::memcpy(&n, digits.data(), digits.size());
    push_integer(static_cast<int64_t>(n));
  }

  const PickleName* find(std::string_view module, std::string_view name) {
    const PickleName* known = find_pickle_name(module, name);
    if (!known) refuse(fmt::format("{}.{}", printable(module), printable(name)));
    return known;
  }
  void push_name(std::string_view module, std::string_view name) {
    names_.push_back(find(module, name));
    push({Kind::kName, static_cast<uint32_t>(names_.size() - 1), 0, {}});
  }

  bool step() {
    const auto op = number<uint8_t>();
    if (std::max(stack_.size(), marks_.size()) > kMostObjects)
      damaged(fmt::format("more than {} objects are on its stack", kMostObjects));
    switch (op) {
      case kProto:
        if (const auto version = number<uint8_t>(); version < 2 || version > 5)
          damaged(fmt::format("it is of protocol {}; 2 to 5 are read", version));
        break;
      case kFrame: take(8); break;
      case kStop: return false;
      case kMark: marks_.push_back(stack_.size()); break;
      case kPop: pop(); break;
      case kPopMark: pop_to_mark(); break;
      case kNone: push({}); break;
      case kNewTrue:
      case kNewFalse: push({Kind::kBool, 0, op == kNewTrue, {}}); break;
      case kBinInt: push_integer(number<int32_t>()); break;
      case kBinInt1: push_integer(number<uint8_t>()); break;
      case kBinInt2: push_integer(number<uint16_t>()); break;
      case kLong1: push_long(number<uint8_t>()); break;
      case kLong4: push_long(number<uint32_t>()); break;
      case kBinFloat: {
        uint64_t bits = number<uint64_t>(), turned = 0;  // big-endian
        for (int i = 0; i < 8; ++i, bits >>= 8) turned = turned << 8 | (bits & 0xff);
        push({Kind::kFloat, 0, std::bit_cast<int64_t>(turned), {}});
        break;
      }
      case kBinUnicode: push_text(Kind::kText, take(number<uint32_t>())); break;
      case kShortBinUnicode: push_text(Kind::kText, take(number<uint8_t>())); break;
      case kBinUnicode8: push_text(Kind::kText, take(number<uint64_t>())); break;
      case kBinString: push_text(Kind::kText, take(number<uint32_t>())); break;  // of Python 2
      case kShortBinString: push_text(Kind::kText, take(number<uint8_t>())); break;
      case kBinBytes: push_text(Kind::kBytes, take(number<uint32_t>())); break;
      case kShortBinBytes: push_text(Kind::kBytes, take(number<uint8_t>())); break;
      case kBinBytes8: push_text(Kind::kBytes, take(number<uint64_t>())); break;
      case kEmptyList: stack_.push_back(add_items(Kind::kList, {})); break;
      case kEmptyTuple: stack_.push_back(add_items(Kind::kTuple, {})); break;
      case kEmptyDict: stack_.push_back(add_items(Kind::kDict, {})); break;
      case kList: stack_.push_back(add_items(Kind::kList, pop_to_mark())); break;
      case kTuple: stack_.push_back(add_items(Kind::kTuple, pop_to_mark())); break;
      case kTuple1:
      case kTuple2:
      case kTuple3: stack_.push_back(add_items(Kind::kTuple, pop_n(to_size(op - kTuple1 + 1)))); break;
      case kDict: {
        auto pairs = pop_to_mark();
        stack_.push_back(add_items(Kind::kDict, {}));
        set_items(pairs);
        break;
      }
      case kAppend: {
        const Ref item = pop();
        items(top(), Kind::kList).push_back(item);
        break;
      }
      case kAppends: {
        auto more = pop_to_mark();
        auto& list = items(top(), Kind::kList);
        list.insert(list.end(), more.begin(), more.end());
        break;
      }
      case kSetItem: set_items(pop_n(2)); break;
      case kSetItems: set_items(pop_to_mark()); break;
      case kBinPut: memoize(number<uint8_t>()); break;
      case kLongBinPut: memoize(number<uint32_t>()); break;
      case kMemoize: memoize(memo_.size()); break;
      case kBinGet: get(number<uint8_t>()); break;
      case kLongBinGet: get(number<uint32_t>()); break;
      case kGlobal: {
        auto module = line();
        push_name(module, line());
        break;
      }
      case kStackGlobal: {
        const Ref name = pop(), module = pop();
        push_name(text(module), text(name));
        break;
      }
      case kInst: {
        auto module = line();
        refuse(fmt::format("{}.{}", printable(module), printable(line())));
      }
      case kReduce:
      case kNewObj: {
        const Ref arguments = pop(), function = pop();
        stack_.push_back(call(named(function), items(arguments, Kind::kTuple), 0));
        break;
      }
      case kBuild: {
        // An OrderedDict's attributes, such as the _metadata of a state dict.
        pop();
        if (nodes_[top()].kind != Kind::kDict)
          refuse(fmt::format("__setstate__ of a {}", at_index(kKinds, nodes_[top()].kind)));
        break;
      }
      case kBinPersId: {
        const Ref id = pop();
        stack_.push_back(storage(items(id, Kind::kTuple)));
        break;
      }
      default: damaged(fmt::format("it has the opcode 0x{:02x}, which tensors and plain containers do not need", op));
    }
    return true;
  }

  void set_items(const std::vector<Ref>& pairs) {
    if (pairs.size() % 2 != 0) damaged("a key without a value");
    auto& dict = items(top(), Kind::kDict);
    dict.insert(dict.end(), pairs.begin(), pairs.end());
  }

  // ("storage", type, key, location, number of elements)
  Ref storage(const std::vector<Ref>& id) {
    if (id.size() != 5 || text(id[0]) != "storage") damaged("a reference to something other than a storage");
    const PickleName& type = named(id[1]);
    if (type.use != PickleUse::kStorage && type.use != PickleUse::kBytes)
      damaged(fmt::format("{} is where a storage should be", type.name));
    const int64_t n = integer(id[4]);
    if (n < 0) damaged("a storage of a negative size");
    storages_.push_back({text(id[2]), &type, static_cast<uint64_t>(n)});
    return add({Kind::kStorage, static_cast<uint32_t>(storages_.size() - 1), 0, {}});
  }

  Ref call(const PickleName& function, const std::vector<Ref> arguments, int depth) {
    const auto want = [&](size_t n) {
      if (arguments.size() < n) damaged(fmt::format("{} has too few arguments", function.name));
    };
    switch (function.use) {
      case PickleUse::kOrderedDict: {
        std::vector<Ref> pairs;
        if (!arguments.empty() && nodes_[arguments[0]].kind == Kind::kDict) return arguments[0];
        if (!arguments.empty())
          for (Ref pair : items(arguments[0], Kind::kList)) {
            const Kind kind = nodes_[pair].kind == Kind::kList ? Kind::kList : Kind::kTuple;
            auto& two = items(pair, kind);
            if (two.size() != 2) damaged("an entry of an OrderedDict is not a pair");
            pairs.insert(pairs.end(), two.begin(), two.end());
          }
        return add_items(Kind::kDict, std::move(pairs));
      }
      case PickleUse::kSize:
        want(1);
        return add_items(Kind::kTuple, std::vector<Ref>(items(arguments[0], Kind::kTuple)));
      case PickleUse::kDevice: want(1); return add({Kind::kText, 0, 0, text(arguments[0])});
      case PickleUse::kRebuildTensor: want(4); return rebuild(arguments, nullptr);
      case PickleUse::kRebuildTensor3:
        want(7);
        if (named(arguments[6]).use != PickleUse::kDType) damaged("a tensor's dtype is not one");
        return rebuild(arguments, &named(arguments[6]));
      case PickleUse::kRebuildParameter:
        want(1);
        if (nodes_[arguments[0]].kind != Kind::kTensor) damaged("a parameter that is not a tensor");
        return arguments[0];
      case PickleUse::kRebuildFromType: {
        want(3);
        const PickleUse type = named(arguments[1]).use;
        if (type != PickleUse::kTensorClass || depth > 0) refuse(named(arguments[1]).name);
        return call(named(arguments[0]), items(arguments[2], Kind::kTuple), depth + 1);
      }
      default: refuse(function.name);
    }
  }

  // (storage, offset, shape, strides, ...); dtype: of bytes, else the storage's.
  Ref rebuild(const std::vector<Ref>& arguments, const PickleName* dtype) {
    if (nodes_[arguments[0]].kind != Kind::kStorage) damaged("a tensor without a storage");
    Rebuilt t;
    t.storage = nodes_[arguments[0]].at;
    const Storage& s = storages_[t.storage];
    auto wrong = [&](std::string_view what) {
      damaged(fmt::format("a tensor of storage '{}' {}", printable(s.key), what));
    };
    if ((s.type->use == PickleUse::kBytes) != (dtype != nullptr)) wrong("has no dtype");
    t.dtype = dtype ? dtype : s.type;
    t.offset = integer(arguments[1]);
    auto &shape = items(arguments[2], Kind::kTuple), &strides = items(arguments[3], Kind::kTuple);
    if (shape.size() != strides.size()) wrong("has not one stride for each axis");
    if (shape.size() > kMaxAxes) wrong(fmt::format("has {} axes; a tensor has at most {}", shape.size(), kMaxAxes));
    int64_t last = t.offset;
    bool beyond = t.offset < 0, empty = false;
    for (size_t a = 0; a < shape.size(); ++a) {
      const int64_t size = integer(shape[a]), stride = integer(strides[a]);
      if (size < 0 || (size > 1 && stride < 0)) wrong("has a negative size or stride");
      t.shape.push_back(size);
      t.strides.push_back(size > 1 ? stride : 0);
      empty |= size == 0;
      int64_t step = 0;
      if (size > 1)
        beyond |= __builtin_mul_overflow(size - 1, stride, &step) || __builtin_add_overflow(last, step, &last);
    }
    const uint64_t item = t.dtype->item_bytes;
    uint64_t bytes = s.items, end = 0;
    if (!dtype && __builtin_mul_overflow(s.items, item, &bytes)) wrong("is larger than any memory");
    beyond = beyond || __builtin_mul_overflow(static_cast<uint64_t>(last) + 1, item, &end) || end > bytes;
    if (!empty && beyond) wrong("is beyond its end");
    if (!bytes_of(t.shape, t.dtype->dtype.value_or(DType::kFloat64))) wrong("is larger than any memory");
    tensors_.push_back(t);
    return add({Kind::kTensor, static_cast<uint32_t>(tensors_.size() - 1), 0, {}});
  }

  // What the program has made, as a tree. path: of keys, for messages; name: joined by dots.
  void count(uint64_t text) {
    if (++converted_ > kMostObjects || (text_ += text) > kMostText)
      damaged("it refers to the same objects so often that they do not fit in memory");
  }
  [[noreturn]] void cannot(std::string_view what, const std::string& path) const {
    fail_runtime("{}: {} at the top{} cannot be read. Only tensors, numbers, text, lists, tuples and dicts are.", file_,
                 what, printable(path));
  }

  json convert(Ref r, const std::string& path, const std::string& name, int depth) {
    const Node node = nodes_[r];
    count(node.text.size() + path.size() + name.size());
    if (depth > kMaxDepth) damaged(fmt::format("it has more than {} levels", kMaxDepth));
    switch (node.kind) {
      case Kind::kNone: return nullptr;
      case Kind::kBool: return node.integer != 0;
      case Kind::kInt: return node.integer;
      case Kind::kFloat:
        if (std::isfinite(node.number())) return node.number();
        return {{"float", std::isnan(node.number()) ? "nan" : node.number() > 0 ? "inf" : "-inf"}};
      case Kind::kText: return std::string(node.text);
      case Kind::kName:
        if (names_[node.at]->use == PickleUse::kDType) return "torch." + std::string(names_[node.at]->name);
        cannot(names_[node.at]->name, path);
      case Kind::kTensor: return tensor(tensors_[node.at], path, name);
      case Kind::kList: return list(node, path, name, depth);
      case Kind::kTuple: return {{"tuple", list(node, path, name, depth)}};
      case Kind::kDict: return dict(node, path, name, depth);
      default: cannot(fmt::format("a {}", at_index(kKinds, node.kind)), path);
    }
  }

  json list(const Node& node, const std::string& path, const std::string& name, int depth) {
    json out = json::array();
    for (size_t i = 0; i < items_[node.at].size(); ++i)
      out.push_back(convert(items_[node.at][i], fmt::format("{}[{}]", path, i),
                            fmt::format("{}{}{}", name, name.empty() ? "" : ".", i), depth + 1));
    return out;
  }

  json dict(const Node& node, const std::string& path, const std::string& name, int depth) {
    auto& pairs = items_[node.at];
    json out = json::array();
    std::unordered_map<std::string, size_t> places;  // a key that is set again has the later value
    for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
      const Node& k = nodes_[pairs[i]];
      if (k.kind > Kind::kText) cannot(fmt::format("a key that is a {}", at_index(kKinds, k.kind)), path);
      json key = convert(pairs[i], path, "", depth);
      const std::string part = k.kind == Kind::kText ? std::string(k.text) : plain(k);
      const std::string quoted = k.kind == Kind::kText ? "['" + part + "']" : "[" + part + "]";
      json value = convert(pairs[i + 1], path + quoted, name + (name.empty() ? "" : ".") + part, depth + 1);
      auto [it, fresh] = places.try_emplace(quoted, out.size());
      if (fresh)
        out.push_back(json::array({std::move(key), std::move(value)}));
      else
        out[it->second][1] = std::move(value);
    }
    return {{"dict", std::move(out)}};
  }
  static std::string plain(const Node& k) {
    if (k.kind == Kind::kInt) return std::to_string(k.integer);
    if (k.kind == Kind::kBool) return k.integer ? "true" : "false";
    return k.kind == Kind::kFloat ? fmt::format("{}", k.number()) : "null";
  }

  json tensor(const Rebuilt& t, const std::string& path, const std::string& name) {
    if (!t.dtype->dtype)
      fail_runtime("{}: the tensor at the top{} has dtype torch.{}, which Holon does not support. Convert it first.",
                   file_, printable(path), t.dtype->dtype_name);
    std::string base = name.empty() ? "value" : name, unique = base;
    for (int i = 2; !taken_.insert(unique).second; ++i) unique = fmt::format("{}#{}", base, i);
    const Storage& s = storages_[t.storage];
    const uint64_t item = s.type->use == PickleUse::kBytes ? 1 : t.dtype->item_bytes;
    out_.tensors.emplace_back(
        unique, PickledTensor{std::string(s.key), s.items * item, *t.dtype->dtype, t.offset, t.shape, t.strides});
    return {{"tensor", unique}};
  }

  std::string_view rest_, file_;
  std::vector<Node> nodes_;
  std::vector<std::vector<Ref>> items_;
  std::vector<const PickleName*> names_;
  std::vector<Storage> storages_;
  std::vector<Rebuilt> tensors_;
  std::vector<Ref> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint64_t, Ref> memo_;
  size_t converted_ = 0;
  uint64_t text_ = 0;
  std::unordered_set<std::string> taken_;
  Unpickled out_;
};

}  // namespace

Unpickled unpickle(std::string_view pickle, std::string_view name) {
  if (pickle.size() > kLargestPickle)
    fail_runtime("{}: its pickle has {} bytes; at most {} are read.", name, pickle.size(), kLargestPickle);
  return Machine(pickle, name).run();
}

}  // namespace holon::checkpoint
