// save, load, export, receive and Checkpointer: Python's objects as the core's values and back.
#include "holon/checkpoint.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/vector.h>

#include <functional>

#include "args.h"
#include "bind.h"
#include "holon/base/error.h"
#include "holon/base/fmt.h"
#include "holon/base/index.h"
#include "holon/checkpoint/core/tree.h"
#include "holon/checkpoint/formats/huggingface.h"

namespace holon::python {

using checkpoint::Value;

void bind_key_map(nb::module_& m);  // in key_map.cpp

namespace {

std::string text_of(const char* op, PyObject* o, const std::string& path) {
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(o, &size);
  if (!text) {
    PyErr_Clear();
    fail_value("{}: the text at obj{} is not valid Unicode. Put such bytes into a uint8 tensor.", op, path);
  }
  return {text, to_size(size)};
}

// What can be a key, too; false: something else.
bool simple_value(const char* op, PyObject* o, const std::string& path, Value* out) {
  if (o == Py_None) {
    *out = Value();
  } else if (PyBool_Check(o)) {
    *out = Value(o == Py_True);
  } else if (PyLong_Check(o)) {
    int overflow = 0;
    int64_t n = PyLong_AsLongLongAndOverflow(o, &overflow);
    if (overflow) fail_value("{}: the integer at obj{} does not fit in 64 bits. Convert it to text.", op, path);
    *out = Value(n);
  } else if (PyFloat_Check(o)) {
    *out = Value(PyFloat_AS_DOUBLE(o));
  } else if (PyUnicode_Check(o)) {
    *out = Value(text_of(op, o, path));
  } else {
    return false;
  }
  return true;
}

constexpr const char* kTaken =
    "It can hold tensors, numbers, strings, bools and None, and dicts, lists and tuples of these";

Value value_of(const char* op, PyObject* o, const std::string& path, int depth) {
  if (depth > checkpoint::kMaxDepth)
    fail_value(
        "{}: the object has more than {} levels. Does a list or dict contain itself? The path begins with obj{}.", op,
        checkpoint::kMaxDepth, path.substr(0, 100));
  Value simple;
  if (is_tensor(o)) return Value(tensor_of(o));
  if (simple_value(op, o, path, &simple)) return simple;
  if (PyList_Check(o) || PyTuple_Check(o)) {
    Value::List items;
    for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(o); ++i)
      items.push_back(value_of(op, PySequence_Fast_GET_ITEM(o, i), fmt::format("{}[{}]", path, i), depth + 1));
    return PyList_Check(o) ? Value(std::move(items)) : Value(Value::Tuple{std::move(items)});
  }
  if (!PyDict_Check(o))
    fail_type("{0}: obj{1} is of type {2}, which cannot be {0}{3}. {4}: convert it, or leave it out.", op, path,
              Py_TYPE(o)->tp_name, std::string_view(op) == "save" ? "d" : "ed", kTaken);
  Value::Dict dict;
  // By items(), which keeps the order of subclasses such as OrderedDict.
  for (nb::handle item : nb::borrow(o).attr("items")()) {
    nb::object key = item[0], value = item[1];
    std::string below = path + "[" + nb::cast<std::string>(nb::repr(key)) + "]";
    Value k;
    if (!simple_value(op, key.ptr(), below, &k))
      fail_type("{}: a key of the dict obj{} is {}. Keys are strings, numbers, bools or None.", op, path,
                describe(key.ptr()));
    dict.push_back({std::move(k), value_of(op, value.ptr(), below, depth + 1)});
  }
  return dict;
}

nb::object object_of(const Value& v) {
  if (auto* t = v.get_if<Tensor>()) return wrap_object(*t);
  if (auto* b = v.get_if<bool>()) return nb::bool_(*b);
  if (auto* n = v.get_if<int64_t>()) return nb::int_(*n);
  if (auto* x = v.get_if<double>()) return nb::float_(*x);
  if (auto* s = v.get_if<std::string>()) return nb::str(s->data(), s->size());
  if (v.get_if<Value::List>() || v.get_if<Value::Tuple>()) {
    nb::list out;
    for (auto& item : v.list()) out.append(object_of(item));
    if (v.get_if<Value::Tuple>()) return nb::tuple(out);
    return out;
  }
  if (!v.get_if<Value::Dict>()) return nb::none();
  nb::dict out;
  for (auto& [key, value] : v.dict()) out[object_of(key)] = object_of(value);
  return out;
}

uint64_t bytes_of(PyObject* size) {
  if (PyLong_Check(size) && !PyBool_Check(size)) {
    int overflow = 0;
    const int64_t n = PyLong_AsLongLongAndOverflow(size, &overflow);
    if (overflow || n < 1) fail_value("save: shard_size is not a number of bytes. Give at least 1.");
    return static_cast<uint64_t>(n);
  }
  if (!PyUnicode_Check(size))
    fail_type("save: shard_size is {}. Give a number of bytes, or text such as \"5GB\".", describe(size));
  return checkpoint::parse_bytes(nb::cast<std::string>(nb::handle(size)));
}

LoadOptions load_options(const char* op, PlacementHandle placement, SbpHandle sbp, nb::handle device) {
  LoadOptions options;
  if (!placement.is_none()) options.placement = expect_placement(placement, op);
  if (!sbp.is_none()) options.sbp = expect_nd_sbp(sbp, op);
  if (!device.is_none()) options.device = expect_device(device, op);
  return options;
}

// A function of Python's on a tensor's name. Its object lives as long as the call that it is passed to.
template <class T, class Convert>
std::function<T(const std::string&)> by_name(nb::handle function, Convert convert) {
  return [function, convert](const std::string& name) -> T {
    nb::gil_scoped_acquire gil;
    return convert(function(name));
  };
}

// What of a checkpoint is read, and as what.
void set_part(LoadOptions& options, const char* op, const std::string& prefix, bool strict, nb::handle select,
              nb::handle key_map, nb::handle sbp_of, nb::handle dequantize) {
  options.prefix = prefix;
  options.strict = strict;
  if (!select.is_none())
    options.select = by_name<bool>(select, [](nb::handle answer) { return PyObject_IsTrue(answer.ptr()) > 0; });
  checkpoint::KeyMap* map = nullptr;
  if (nb::try_cast(key_map, map) && map)
    options.key_map = *map;
  else if (!key_map.is_none())
    options.rename = by_name<std::string>(key_map, [op](nb::handle answer) {
      if (!PyUnicode_Check(answer.ptr()))
        fail_type("{}: key_map must be a KeyMap, or return a string; it returned {}.", op, describe(answer.ptr()));
      return nb::cast<std::string>(answer);
    });
  if (!sbp_of.is_none())
    options.sbp_of = by_name<NdSbp>(sbp_of, [op](nb::handle answer) { return expect_nd_sbp(answer, op); });
  if (!dequantize.is_none()) options.dequantize = expect_dtype(dequantize, op);
}

TransferOptions transfer_options(double timeout, const std::optional<std::string>& token) {
  return {.timeout_s = timeout, .token = token};
}

void bind_transfer(nb::module_& m) {
  using namespace nb::literals;
  m.def(
      "export_to",
      [](nb::handle obj, const std::string& address, double timeout, std::optional<std::string> token) {
        Value value = value_of("export", obj.ptr(), "", 0);
        nb::gil_scoped_release released;
        export_to(value, address, transfer_options(timeout, token));
      },
      "obj"_a.none(), "address"_a, "timeout"_a, "token"_a.none(), "Sends an object to a job that receives.");
  m.def(
      "receive",
      [](const std::string& address, PlacementHandle placement, SbpHandle sbp, nb::handle device,
         const std::string& prefix, bool strict, nb::handle select, nb::handle key_map, nb::handle sbp_of,
         nb::handle dequantize, std::optional<nb::dict> like, double timeout, std::optional<std::string> token) {
        LoadOptions options = load_options("receive", placement, sbp, device);
        set_part(options, "receive", prefix, strict, select, key_map, sbp_of, dequantize);
        if (like)
          for (auto [name, tensor] : *like)
            options.like.emplace_back(nb::cast<std::string>(name), tensor_of(tensor.ptr()));
        Value value;
        {
          nb::gil_scoped_release released;
          value = receive(address, options, transfer_options(timeout, token));
        }
        return object_of(value);
      },
      "address"_a, "placement"_a.none(), "sbp"_a.none(), "device"_a.none(), "prefix"_a, "strict"_a, "select"_a.none(),
      "key_map"_a.none(), "sbp_of"_a.none(), "dequantize"_a.none(), "like"_a.none(), "timeout"_a, "token"_a.none(),
      "Returns what another job exports.");
}

void bind_checkpointer(nb::module_& m) {
  using namespace nb::literals;
  using checkpoint::Checkpointer;
  nb::class_<Checkpointer>(m, "Checkpointer", "The checkpoints in a folder: holon.checkpoint.Checkpointer's core.")
      .def(
          "__init__",
          [](Checkpointer* self, const std::string& folder, std::optional<int64_t> keep, bool asynchronous, bool skip) {
            nb::gil_scoped_release released;
            new (self)
                Checkpointer(folder,
                             {.keep = keep,
                              .asynchronous = asynchronous,
                              .while_saving = skip ? checkpoint::WhileSaving::kSkip : checkpoint::WhileSaving::kWait});
          },
          "folder"_a, "keep"_a.none(), "asynchronous"_a, "skip"_a)
      .def(
          "save",
          [](Checkpointer& self, int64_t step, nb::handle obj, nb::handle own) {
            Value value = value_of("save", obj.ptr(), "", 0), mine = value_of("save", own.ptr(), "", 0);
            nb::gil_scoped_release released;
            return self.save(step, value, mine);
          },
          "step"_a, "obj"_a.none(), "own"_a.none(), "Saves a checkpoint; returns False if it was skipped.")
      .def(
          "wait",
          [](Checkpointer& self) {
            nb::gil_scoped_release released;
            self.wait();
          },
          "Waits for the save that is under way.")
      .def(
          "steps", [](const Checkpointer& self) { return self.steps(); }, "The steps of the complete checkpoints.")
      .def(
          "load",
          [](Checkpointer& self, std::optional<int64_t> step, PlacementHandle placement, SbpHandle sbp,
             nb::handle device) -> nb::object {
            const LoadOptions options = load_options("load", placement, sbp, device);
            std::optional<checkpoint::Checkpoint> found;
            {
              nb::gil_scoped_release released;
              found = self.load(step, options);
            }
            if (!found) return nb::none();
            const RandomState& r = found->random;
            return nb::make_tuple(found->step, object_of(found->value), object_of(found->own),
                                  nb::make_tuple(r.seed, r.seeded, r.local_counter, r.global_counter));
          },
          "step"_a.none(), "placement"_a.none(), "sbp"_a.none(), "device"_a.none(),
          "(step, object, own, random state) of a checkpoint, or None.")
      .def(
          "path", [](const Checkpointer& self, int64_t step) { return self.path(step); }, "step"_a,
          "The folder of a step's checkpoint.");
  m.def(
      "verify_checkpoint",
      [](const std::string& path) {
        checkpoint::Verified found;
        {
          nb::gil_scoped_release released;
          found = checkpoint::verify(path);
        }
        nb::dict d;
        d["files"] = found.files;
        d["tensors"] = found.tensors;
        d["bytes"] = found.bytes;
        d["unchecked_bytes"] = found.unchecked_bytes;
        return nb::typed<nb::dict, nb::str, int>(d);
      },
      "path"_a, "Compares all checksums of what was saved.");
}

}  // namespace

