#include "holon/verify/recording.h"

#include <cstring>
#include <sstream>

#include "holon/base/error.h"
#include "holon/base/index.h"

namespace holon::verify {

namespace {

constexpr char kMagic[8] = {'H', 'o', 'l', 'o', 'n', 'R', 'e', '1'};
constexpr uint64_t kMostItems = uint64_t{1} << 32;

struct Writer {
  std::string bytes;
  void raw(const void* data, size_t n) { bytes.append(static_cast<const char*>(data), n); }
  void number(int64_t v) { raw(&v, sizeof v); }
  void text(const std::string& s) {
    number(static_cast<int64_t>(s.size()));
    raw(s.data(), s.size());
  }
  template <class List>
  void numbers(const List& list) {
    number(static_cast<int64_t>(list.size()));
    for (auto v : list) number(v);
  }
};

// Of a file that may end anywhere.
struct Reader {
  std::string_view bytes;
  bool ok = true;
  void raw(void* to, size_t n) {
    ok = ok && bytes.size() >= n;
    if (!ok || n == 0) return;  // to is nullptr for an empty vector
    std::memcpy(to, bytes.data(), n);
    bytes.remove_prefix(n);
  }
  int64_t number() {
    int64_t v = 0;
    raw(&v, sizeof v);
    return v;
  }
  // Of items that take so many bytes each.
  size_t count(size_t item_bytes) {
    const auto n = static_cast<uint64_t>(number());
    ok = ok && n < kMostItems && n * item_bytes <= bytes.size();
    return ok ? static_cast<size_t>(n) : 0;
  }
  std::string text() {
    std::string s(count(1), '\0');
    raw(s.data(), s.size());
    return s;
  }
  template <class Number>
  std::vector<Number> numbers() {
    std::vector<Number> list(count(sizeof(int64_t)));
    for (auto& v : list) v = static_cast<Number>(number());
    return list;
  }
  Dims dims() {
    const auto list = numbers<int64_t>();
    ok = ok && list.size() <= to_size(kMaxAxes);
    uint64_t elements = 1;
    for (int64_t n : list) {
      ok = ok && n >= 0 && static_cast<uint64_t>(n) < kMostItems;
      if (ok && n > 0) elements *= static_cast<uint64_t>(n);
      ok = ok && elements < kMostItems;
    }
    return ok ? Dims(std::span<const int64_t>(list)) : Dims();
  }
};

void put(Writer& w, const Value& v) {
  w.number(static_cast<int64_t>(v.dtype));
  w.numbers(v.shape);
  w.number(v.global);
  w.numbers(v.hierarchy);
  w.numbers(v.ranks);
  w.number(static_cast<int64_t>(v.nd_sbp.size()));
  for (Sbp s : v.nd_sbp) w.number(static_cast<int64_t>(s.kind)), w.number(s.axis);
  w.number(v.requires_grad);
  w.number(v.here);
  w.numbers(v.part_shape);
  w.number(static_cast<int64_t>(v.part.size()));
  w.raw(v.part.data(), v.part.size() * sizeof(double));
}

Value get_value(Reader& r) {
  Value v;
  const int64_t dtype = r.number();
  r.ok = r.ok && dtype >= 0 && dtype < kDTypeCount;
  if (r.ok) v.dtype = static_cast<DType>(dtype);
  v.shape = r.dims();
  v.global = r.number() != 0;
  v.hierarchy = r.dims();
  v.ranks = r.numbers<int>();
  v.nd_sbp.resize(r.count(2 * sizeof(int64_t)));
  for (Sbp& s : v.nd_sbp) {
    const int64_t kind = r.number(), axis = r.number();
    r.ok = r.ok && kind >= 0 && kind <= static_cast<int64_t>(Sbp::Kind::kPartial) && axis >= 0 &&
        (kind != static_cast<int64_t>(Sbp::Kind::kSplit) || axis < v.shape.size());
    if (r.ok) s = {static_cast<Sbp::Kind>(kind), static_cast<int8_t>(axis)};
  }
  r.ok = r.ok && v.nd_sbp.size() == to_size(v.hierarchy.size()) &&
      v.ranks.size() == (v.global ? to_size(v.hierarchy.numel()) : 0);
  for (int rank : v.ranks) r.ok = r.ok && rank >= 0;
  v.requires_grad = r.number() != 0;
  v.here = r.number() != 0;
  v.part_shape = r.dims();
  v.part.resize(r.count(sizeof(double)));
  r.raw(v.part.data(), v.part.size() * sizeof(double));
  return v;
}

enum class Item : int64_t { kRecord = 1, kEnd = 2 };

}  // namespace

RecordingWriter::RecordingWriter(const std::string& path, int rank, int world)
    : path_(path), file_(path, std::ios::binary) {
  Writer w;
  w.raw(kMagic, sizeof kMagic);
  w.number(rank);
  w.number(world);
  file_.write(w.bytes.data(), static_cast<std::streamsize>(w.bytes.size()));
  check();
}

void RecordingWriter::check() {
  file_.flush();
  if (!file_) fail_runtime("a recording of the program cannot be written to {}. Is there space on the disk?", path_);
}

void RecordingWriter::add(const Record& record) {
  Writer w;
  w.number(static_cast<int64_t>(Item::kRecord));
  w.number(static_cast<int64_t>(record.kind));
  w.text(record.op);
  w.text(record.site);
  w.text(record.label);
  w.number(record.view | record.random << 1 | record.converts << 2 | record.of_parameter << 3);
  w.number(record.forward);
  w.number(record.place);
  w.numbers(record.inputs);
  w.number(static_cast<int64_t>(record.values.size()));
  for (auto& v : record.values) put(w, v);
  file_.write(w.bytes.data(), static_cast<std::streamsize>(w.bytes.size()));
  check();
}

void RecordingWriter::end(const std::string& error) {
  Writer w;
  w.number(static_cast<int64_t>(Item::kEnd));
  w.text(error);
  file_.write(w.bytes.data(), static_cast<std::streamsize>(w.bytes.size()));
  check();
}

Recording read_recording(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream all;
  all << file.rdbuf();
  const std::string bytes = all.str();
  Reader r{bytes};
  char magic[sizeof kMagic] = {};
  r.raw(magic, sizeof magic);
  if (!file || !r.ok || std::memcmp(magic, kMagic, sizeof kMagic) != 0)
    fail_runtime("{} is not the recording of a program's run.", path);
  Recording found;
  found.rank = static_cast<int>(r.number());
  found.world = static_cast<int>(r.number());
  while (r.ok && !r.bytes.empty()) {
    if (r.number() == static_cast<int64_t>(Item::kEnd)) {
      found.error = r.text();
      found.ended = r.ok && found.error.empty();
      break;
    }
    Record record;
    record.kind = static_cast<Kind>(r.number());
    record.op = r.text();
    record.site = r.text();
    record.label = r.text();
    const int64_t flags = r.number();
    record.view = flags & 1, record.random = flags & 2, record.converts = flags & 4, record.of_parameter = flags & 8;
    record.forward = static_cast<int>(r.number());
    record.place = static_cast<int>(r.number());
    record.inputs = r.numbers<int>();
    record.values.resize(r.count(8 * sizeof(int64_t)));
    for (auto& v : record.values) v = get_value(r);
    const int here = static_cast<int>(found.records.size());
    bool sound = r.ok && record.kind <= Kind::kState && record.forward < here;
    for (int i : record.inputs) sound = sound && i >= 0 && i < here;
    for (auto& v : record.values) sound = sound && v.part.size() == (v.here ? to_size(v.part_shape.numel()) : 0);
    if (!sound) break;
    found.records.push_back(std::move(record));
  }
  return found;
}

}  // namespace holon::verify