void bind_checkpoint(nb::module_& m) {
  using namespace nb::literals;
  bind_key_map(m);
  m.def(
      "save",
      [](nb::handle obj, const std::string& path, std::optional<int> global_dst_rank, const std::string& format,
         nb::handle shard_size, nb::handle key_map) {
        SaveOptions options{.global_dst_rank = global_dst_rank};
        if (format == "hf")
          options.format = Format::kHuggingFace;
        else if (format != "holon")
          fail_value("save: format is '{}'. Give \"holon\" or \"hf\".", format);
        if (!shard_size.is_none()) options.shard_bytes = bytes_of(shard_size.ptr());
        if (!key_map.is_none()) options.key_map = nb::cast<checkpoint::KeyMap>(key_map);
        Value value = value_of("save", obj.ptr(), "", 0);
        nb::gil_scoped_release released;
        save(value, path, options);
      },
      "obj"_a.none(), "path"_a, "global_dst_rank"_a.none(), "format"_a, "shard_size"_a.none(), "key_map"_a.none(),
      "Writes an object to a file or folder.");
  m.def(
      "load",
      [](const std::string& path, std::optional<int> global_src_rank, PlacementHandle placement, SbpHandle sbp,
         nb::handle device, const std::string& prefix, bool strict, nb::handle select, nb::handle key_map,
         nb::handle sbp_of, nb::handle dequantize) {
        LoadOptions options = load_options("load", placement, sbp, device);
        options.global_src_rank = global_src_rank;
        set_part(options, "load", prefix, strict, select, key_map, sbp_of, dequantize);
        Value value;
        {
          nb::gil_scoped_release released;
          value = load(path, options);
        }
        return object_of(value);
      },
      "path"_a, "global_src_rank"_a.none(), "placement"_a.none(), "sbp"_a.none(), "device"_a.none(), "prefix"_a,
      "strict"_a, "select"_a.none(), "key_map"_a.none(), "sbp_of"_a.none(), "dequantize"_a.none(),
      "Reads what save() wrote.");
  m.def("bytes_read", checkpoint::bytes_read,
        "How many bytes of checkpoints' files and from other jobs this rank has read so far.");
  bind_transfer(m);
  bind_checkpointer(m);
}

}  // namespace holon::python
